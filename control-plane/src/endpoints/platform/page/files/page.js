// The connection, and the choice between the two views. Each event is a whole state, so a missed one does not matter.

import { $, html, say, tick } from "./dom.js";
import { showGroups } from "./list.js";
import { showGroup } from "./group.js";

/** Milliseconds without an event after which the connection counts as lost. The server sends one at least every 5 seconds. */
const SILENCE = 13000;
/** A connection that is back within this many milliseconds is not shown as lost. */
const BLINK = 1500;

let source = null;
let state = null;
let lastEventAt = Date.now();
let connected = false;
/** Why the server has no room for this page; empty if it has. */
let full = "";
let lostAt = Date.now();
let delay = 250;
let retry = 0;
let drawing = 0;

/** `#/NAMESPACE/NAME` is a group, everything else the list. */
function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  return parts.length === 2 && parts.every((part) => /^[a-z0-9.-]+$/.test(part)) ? { namespace: parts[0], name: parts[1] } : null;
}

function url() {
  const group = route();
  if (group) return `events/${group.namespace}/${group.name}`;
  const search = $("search").value.trim().toLowerCase();
  // Names have no other characters: such a search finds nothing, and needs no request.
  return /^[a-z0-9./-]{1,256}$/.test(search) ? `events?search=${search}` : "events";
}

function close() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

function connect() {
  close();
  source = new EventSource(url());
  source.addEventListener("message", (event) => {
    received();
    state = JSON.parse(event.data);
    draw();
  });
  source.addEventListener("alive", received);
  // The stream ends after it, and is opened again later.
  let isFull = false;
  source.addEventListener("full", (event) => {
    isFull = true;
    full = event.data;
    showConnection();
  });
  source.addEventListener("error", () => {
    if (!isFull) full = "";
    disconnected();
    close();
    retry = setTimeout(connect, delay);
    delay = Math.min(delay * 2, 4000);
  });
}

function disconnected() {
  if (connected) lostAt = Date.now();
  connected = false;
}

function received() {
  lastEventAt = Date.now();
  connected = true;
  full = "";
  delay = 250;
  showConnection();
}

/** Shows if the state is current. */
function showConnection() {
  const lost = !connected && Date.now() - lostAt > BLINK;
  $("full").hidden = connected || !full;
  say($("full-why"), full);
  $("lost").hidden = !lost || Boolean(full);
  document.body.classList.toggle("stale", lost);
  say($("live"), connected ? "● live" : full ? "○ no room" : lost ? "○ not connected" : "○ connecting");
}

function draw() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(() => {
    if (!state) return;
    const group = route();
    say($("replica"), state.replica);
    say($("forward"), forward("deployment/lockstep-control-plane"));
    $("follower").hidden = state.leads;
    $("groups").hidden = !state.leads || group !== null;
    $("group").hidden = !state.leads || group === null;
    document.title = group ? `${group.namespace}/${group.name} - Lockstep` : "Lockstep";
    if (!state.leads) follower();
    else if (group && state.restarts) showGroup(group, state);
    else if (!group && state.groups) showGroups(state);
  });
}

const forward = (to) => `kubectl -n ${state?.namespace ?? "lockstep-system"} port-forward ${to} ${state?.port ?? location.port}`;

function follower() {
  const other = state.leader && state.leader !== state.replica ? state.leader : null;
  const parts = other
    ? [html("strong", {}, `${state.replica} does not lead, ${other} does.`), " It shows all groups: ", html("code", {}, forward(`pod/${other}`))]
    : [html("strong", {}, `${state.replica} does not lead yet.`), " No other replica is known to lead. This page continues by itself once this replica leads."];
  const banner = $("follower");
  const text = parts.map((part) => part.textContent ?? part).join("");
  // Replaced only if it has changed, since screen readers read it out.
  if (banner.textContent !== text) banner.replaceChildren(...parts);
}

/** Shows another view. */
function go() {
  state = null;
  delay = 250;
  connect();
}

addEventListener("hashchange", () => {
  go();
  scrollTo(0, 0);
});
let typing = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(go, 150);
});
// Browsers allow six connections, so hidden pages have none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
  } else {
    // The connection was closed on purpose, and is not shown as lost.
    connected = false;
    lostAt = Date.now();
    connect();
  }
});
addEventListener("resize", draw);
addEventListener("redraw", draw);
setInterval(() => {
  tick();
  if (document.hidden) return;
  if (connected && Date.now() - lastEventAt > SILENCE) {
    disconnected();
    connect();
  }
  showConnection();
}, 500);
connect();
