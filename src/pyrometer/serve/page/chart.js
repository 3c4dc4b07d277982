// Charts with plotly in the page's colors. A redrawn chart keeps its element, zoom and selection.

import {h} from "./dom.js";

let library = null;
const kept = new Map();

/**
 * Plotly, loaded when the first chart needs it. Parsing it blocks the browser for a second the first time,
 * so figures and tables are painted before.
 */
function plotly() {
  library ??= new Promise((done, failed) => {
    const script = h("script", {src: document.getElementById("plotly").href});
    script.onload = () => done(window.Plotly);
    script.onerror = () => failed(new Error("The chart library could not be loaded."));
    requestAnimationFrame(() => setTimeout(() => document.head.append(script)));
  });
  return library;
}

/** The current color of a CSS class or variable. */
export function color(name) {
  const probe = h("i", name.startsWith("--") ? {style: {color: `var(${name})`}} : {class: name, style: {color: "var(--c)"}});
  probe.hidden = true;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const HUES = ["#3f86bd", "#dd6b4d", "#2f9a72", "#b58bc9", "#d9a441", "#d25f93", "#6cb592", "#8663bb", "#b8503f", "#9cc7e0"];

/** The color at an index, for series that are not states. */
export const hue = (place) => HUES[place % HUES.length];

/** Escapes a name: charts interpret some markup. */
export const plain = (name) => String(name).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** A color with an opacity. */
export const faded = (name, opacity) => color(name).replace(/^rgb\((.*)\)$/, `rgba($1, ${opacity})`);

const CONFIG = {displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset", scrollZoom: false};

function looks(height) {
  const soft = color("--soft"), ink = color("--ink"), line = color("--line");
  return {
    height, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: soft},
    margin: {l: 56, r: 12, t: 8, b: 32}, hoverlabel: {bgcolor: color("--card"), bordercolor: line, font: {color: ink, size: 12}, align: "left"},
    axis: {separatethousands: true, gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, fixedrange: false, tickfont: {size: 12}},
  };
}

/** Merges plain objects. Later ones win. */
function merged(...objects) {
  const all = {};
  for (const object of objects) {
    for (const [key, value] of Object.entries(object ?? {})) {
      const plain = value && typeof value === "object" && !Array.isArray(value);
      all[key] = plain ? merged(typeof all[key] === "object" ? all[key] : {}, value) : value;
    }
  }
  return all;
}

/**
 * A chart. `label` is its text for screen readers, `table` has the same numbers.
 * `on` has listeners by the names of plotly's events.
 */
export function chart(key, {label, traces, layout = {}, height = 300, on = {}, table = null, config = {}}) {
  let figure = kept.get(key);
  if (!figure) {
    figure = {plot: h("div.plot", {style: {height: `${height}px`}}), listening: {}, drawn: Promise.resolve()};
    kept.set(key, figure);
  }
  const {plot} = figure;
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", label);
  plot.style.height = `${height}px`;
  const {axis, ...base} = looks(height);
  const axes = Object.fromEntries(["xaxis", "yaxis", ...Object.keys(layout).filter((name) => /^[xy]axis\d+$/.test(name))].map((name) => [name, axis]));
  const whole = merged(base, axes, {uirevision: key}, layout);
  figure.drawn = figure.drawn.then(plotly).then(async (library) => {
    await attached(plot);
    if (!plot.isConnected) return;
    await library.react(plot, traces, whole, {...CONFIG, ...config});
    for (const [name, listener] of Object.entries(on)) {
      if (!figure.listening[name]) plot.on(name, (event) => figure.listening[name](event));
      figure.listening[name] = listener;
    }
  }).catch((error) => plot.replaceChildren(h("p.nothing", {}, error.message)));
  return h("figure.chart", {}, plot, table ? h("details.numbers", {}, h("summary", {}, "As a table"), lazily(table)) : null);
}

/** Adds marks to a chart after it was drawn. */
export function mark(key, shapes, annotations) {
  const figure = kept.get(key);
  figure?.drawn.then(() => figure.plot.isConnected && window.Plotly.relayout(figure.plot, {shapes: [...(figure.plot.layout.shapes ?? []), ...shapes], annotations}));
}

/** Zooms a second chart to the time range of the first one. */
export function follow(key, {from, to}) {
  const {plot} = kept.get(key) ?? {};
  if (!plot?.isConnected || !plot.layout) return;
  const there = (plot.layout.xaxis.range ?? []).map((end) => Date.parse(end));
  if (from === null) {
    if (!plot.layout.xaxis.autorange) window.Plotly.relayout(plot, {"xaxis.autorange": true});
  } else if (there[0] !== Date.parse(from) || there[1] !== Date.parse(to)) window.Plotly.relayout(plot, {"xaxis.range": [from, to]});
}

/** Waits until a chart is in the page, because it needs its width. */
function attached(element) {
  return element.isConnected ? null : new Promise((done) => requestAnimationFrame(() => done()));
}

/** A table that is built when the user opens it. */
function lazily(make) {
  const place = h("div.scroll");
  const opened = new MutationObserver(() => {
    if (place.parentElement?.open && !place.firstChild) place.append(make());
  });
  queueMicrotask(() => place.parentElement && opened.observe(place.parentElement, {attributes: true}));
  return place;
}

/** Forgets the charts of the previous page. */
export function forget() {
  for (const {plot} of kept.values()) if (!plot.isConnected) window.Plotly?.purge(plot);
  for (const [key, {plot}] of kept) if (!plot.isConnected) kept.delete(key);
}

/** The time range that the user selected on a chart. Its ends are null after a reset. */
export function dragged(event) {
  if (event["xaxis.autorange"]) return {from: null, to: null};
  const from = event["xaxis.range[0]"] ?? event["xaxis.range"]?.[0], to = event["xaxis.range[1]"] ?? event["xaxis.range"]?.[1];
  return from === undefined ? null : {from, to};
}
