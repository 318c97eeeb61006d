// Elements, times and words. Whatever comes from the cluster becomes text here and never markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element of HTML. Children that are no elements are text. */
export const html = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);

/** An element of SVG. */
export const svg = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);

/** Sets a text where it has changed: what is selected stays selected. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A point in time that tells how long ago it was, and goes on telling. */
export function time(millis) {
  if (!millis) return html("span", { class: "faint" }, "unknown");
  const at = new Date(millis);
  return html("time", { datetime: at.toISOString(), title: at.toLocaleString() }, ago(millis));
}

/** Lets all times tell the present. */
export function tick() {
  for (const element of document.querySelectorAll("time")) say(element, ago(Date.parse(element.dateTime)));
}

/** How long ago, as kubectl shows ages. Clocks differ: what lies in the future was just now. */
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

/** Milliseconds as people compare them. */
export function took(millis) {
  return millis < 10000 ? `${millis.toFixed(1)} ms` : `${(millis / 1000).toFixed(1)} s`;
}

export const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** How many restarts have counted, and of how many where there is a limit: the JobSets of Ray have none. */
export const spent = ({ restarts, maxRestarts }) => (maxRestarts === 2147483647 ? `${restarts}` : `${restarts} of ${maxRestarts}`);

/** States of workers: a sign beside the colour, and what it means. */
export const WORKER = {
  Running: ["good", "", "runs"],
  Done: ["done", "✓", "has completed"],
  Starting: ["busy", "›", "is being started"],
  Fresh: ["idle", "○", "waits for its first start"],
  Pending: ["idle", "·", "has not been heard of yet"],
  AwaitingHeartbeat: ["busy", "♡", "runs, its first heartbeat is awaited"],
  Stopping: ["busy", "▾", "is being stopped"],
  Parked: ["busy", "=", "has stopped and waits for the others"],
  Hung: ["bad", "z", "runs and gives no heartbeat any more"],
  Exited: ["bad", "×", "has failed"],
  Lost: ["bad", "!", "its container is gone"],
  Unlinked: ["idle", "?", "out of reach, which is evidence of nothing"],
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
