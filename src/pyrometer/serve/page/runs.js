// Parts that the pages of one run share.

import {ask} from "./api.js";
import {h, link, nothing} from "./dom.js";
import {windowOf, withWindow} from "./place.js";

/** The tabs of a run. */
export function runTabs(place, here) {
  const run = place.get("run");
  const pages = [["/run", "Over time"], ["/step", "Steps"], ["/lineage", "Lineage"]];
  return h("div.tabs", {role: "navigation", "aria-label": "Pages of this run"}, pages.map(([path, name]) => h("a", {href: place.to(path, {run}), "aria-current": path === here ? "page" : null}, name)));
}

/** Whether the run is outside of the chosen time range. */
export async function isOutside(place) {
  if (!Object.keys(windowOf(place)).length || place.get("all")) return false;
  const ran = async (more) => (await ask("runs", place, {limit: 10_000, ...more})).rows.some((row) => row.run === place.get("run"));
  return !(await ran({})) && ran(withWindow({all: "1"}));
}

export const outside = (place) => [
  h("p.crumbs", {}, link(place.to("/run"), "Runs"), h("span", {}, `› ${place.get("run")}`)), h("h1", {}, place.get("run")),
  nothing("This run did not run in this time range. ", link(place.href(withWindow({})), "Show all time")),
];
