// Parts of a page that come later than the rest: what was there stays until the new is.

import {h} from "./dom.js";

const shown = new Map();
const newest = new WeakMap();
let used = new Set();

/** A page begins to be made. */
export function begin() {
  used = new Set();
}

/** A page has been made: what it has no use for is forgotten. */
export function settle() {
  for (const key of shown.keys()) if (!used.has(key)) shown.delete(key);
}

/** A place for something that is asked for now: `make` draws the answer, and says what is wrong if there is none. */
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
