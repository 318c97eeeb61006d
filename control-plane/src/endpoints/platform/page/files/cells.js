// Workers as squares: one drawing for each replicatedJob, with its Jobs in order. Thousands of squares are drawn once, and then only those that change.

import { WORKER, age, count, html, say, svg } from "./dom.js";

/** With more workers than this, the squares are small. */
const MANY = 1000;
/** A Job with this many workers has a line with its name. */
const LARGE = 4;
/** With more Jobs than this, no Job has such a line. */
const NAMED = 100;

/** The drawings, by replicatedJob. */
let drawings = new Map();
let drawnGroup = "";

/** Draws the workers of a group into `parent`. `line` describes the selected one. */
export function cells(parent, line, group) {
  if (drawnGroup !== group.uid) {
    drawnGroup = group.uid;
    drawings = new Map();
    parent.replaceChildren();
    say(line, "");
  }
  const total = group.stages.reduce((sum, stage) => sum + stage.jobs.reduce((of, job) => of + job.workers.length, 0), 0);
  const width = Math.max(200, parent.clientWidth);
  for (const [name, drawing] of drawings) {
    if (!group.stages.some((stage) => stage.name === name)) {
      drawing.section.remove();
      drawings.delete(name);
    }
  }
  for (const stage of group.stages) {
    let drawing = drawings.get(stage.name);
    if (!drawing) {
      drawing = section(stage, line);
      drawings.set(stage.name, drawing);
      parent.append(drawing.section);
    }
    const workers = stage.jobs.flatMap((job) => job.workers.map((worker) => ({ ...worker, job: job.name })));
    say(drawing.head, `${stage.name}`);
    say(drawing.counts, `${count(stage.jobs.length, "Job")}, ${count(workers.length, "worker")}: ${phases(workers)}`);
    const shape = `${width} ${total > MANY} ${stage.jobs.map((job) => `${job.name}*${job.workers.length}`).join()}`;
    if (drawing.shape !== shape) layOut(drawing, stage, width, total > MANY, shape);
    workers.forEach((worker, at) => paint(drawing.squares[at], worker));
    drawing.grid.setAttribute("aria-label", `Workers of ${stage.name}: ${phases(workers)}. Arrow keys go from worker to worker.`);
    if (drawing.chosen !== null) tell(drawing, line);
  }
}

function section(stage, line) {
  const grid = svg("svg", { class: "cells", tabindex: 0, role: "group" });
  const [head, counts] = [html("h3"), html("p", { class: "faint" })];
  const element = html("section", { id: `workers-of-${stage.name}` }, head, counts, grid);
  const drawing = { section: element, head, counts, grid, squares: [], shape: "", columns: 1, chosen: null };
  const choose = (at) => {
    for (const other of drawings.values()) pick(other, other === drawing ? at : null);
    tell(drawing, line);
  };
  grid.addEventListener("pointerover", (event) => {
    const at = drawing.squares.findIndex(({ element }) => element.contains(event.target));
    if (at >= 0) choose(at);
  });
  grid.addEventListener("focus", () => drawing.chosen === null && drawing.squares.length > 0 && choose(0));
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: drawing.columns, ArrowUp: -drawing.columns, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || drawing.squares.length === 0) return;
    event.preventDefault();
    choose(Math.min(drawing.squares.length - 1, Math.max(0, (drawing.chosen ?? 0) + step)));
    drawing.squares[drawing.chosen].element.scrollIntoView({ block: "nearest" });
  });
  return drawing;
}

