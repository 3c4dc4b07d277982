// What the pages of one run share.

import {h} from "./dom.js";

/** From one page of a run to the others. */
export function runTabs(place, here) {
  const run = place.get("run");
  const pages = [["/run", "Over time"], ["/step", "Steps"], ["/lineage", "Lineage"]];
  return h("div.tabs", {role: "navigation", "aria-label": "Of this run"}, pages.map(([path, name]) => h("a", {href: place.to(path, {run}), "aria-current": path === here ? "page" : null}, name)));
}
