// The list of groups.

import { $, count, html, phase, say, spent, time } from "./dom.js";

/** The rows, by namespace and name, each with its content. */
const rows = new Map();

export function showGroups(state) {
  const search = $("search").value.trim();
  const known = /^[a-z0-9./-]*$/i.test(search);
  const groups = known ? state.groups : [];
  $("nothing").hidden = state.all !== 0;
  $("list").hidden = groups.length === 0;
  say($("found"), found(search, known ? state.found : 0, groups.length, state.all));
  const seen = new Set();
  const body = $("list").tBodies[0];
  groups.forEach((group, place) => {
    const key = `${group.namespace}/${group.name}`;
    seen.add(key);
    const content = JSON.stringify(group);
    let row = rows.get(key);
    if (row?.content !== content) {
      const fresh = { content, element: draw(key, group) };
      const focused = row?.element.contains(document.activeElement);
      row?.element.replaceWith(fresh.element);
      if (focused) fresh.element.querySelector("a").focus();
      rows.set(key, (row = fresh));
    }
    if (body.children[place] !== row.element) body.insertBefore(row.element, body.children[place] ?? null);
  });
  for (const [key, row] of rows) {
    if (!seen.has(key)) {
      row.element.remove();
      rows.delete(key);
    }
  }
}

function found(search, matches, shown, all) {
  if (all === 0) return "";
  const those = search ? `${matches} of ${all} found` : count(all, "JobSet");
  return shown < matches ? `${those}; ${shown} are shown, preferably those that are not in sync. Search for the rest.` : those;
}

function draw(key, group) {
  const cause = group.lastCause;
  const last = cause ? [time(cause.at), `${group.lastLevel ? `, by ${group.lastLevel}` : ""}: ${cause.message}`] : [html("span", { class: "faint" }, "none")];
  return html(
    "tr",
    {},
    html("td", {}, html("a", { href: `#/${group.namespace}/${group.name}` }, key)),
    html("td", {}, phase(group.phase)),
    html("td", { class: "number" }, `${group.workersUp} of ${group.workersExpected}`),
    html("td", { class: "number" }, `${group.generation}`),
    html("td", { class: "number" }, spent(group)),
    html("td", {}, ...last),
  );
}