/** Places each worker. Large Jobs begin a line of their own under their name; small ones follow each other with a gap between them. */
function layOut(drawing, stage, width, many, shape) {
  const [side, pitch] = many ? [11, 13] : [16, 19];
  const named = stage.jobs.length <= NAMED && stage.jobs.some((job) => job.workers.length > LARGE);
  const columns = Math.max(1, Math.floor(width / pitch));
  let [x, y] = [0, 0];
  const parts = [];
  drawing.squares = [];
  stage.jobs.forEach((job, place) => {
    if (named) {
      y += place ? pitch + 6 : 0;
      x = 0;
      parts.push(svg("text", { class: "faint small", x: 0, y: y + 12 }, job.name));
      y += 18;
    } else if (place) {
      x += job.workers.length > 1 || stage.jobs[place - 1].workers.length > 1 ? 6 : 0;
    }
    for (let at = 0; at < job.workers.length; at++) {
      if (x + side > width) {
        x = 0;
        y += pitch;
      }
      const square = cell(side);
      square.element.setAttribute("transform", `translate(${x + 1} ${y + 1})`);
      drawing.squares.push(square);
      parts.push(square.element);
      x += pitch;
    }
  });
  drawing.grid.classList.toggle("many", many);
  drawing.grid.setAttribute("width", width);
  drawing.grid.setAttribute("height", y + pitch + 2);
  drawing.grid.replaceChildren(...parts);
  drawing.columns = columns;
  drawing.shape = shape;
  if (drawing.chosen !== null) pick(drawing, drawing.chosen < drawing.squares.length ? drawing.chosen : null);
}

function cell(side) {
  const [title, sign] = [svg("title"), svg("text", { x: side / 2, y: side / 2 + 0.5 })];
  const element = svg("g", { class: "cell" }, title, svg("rect", { width: side, height: side, rx: 2 }), sign);
  return { element, title, sign, worker: null, tone: "" };
}

function paint(square, worker) {
  square.worker = worker;
  const [tone, sign, means] = WORKER[worker.phase] ?? ["idle", "?", ""];
  if (square.tone !== worker.phase) {
    square.tone = worker.phase;
    square.element.classList.remove("good", "done", "busy", "bad", "idle");
    square.element.classList.add(tone);
    say(square.sign, sign);
  }
  const place = [worker.pod && `pod ${worker.pod}`, worker.node && `node ${worker.node}`, worker.step !== undefined && `step ${worker.step}`, worker.section && `in ${worker.section}`, worker.started, worker.standbys].filter(Boolean).join(", ");
  say(square.title, `${worker.job}[${worker.index}]/${worker.container}: ${worker.phase} (${means}), generation ${worker.generation}${place ? `, ${place}` : ""}`);
}

function pick(drawing, at) {
  drawing.squares[drawing.chosen]?.element.classList.remove("chosen");
  drawing.chosen = at;
  drawing.squares[at]?.element.classList.add("chosen");
}

function tell(drawing, line) {
  const square = drawing.squares[drawing.chosen];
  if (square) say(line, `${square.title.textContent}${square.worker.since ? `, for ${age(Date.now() - square.worker.since)}` : ""}`);
}

function phases(workers) {
  const counts = {};
  for (const { phase } of workers) counts[phase] = (counts[phase] ?? 0) + 1;
  const known = Object.keys(WORKER).filter((phase) => counts[phase]);
  return known.map((phase) => `${counts[phase]} ${phase}`).join(", ") || "none";
}

/** The states that occur, and always Running. */
export function legend(parent, stages) {
  const counts = { Running: 0 };
  for (const stage of stages) {
    for (const job of stage.jobs) for (const { phase } of job.workers) counts[phase] = (counts[phase] ?? 0) + 1;
  }
  const labels = Object.keys(WORKER)
    .filter((phase) => phase in counts)
    .map((phase) => `${phase} ${counts[phase]}`);
  if (parent.dataset.labels === labels.join()) return;
  parent.dataset.labels = labels.join();
  parent.replaceChildren(
    ...labels.map((text) => {
      const phase = text.split(" ")[0];
      const [tone, sign, means] = WORKER[phase];
      const square = cell(16);
      square.element.classList.add(tone);
      say(square.sign, sign);
      square.title.remove();
      square.element.setAttribute("transform", "translate(1 1)");
      return html("li", { title: `${phase}: ${means}` }, svg("svg", { width: 18, height: 18, "aria-hidden": "true" }, square.element), text);
    }),
  );
}
