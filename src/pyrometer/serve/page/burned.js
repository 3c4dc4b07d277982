// Tiles, chart and table of a `burn` answer, for the pages about cost.

import {chart, color, dragged} from "./chart.js";
import {h, nothing, section, state, tile} from "./dom.js";
import {minutesOf, momentOf} from "./freshness.js";
import {hours, number, share, unwall, usdMicro, wall, when} from "./format.js";
import {later} from "./parts.js";
import {go, withWindow} from "./place.js";
import {STATES} from "./states.js";
import {table} from "./table.js";

export const sum = (rows, family, key = "usd_micro") => rows.filter((row) => row.family === family).reduce((all, row) => all + (row[key] ?? 0), 0);

/**
 * The unit of an answer: dollars if anything is priced, GPU time otherwise. `format` writes an amount, `of` converts it for a chart.
 * A share next to an amount uses the same unit. `basis` names it when it is GPU time.
 */
export function measured(total) {
  const priced = total.usd_micro !== null;
  return priced
    ? {key: "usd_micro", of: (value) => value / 1e6, format: usdMicro, unit: "$", basis: null}
    : {key: "gpu_ms", of: (value) => value / 3.6e6, format: (value) => `${hours(value / 3.6e6)} GPU-h`, unit: "", basis: "of GPU time"};
}

/** The amount of a row and its share of the whole, as a tile. */
export function shareTile(name, amount, total, more = null, alarming = false) {
  const {key, format, basis} = measured(total);
  return tile(name, share(amount, total[key]), [[basis, format(amount)].filter(Boolean).join(" · "), more], alarming);
}

/** The waste, and once `why` has answered, the part that findings explain. */
export function wastedTile(burn, why, key) {
  const {key: unit, format} = measured(burn.total);
  const waste = sum(burn.states, "waste", unit);
  const split = waste ? later(key, why, ({waste: {explained, unexplained}}) => [`${format(explained[unit] ?? 0)} explained by findings, ${format(unexplained[unit] ?? 0)} unexplained`], "Looking for causes…") : null;
  return shareTile("Wasted", waste, burn.total, split, burn.total[unit] > 0 && waste / burn.total[unit] > 0.1);
}

/** Dollars per hour at the end of the time range. */
export function rateTile({rate, window}) {
  if (!rate.gpus) return tile(momentOf(rate.to, window), "–", "no GPUs held");
  return tile(momentOf(rate.to, window), rate.usd_micro_per_hour === null ? "–" : `${usdMicro(rate.usd_micro_per_hour)}/h`, rate.usd_micro_per_hour === null ? "no price" : `${usdMicro(rate.wasted_usd_micro_per_hour)}/h wasted`);
}

/** The GPUs held at that time. For the whole cluster, also the total. */
export const heldTile = ({rate}, whole) => tile(whole ? "GPUs held" : "GPUs", whole ? `${number(rate.held_gpus)} of ${number(rate.gpus)}` : number(rate.held_gpus), minutesOf(rate));

/** The share of GPU time with each kind of evidence. */
export function evidence({evidence: shares}) {
  const names = {kubernetes: "Kubernetes", gpu: "GPU telemetry", sdk: "training SDK"};
  return h("p.lede", {}, `Evidence, by share of GPU time: ${Object.entries(names).map(([kind, name]) => `${name} ${share(shares[kind] ?? 0, 1)}`).join(", ")}.`);
}

export function overTime(burn, place, key = "burn over time") {
  const {key: unit, of} = measured(burn.total);
  const inDollars = unit === "usd_micro" && place.get("count") !== "gpus";
  const {rows, bucket_ms: bucket} = burn.timeline;
  if (!rows.length) return section("Over time", null, nothing("No GPU time in this time range."));
  const used = STATES.filter(({name}) => rows.some((row) => row.gpu_ms[name]));
  const amount = (row, name) => (inDollars ? of(row.usd_micro?.[name] ?? 0) / (bucket / 3.6e6) : (row.gpu_ms[name] ?? 0) / bucket);
  const x = rows.map((row) => wall(row.from_ms));
  const traces = used.map(({name}) => ({
    type: "scatter", mode: "lines", stackgroup: "all", name, x, y: rows.map((row) => amount(row, name)), line: {width: 0.6, color: color("--paper"), shape: "hv"},
    fillcolor: color(`s-${name}`), hovertemplate: inDollars ? "%{y:$,.0f}/h" : "%{y:,.1f} GPUs",
  }));
  const choice = h("span.switch.beside", {}, [["dollars", "$/h"], ["gpus", "GPUs"]].map(([value, text]) =>
    h("a", {href: place.href({count: value === "dollars" ? null : value}), "aria-current": (value === "dollars") === inDollars ? "true" : null}, text)));
  const drawn = chart(key, {
    label: `${inDollars ? "Dollars per hour" : "GPUs"} by state over time, ${rows.length} points. ${used.map(({name}) => name).join(", ")}.`, traces, height: 320,
    layout: {showlegend: false, hovermode: "x unified", xaxis: {type: "date", showgrid: false}, yaxis: {tickprefix: inDollars ? "$" : "", rangemode: "tozero", fixedrange: true}, dragmode: "zoom"},
    on: {plotly_relayout: (event) => {
      const range = dragged(event);
      if (range?.from) go(place.href(withWindow({since: new Date(unwall(range.from)).toISOString(), until: new Date(unwall(range.to)).toISOString()})));
    }},
    table: () => table({caption: "States over time", columns: [
      {title: "from", cell: (row) => when(row.from_ms)},
      ...used.map(({name}) => ({title: name, number: true, cell: (row) => (inDollars ? usdMicro(row.usd_micro?.[name] ?? 0) : hours((row.gpu_ms[name] ?? 0) / 3.6e6))}))], rows}),
  });
  const heading = section("Over time", "drag to zoom", drawn,
    h("ul.legend", {}, used.map(({name, meaning}) => h("li", {title: meaning}, state(name)))));
  heading.querySelector("h2").append(unit === "usd_micro" ? choice : "");
  return heading;
}

/** All shares use the unit of the answer. */
export function statesTable({total, states}) {
  const {key, basis} = measured(total);
  return table({caption: "By state", columns: [
    {title: "state", cell: (row) => state(row.state)}, {title: "family", cell: (row) => row.family},
    {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_ms / 3.6e6)}, {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)},
    {title: basis ? "share of GPU time" : "share of cost", number: true, cell: (row) => share(row[key], total[key])}], rows: states});
}
