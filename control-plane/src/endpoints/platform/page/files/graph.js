// The start order: replicatedJobs as boxes, and what they wait for as arrows.

import { count, svg } from "./dom.js";

const BOX = { width: 210, height: 78 };
const GAP = { x: 100, y: 22 };
/** Letters of a name that fit into a box. */
const LETTERS = 24;

export function graph(stages) {
  const places = place(stages);
  const columns = Math.max(...[...places.values()].map(({ x }) => x)) + 1;
  const rows = Math.max(...[...places.values()].map(({ y }) => y)) + 1;
  const width = columns * (BOX.width + GAP.x) - GAP.x + 4;
  const height = rows * (BOX.height + GAP.y) - GAP.y + 4;
  const drawing = svg("svg", { width, height, viewBox: `-2 -2 ${width} ${height}`, role: "group", "aria-label": "Start order of the replicatedJobs" });
  for (const stage of stages) {
    for (const dependency of stage.dependsOn) drawing.append(...edge(places.get(dependency.stage), places.get(stage.name), dependency));
  }
  for (const stage of stages) drawing.append(box(stage, places.get(stage.name)));
  return drawing;
}

const left = ({ x }) => x * (BOX.width + GAP.x);
const top = ({ y }) => y * (BOX.height + GAP.y);

/** Puts each stage in the column after all that it waits for. These come before it in `stages`. */
function place(stages) {
  const places = new Map();
  const filled = [];
  for (const { name, dependsOn } of stages) {
    const x = Math.max(0, ...dependsOn.map(({ stage }) => (places.get(stage)?.x ?? -1) + 1));
    filled[x] = (filled[x] ?? 0) + 1;
    places.set(name, { x, y: filled[x] - 1 });
  }
  return places;
}

function edge(from, to, { stage, until, reached }) {
  if (!from || !to) return [];
  const [x1, y1, x2, y2] = [left(from) + BOX.width, top(from) + BOX.height / 2, left(to), top(to) + BOX.height / 2];
  const middle = (x1 + x2) / 2;
  const label = `waits until ${stage} is ${until}: ${reached ? "it is" : "it is not yet"}`;
  const kind = reached ? "edge" : "edge waiting";
  return [
    svg("path", { class: kind, d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }, svg("title", {}, label)),
    svg("path", { class: kind, d: `M${x2 - 6} ${y2 - 4}L${x2} ${y2}L${x2 - 6} ${y2 + 4}` }),
    svg("text", { class: "faint small", x: middle, y: (y1 + y2) / 2 - 6, "text-anchor": "middle" }, `${reached ? "✓ " : ""}${until}`),
  ];
}

function box(stage, at) {
  const [x, y] = [left(at), top(at)];
  const workers = stage.jobs.flatMap((job) => job.workers);
  const up = workers.filter(({ phase }) => phase === "Running" || phase === "Done").length;
  const name = stage.name.length > LETTERS ? `${stage.name.slice(0, LETTERS - 1)}…` : stage.name;
  const jobs = `${stage.jobsReady + stage.jobsSucceeded} of ${count(stage.jobsExpected, "Job")} ready${stage.jobsFailed ? `, ${stage.jobsFailed} failed` : ""}`;
  const label = workers.length ? `${up} of ${count(workers.length, "worker")} up` : stage.started ? "no workers" : "has not started";
  const rail = BOX.width - 24;
  const link = svg(
    "a",
    { href: `#workers-of-${stage.name}`, "aria-label": `${stage.name}: ${jobs}, ${label}` },
    svg("rect", { class: "box", x, y, width: BOX.width, height: BOX.height, rx: 6 }),
    svg("text", { class: "name", x: x + 12, y: y + 21 }, name, svg("title", {}, stage.name)),
    svg("text", { class: "faint small", x: x + 12, y: y + 39 }, jobs),
    svg("text", { class: "small", x: x + 12, y: y + 55 }, label),
    svg("rect", { class: "rail", x: x + 12, y: y + 64, width: rail, height: 5, rx: 2 }),
    svg("rect", { class: "up", x: x + 12, y: y + 64, width: workers.length ? (rail * up) / workers.length : 0, height: 5, rx: 2 }),
  );
  // The part after the hash selects the group, and must stay.
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const grid = document.getElementById(`workers-of-${stage.name}`);
    grid?.scrollIntoView({ block: "center" });
    grid?.querySelector("svg")?.focus({ preventScroll: true });
  });
  return link;
}
