// Creates elements. Names from a cluster become text nodes and attributes, never markup.

/** An element: `h("a.button", {href: "/"}, "Home")`. Properties that begin with `on` are listeners; null children are left out. */
export function h(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag || "div");
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, one]) => element.style.setProperty(key, one));
    else if (name === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = new Set(["svg", "g", "path", "line", "rect", "circle", "polyline", "title", "text"]);

/** A small curve of numbers, as wide as its cell. */
export function spark(values, label) {
  const shown = values.map((value, at) => [at, value]).filter(([, value]) => value !== null);
  if (shown.length < 2) return h("span.soft", {}, "–");
  const low = Math.min(...shown.map(([, value]) => value)), high = Math.max(...shown.map(([, value]) => value));
  const points = shown.map(([at, value]) => `${(at / (values.length - 1)) * 96 + 2},${high === low ? 12 : 22 - ((value - low) / (high - low)) * 20}`);
  const [x, y] = points.at(-1).split(",");
  return h("svg.spark", {viewBox: "0 0 100 24", role: "img", "aria-label": label},
    h("polyline", {points: points.join(" ")}), h("circle", {cx: x, cy: y, r: 2.2}));
}

/** A state with its color. */
export const state = (name) => h("span.state", {}, h("span.key", {class: `s-${name}`}), name);

/** A link within the page. */
export const link = (href, ...children) => h("a", {href}, ...children);

/** A section with a heading and a hint next to it. */
export function section(title, hint, ...children) {
  const id = `s-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section", {"aria-labelledby": id}, h("h2", {id}, title, hint ? h("small", {}, hint) : null), ...children);
}

/** A figure with a name and a hint. */
export const tile = (name, value, hint, alarming = false) =>
  h("div.tile", {class: alarming ? "alarming" : ""}, h("dt", {}, name), h("dd", {}, value, hint ? h("small", {}, hint) : null));

export const nothing = (text, ...more) => h("p.nothing", {}, text, ...more);
