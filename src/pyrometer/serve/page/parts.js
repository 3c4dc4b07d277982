// Parts of a page that load later. The old content stays until the new one is ready.

import {h} from "./dom.js";

const shown = new Map();
const newest = new WeakMap();
let used = new Set();

/** Starts a new page. */
export function begin() {
  used = new Set();
}

/** Forgets parts that the new page does not use. */
export function settle() {
  for (const key of shown.keys()) if (!used.has(key)) shown.delete(key);
}

/** A part whose data is being loaded. `make` draws the answer. An error is shown in its place. */
export function later(key, promise, make, waiting = "Loading…") {
  used.add(key);
  const place = shown.get(key) ?? h("div.part", {}, h("p.loading", {role: "status"}, waiting));
  shown.set(key, place);
  place.setAttribute("aria-busy", "true");
  newest.set(place, promise);
  const draw = (...nodes) => newest.get(place) === promise && place.replaceChildren(...nodes.flat(Infinity).filter(Boolean));
  promise.then((answer) => draw(make(answer)), (error) => {
    if (error.name !== "AbortError") draw(h("p.nothing", {role: "alert"}, error.message));
  }).catch((error) => {
    console.error(error);
    draw(h("p.nothing", {role: "alert"}, "This part could not be drawn."));
  }).finally(() => newest.get(place) === promise && place.removeAttribute("aria-busy"));
  return place;
}
