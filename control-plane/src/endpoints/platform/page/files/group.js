// One group: its facts, its graph, its workers and its last restarts.

import { $, count, html, phase, say, spent, time, took } from "./dom.js";
import { graph } from "./graph.js";
import { cells, legend } from "./cells.js";
import { strip, timeline } from "./timeline.js";

let shown = "";
/** Generation and beginning of the restart whose timeline is shown; null: the last finished one. */
let chosen = null;
/** The content of each part of the page. A part with the same content is not replaced. */
const contents = new Map();

export function showGroup(key, state) {
  const name = `${key.namespace}/${key.name}`;
  if (shown !== name) {
    shown = name;
    chosen = null;
    contents.clear();
  }
  say($("name"), name);
  say($("command"), `kubectl lockstep history -n ${key.namespace} ${key.name}`);
  $("gone").hidden = state.group !== null;
  $("shown").hidden = state.group === null;
  if (state.group === null) return;
  const group = state.group;
  part("facts", group, () => facts(group), ["phase", "generation", "released", "restarts", "maxRestarts", "workersUp", "workersExpected", "lastLevel", "kind"]);
  part("cause", group, () => why(group), ["lastCause"]);
  part("graph", group.stages.map((stage) => ({ ...stage, jobs: up(stage) })), () => [graph(group.stages)]);
  legend($("legend"), group.stages);
  cells($("stages"), $("worker"), group);
  $("more").hidden = group.moreWorkers === 0;
  say($("more"), `and ${count(group.moreWorkers, "more worker")} that are not drawn`);
  restarts(state.restarts);
}

/** Replaces a part of the page if its content has changed. */
function part(id, value, make, fields) {
  const content = JSON.stringify(value, Array.isArray(value) ? undefined : fields && [...fields, "reason", "message", "at"]);
  if (contents.get(id) === content) return;
  contents.set(id, content);
  $(id).replaceChildren(...make());
}

const up = (stage) => stage.jobs.map((job) => job.workers.filter((worker) => worker.phase === "Running" || worker.phase === "Done").length);

function facts(group) {
  const fact = (name, value, kind) => html("div", {}, html("dt", {}, name), html("dd", { class: kind, id: `fact-${name.replaceAll(" ", "-")}` }, value));
  return [
    fact("generation", `${group.generation}`, "big"),
    fact("phase", phase(group.phase)),
    fact("workers up", `${group.workersUp} of ${group.workersExpected}`),
    fact("released generation", `${group.released}`),
    fact("restarts that count", spent(group)),
    fact("last level", group.lastLevel || "none"),
    fact("kind", group.kind),
  ];
}

function why(group) {
  const cause = group.lastCause;
  return cause ? ["Last restart ", time(cause.at), `: ${cause.message}`] : ["Never restarted."];
}

const named = (restart) => `${restart.generation} ${restart.begun} ${restart.scope}`;

function restarts({ last, since }) {
  part("since", [last.length, since], () =>
    last.length ? ["The last ones since this leader took over the group, ", time(since), "."] : ["None since this leader took over the group, ", time(since), "."],
  );
  $("restarts").hidden = last.length === 0;
  const done = last.filter((restart) => restart.phases.length > 0);
  const drawn = done.find((restart) => named(restart) === chosen) ?? done[0];
  part("timeline", [drawn ?? null], () => (drawn ? [timeline(drawn)] : []));
  const content = JSON.stringify([last, drawn ? named(drawn) : null]);
  if (contents.get("restarts") === content) return;
  contents.set("restarts", content);
  const focused = document.activeElement?.dataset.restart;
  $("restarts").tBodies[0].replaceChildren(...last.map((restart) => row(restart, restart === drawn)));
  if (focused) document.querySelector(`[data-restart="${CSS.escape(focused)}"]`)?.focus();
}

function row(restart, drawn) {
  const pick = html(
    "button",
    { type: "button", "data-restart": named(restart), "aria-pressed": `${drawn}`, "aria-label": `Timeline of the restart to generation ${restart.generation}` },
    `${restart.generation}`,
  );
  pick.addEventListener("click", () => {
    chosen = named(restart);
    dispatchEvent(new Event("redraw"));
  });
  const outcome = { Done: restart.took === null ? "done" : took(restart.took), UnderWay: "under way", Superseded: "superseded by another one" }[restart.outcome];
  const pods = restart.replacedPods ? `, ${restart.replacedPods} in a new pod` : "";
  const standbys = restart.fromStandbys ? `, ${restart.fromStandbys} from standbys` : "";
  return html(
    "tr",
    { class: drawn ? "chosen" : null },
    html("td", { class: "number" }, restart.phases.length ? pick : `${restart.generation}`),
    html("td", { class: "number" }, time(restart.begun)),
    html("td", { class: restart.outcome === "Done" ? "number" : null }, outcome),
    html("td", {}, restart.phases.length ? strip(restart) : ""),
    html("td", {}, [restart.level, restart.scope === "worker" ? "one worker" : ""].filter(Boolean).join(", ")),
    html("td", { class: "number" }, restart.outcome === "Done" ? `${restart.workers}${pods}${standbys}` : ""),
    html("td", {}, restart.cause?.message ?? ""),
  );
}
