// The phases of a restart as bars on one scale, as `kubectl lockstep timeline --html` draws them.

import { svg, took } from "./dom.js";

const WHAT = {
  detect: "until the control plane decided to restart",
  push: "until all nodes had been sent the new generation",
  write: "until it was durable",
  stop: "until the last worker had stopped",
  park: "until the control plane knew that all workers wait",
  release: "until they were released",
  run: "until the last worker ran",
};
/** Phases that follow each other. The others run at the same time. */
const ROW = new Set(["detect", "stop", "park", "release", "run"]);

const [WIDTH, LEFT, RIGHT, HEIGHT] = [800, 90, 90, 30];

/** Clocks of machines differ: a phase may end after the whole restart. */
const whole = ({ phases, took: all }) => Math.max(0.1, all ?? 0, ...phases.map((phase) => phase.from + phase.took));

/** One restart, a bar for each phase. */
export function timeline(restart) {
  const scale = whole(restart);
  const x = (millis) => LEFT + (Math.max(0, millis) / scale) * (WIDTH - LEFT - RIGHT);
  const bottom = HEIGHT * (restart.phases.length + 1);
  const label = `Restart to generation ${restart.generation}: ${restart.phases.map((phase) => `${phase.name} ${took(phase.took)}`).join(", ")}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${bottom + 4}`, role: "img", "aria-label": label });
  const step = tickStep(scale);
  for (let tick = 0; tick <= scale; tick += step) {
    const at = x(tick).toFixed(1);
    drawing.append(
      svg("line", { x1: at, y1: 22, x2: at, y2: bottom }),
      svg("text", { class: "faint", x: at, y: 14, "text-anchor": "middle" }, `${Math.round(tick * 1000) / 1000} ms`),
    );
  }
  restart.phases.forEach((phase, place) => {
    const [from, to, top] = [x(phase.from), x(phase.from + phase.took), HEIGHT * (place + 1)];
    drawing.append(
      svg("text", { x: LEFT - 10, y: top + 19, "text-anchor": "end" }, phase.name),
      svg("rect", { x: from, y: top + 5, width: Math.max(1.5, to - from), height: 18, rx: 2 }, svg("title", {}, `${phase.name}: ${WHAT[phase.name] ?? ""}`)),
      svg("text", { x: Math.max(to, from + 1.5) + 5, y: top + 19 }, took(phase.took)),
    );
  });
  return drawing;
}

/** One restart in a line of a table. */
export function strip(restart) {
  const [width, height] = [130, 12];
  const scale = whole(restart);
  const bars = restart.phases
    .filter((phase) => ROW.has(phase.name))
    .map((phase) =>
      svg(
        "rect",
        { class: phase.name, x: (Math.max(0, phase.from) / scale) * width, width: Math.max(1, (phase.took / scale) * width), height },
        svg("title", {}, `${phase.name} ${took(phase.took)}`),
      ),
    );
  const label = restart.phases.map((phase) => `${phase.name} ${took(phase.took)}`).join(", ");
  return svg("svg", { class: "phases", width, height: height + 6, viewBox: `0 -4 ${width} ${height + 6}`, role: "img", "aria-label": label }, ...bars);
}

/** The distance between two lines of the scale: 1, 2 or 5 times a power of ten, for at most eight lines. */
function tickStep(scale) {
  const least = scale / 8;
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((factor) => factor * power >= least) ?? 10) * power;
}
