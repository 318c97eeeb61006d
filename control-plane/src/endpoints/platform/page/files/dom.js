// Elements, times and labels. Data of the cluster becomes text here, and never markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element of HTML. Other children become text. */
export const html = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);

/** An element of SVG. */
export const svg = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);

/** Sets a text if it has changed, so that a selection stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A point in time, shown as its age, which is kept up to date. */
export function time(millis) {
  if (!millis) return html("span", { class: "faint" }, "unknown");
  const at = new Date(millis);
  return html("time", { datetime: at.toISOString(), title: at.toLocaleString() }, ago(millis));
}

/** Updates all ages. */
export function tick() {
  for (const element of document.querySelectorAll("time")) say(element, ago(Date.parse(element.dateTime)));
}

/** An age, as kubectl shows ages. Clocks differ, so a time in the future counts as now. */
export function ago(millis) {
  return `${age(Date.now() - millis)} ago`;
}

export function age(millis) {
  const seconds = Math.max(0, Math.floor(millis / 1000));
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
  if (seconds < 120) return `${seconds}s`;
  if (minutes < 10 && seconds % 60) return `${minutes}m${seconds % 60}s`;
  if (hours < 3) return `${minutes}m`;
  if (hours < 48) return `${hours}h`;
  return `${days}d`;
}

/** Milliseconds for people. */
export function took(millis) {
  return millis < 10000 ? `${millis.toFixed(1)} ms` : `${(millis / 1000).toFixed(1)} s`;
}

export const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** The restarts that count, and their limit if there is one: JobSets of Ray have none. */
export const spent = ({ restarts, maxRestarts }) => (maxRestarts === 2147483647 ? `${restarts}` : `${restarts} of ${maxRestarts}`);

/** States of workers: colour, sign, and meaning. */
export const WORKER = {
  Running: ["good", "", "runs"],
  Done: ["done", "✓", "has completed"],
  Starting: ["busy", "›", "is being started"],
  Fresh: ["idle", "○", "waits for its first start"],
  Pending: ["idle", "·", "has not reported yet"],
  AwaitingHeartbeat: ["busy", "♡", "runs, without a first heartbeat yet"],
  Stopping: ["busy", "▾", "is being stopped"],
  Parked: ["busy", "=", "has stopped and waits for the others"],
  Hung: ["bad", "z", "runs, but sends no heartbeats"],
  Exited: ["bad", "×", "has failed"],
  Lost: ["bad", "!", "its container is gone"],
  Unlinked: ["idle", "?", "its node is not connected: the state is unknown"],
};

/** States of groups. */
const GROUP = {
  InSync: ["good", "✓"],
  Recovering: ["idle", "…"],
  Stopping: ["busy", "▾"],
  Parked: ["busy", "="],
  Releasing: ["busy", "›"],
  Recreating: ["busy", "↻"],
  Suspended: ["idle", "‖"],
  Failed: ["bad", "×"],
};

export function phase(name) {
  const [tone, sign] = GROUP[name] ?? ["idle", "?"];
  return html("span", { class: `state ${tone}` }, `${sign} ${name}`);
}
