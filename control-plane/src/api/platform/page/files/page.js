// The connection, and which of the two views is shown. Each event is a whole state: whatever was missed, the next one says all.

import { $, html, say, tick } from "./dom.js";
import { showGroups } from "./list.js";
import { showGroup } from "./group.js";

/** The server says something every 5 seconds. */
const SILENCE = 13000;
/** A connection that is back within this time was never lost to people. */
const BLINK = 1500;

let source = null;
let state = null;
let heardAt = Date.now();
let connected = false;
/** Why the server has no room for this page, where it has none. */
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
  // Nothing else is in a name. What has something else in it finds nothing, which the server need not be asked.
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
    heard();
    state = JSON.parse(event.data);
    draw();
  });
  source.addEventListener("alive", heard);
  // The stream ends with it, and is tried again.
  let said = false;
  source.addEventListener("full", (event) => {
    said = true;
    full = event.data;
    tell();
  });
  source.addEventListener("error", () => {
    if (!said) full = "";
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

function heard() {
  heardAt = Date.now();
  connected = true;
  full = "";
  delay = 250;
  tell();
}

/** Says whether what is shown is the present. */
function tell() {
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
  const says = other
    ? [html("strong", {}, `${state.replica} does not lead, ${other} does.`), " It shows all groups: ", html("code", {}, forward(`pod/${other}`))]
    : [html("strong", {}, `${state.replica} does not lead yet.`), " No other replica is known to lead. This page goes on by itself when one does here."];
  const banner = $("follower");
  const text = says.map((part) => part.textContent ?? part).join("");
  // Said anew only where it has changed: it is read out.
  if (banner.textContent !== text) banner.replaceChildren(...says);
}

/** Looks at something else. */
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
// Browsers allow six connections: pages that nobody sees have none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
  } else {
    // Nothing was lost: it was given up.
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
  if (connected && Date.now() - heardAt > SILENCE) {
    disconnected();
    connect();
  }
  tell();
}, 500);
connect();
