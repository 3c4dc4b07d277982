// The burn page: total cost, rate, states over time, waterfall, teams, and findings.

import {ask} from "../api.js";
import {evidence, heldTile, measured, overTime, rateTile, shareTile, statesTable, sum, wastedTile} from "../burned.js";
import {chart, color, plain} from "../chart.js";
import {h, link, nothing, section, state, tile} from "../dom.js";
import {finding} from "../finding.js";
import {hours, number, share, span, usdMicro, useZone} from "../format.js";
import {later} from "../parts.js";
import {windowOf, withWindow} from "../place.js";
import {table} from "../table.js";

const MAX_FINDINGS = 8;
const LAST = "12h"; // the server's default

export async function show(place) {
  const burn = await ask("burn", place);
  useZone(burn.timezone);
  if (!burn.total.gpu_ms) return empty(burn, place);
  const why = ask("why", place);
  return [headline(burn, why, place), overTime(burn, place), h("div.pair", {}, waterfall(burn, place), treemap(burn, place)), findings(why, place)];
}

function empty(burn, place) {
  return [h("h1", {"data-short": "Burn"}, "No GPU time"), h("p.lede", {}, span(burn.window), `, ${burn.timezone}.`),
    nothing("No workload held a GPU in this time range. ", link(place.href(withWindow({all: "1"})), "Show all time"))];
}

function headline(burn, why, place) {
  const {key, format} = measured(burn.total);
  const whole = !place.isLimited; // otherwise free GPUs are not counted, and every GPU that is counted is held
  const total = burn.total[key], waste = sum(burn.states, "waste", key);
  const held = burn.total.gpu_ms - sum(burn.states, "platform", "gpu_ms");
  const train = burn.states.find((row) => row.state === "train")?.gpu_ms ?? 0;
  return [
    h("h1", {"data-short": "Burn"}, h("b", {}, format(total)), " burned, ", h("em", {}, format(waste)), " wasted"),
    h("p.lede", {}, span(burn.window), `, ${burn.timezone}. ${number(Math.round(burn.total.gpu_ms / 3.6e6))} GPU-hours`,
      burn.total.kwh ? `, ${number(burn.total.kwh)} kWh` : "", ". ",
      burn.origin ? h("span.badge", {}, burn.origin) : null, " ", burn.prices_assumed ? h("span.badge", {title: "From the bundled price list. `pyrometer prices` shows it."}, "list prices") : null),
    burn.total.unpriced_gpu_ms ? h("p.note", {}, key === "gpu_ms" ? "No GPU has a price, so all amounts and shares are GPU time." : `${hours(burn.total.unpriced_gpu_ms / 3.6e6)} GPU-hours have no price and are not included in dollars.`) : null,
    h("dl.tiles", {},
      rateTile(burn), wastedTile(burn, why, "explained"), heldTile(burn, whole),
      tile("Goodput", share(train, held), "share of held GPU time spent training"),
      whole ? shareTile("Free or broken", sum(burn.states, "platform", key), burn.total) : null),
    evidence(burn),
  ];
}

function waterfall(burn, place) {
  const {key, of, format, unit} = measured(burn.total);
  const total = burn.total[key] ?? 0;
  const steps = [["total cost", total, "absolute", "ink"]];
  for (const family of ["platform", "unknown", "waste", "overhead"].filter((name) => name !== "platform" || !place.isLimited || sum(burn.states, name, key))) steps.push([family, -sum(burn.states, family, key), "relative", `f-${family}`]);
  const others = burn.states.filter((row) => row.family === "useful" && row.state !== "train").reduce((all, row) => all + (row[key] ?? 0), 0);
  steps.push(["other useful", -others, "relative", "s-active"], ["training", total, "total", "s-train"]);
  const ends = [];
  let level = 0;
  for (const [name, value, kind] of steps) {
    const from = kind === "relative" ? level : 0;
    level = kind === "relative" ? level + value : kind === "total" ? level : value;
    ends.push([Math.min(from, level), Math.abs((kind === "relative" ? value : level))]);
  }
  const sizes = ends.map(([, size]) => size);
  const drawn = chart("waterfall", {
    label: `From total cost to useful training: ${steps.map(([name], at) => `${name} ${format(sizes[at])}`).join(", ")}.`, height: 300,
    traces: [{
      type: "bar", x: steps.map(([name]) => name), y: sizes.map(of), base: ends.map(([from]) => of(from)), marker: {color: steps.map(([, , , name]) => color(name))},
      text: sizes.map(format), textposition: "outside", cliponaxis: false, hovertemplate: "%{x}: %{text}<extra></extra>", textfont: {color: color("--ink")},
    }],
    layout: {showlegend: false, bargap: 0.28, margin: {t: 22}, xaxis: {fixedrange: true, tickangle: innerWidth < 700 ? -40 : 0}, yaxis: {tickprefix: unit, fixedrange: true, rangemode: "tozero", nticks: 5}},
  });
  return section("From total cost to useful training", null, drawn, h("details.numbers", {}, h("summary", {}, "By state"), statesTable(burn)));
}

function treemap(burn, place) {
  const {key, of, format} = measured(burn.total);
  const shown = Object.keys(windowOf(place)).length ? {} : {last: LAST}; // a link shows the amount that it was clicked on
  const rows = burn.experiments.filter((row) => (row[key] ?? 0) > 0);
  if (!rows.length) return section("Teams and experiments", null, nothing("No workload held a GPU."));
  const ids = ["all"], labels = ["all teams"], parents = [""], values = [0], wasted = [0];
  const add = (id, label, parent, value, waste) => { ids.push(id); labels.push(plain(label)); parents.push(parent); values.push(value); wasted.push(waste); };
  for (const team of burn.teams) {
    const own = rows.filter((row) => row.team === team.team);
    if (!own.length) continue;
    const waste = key === "usd_micro" ? "waste_usd_micro" : "waste_gpu_ms";
    add(`team ${team.team}`, team.team ?? "no team", "all", own.reduce((all, row) => all + row[key], 0), own.reduce((all, row) => all + (row[waste] ?? 0), 0));
    for (const row of own) add(`experiment ${row.team} ${row.experiment}`, row.experiment ?? (row.team === "platform" ? "free or broken" : "no experiment"), `team ${team.team}`, row[key], row[waste] ?? 0);
  }
  values[0] = parents.reduce((all, parent, at) => (parent === "all" ? all + values[at] : all), 0);
  wasted[0] = parents.reduce((all, parent, at) => (parent === "all" ? all + wasted[at] : all), 0);
  const shares = values.map((value, at) => (value ? wasted[at] / value : 0));
  const drawn = chart("who", {
    label: `Teams and experiments by cost: ${burn.teams.slice(0, 8).map((team) => `${team.team} ${format(team[key] ?? 0)}`).join(", ")}.`, height: 300,
    traces: [{
      type: "treemap", ids, labels, parents, values: values.map(of), branchvalues: "total", marker: {colors: ids.map((id, at) => mixed(id, shares[at])), line: {width: 1.5, color: color("--paper")}},
      text: values.map((value, at) => `${format(value)}<br>${share(wasted[at], value)} wasted`), textinfo: "label+text", hovertemplate: "%{label}<br>%{text}<extra></extra>", tiling: {pad: 2}, pathbar: {visible: true, thickness: 20},
      textfont: {color: ids.map((id) => (id === "all" ? color("--ink") : "#fff"))}, maxdepth: 3,
    }],
    layout: {margin: {l: 0, r: 0, t: 22, b: 0}},
    table: () => table({caption: "Teams and experiments", columns: [
      {title: "team", cell: (row) => (row.team && row.team !== "platform" ? link(place.href({team: row.team}), row.team) : row.team ?? "–")},
      {title: "experiment", cell: (row) => (row.experiment ? link(place.to("/experiment", {...shown, experiment: row.experiment}), row.experiment) : "–")},
      {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_hours)}, {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)},
      {title: "wasted", number: true, cell: (row) => usdMicro(row.waste_usd_micro)}], rows: burn.experiments}),
  });
  return section("Teams and experiments", "by cost; red is wasted; click to open", drawn);
}

/** From green (no waste) to red (at least half wasted). Free GPUs are gray. White text is readable on all of them. */
function mixed(id, wasted) {
  if (id === "all") return color("--track");
  if (id.startsWith("team platform") || id.startsWith("experiment platform ")) return color("s-unhealthy");
  const [from, to] = [[31, 110, 84], [176, 28, 54]], part = Math.min(wasted / 0.5, 1);
  return `rgb(${from.map((value, at) => Math.round(value + (to[at] - value) * part)).join(",")})`;
}

let met; // the finding of the link, which is scrolled to once

function findings(why, place) {
  return section("Findings", "causes of waste, most expensive first", later("findings", why, (answer) => {
    if (!answer.findings.length) return nothing("No waste with an identifiable cause in this time range.");
    const linked = answer.findings.find((one) => `#finding-${one.id}` === location.hash)?.id;
    const all = place.get("findings") === "all" || answer.findings.slice(MAX_FINDINGS).some((one) => one.id === linked);
    if (linked && linked !== met) {
      met = linked;
      setTimeout(() => document.getElementById(`finding-${linked}`)?.scrollIntoView({block: "center"}));
    }
    const shown = all ? answer.findings : answer.findings.slice(0, MAX_FINDINGS);
    const left = answer.findings.length - shown.length;
    return [
      h("ul.findings", {}, shown.map((one, at) => h("li", {}, finding(one, place, linked ? one.id === linked : at === 0)))),
      left > 0 ? h("p.more", {}, link(place.href({findings: "all"}), `Show ${left} more`)) : null,
      answer.saved_if_caught.sentence ? h("p.lede", {}, answer.saved_if_caught.sentence) : null,
      answer.unexplained.length ? h("p.lede", {}, "No finding explains ", answer.unexplained.slice(0, 3).map((row, at) => [at ? ", " : "", usdMicro(row.usd_micro), " of ", state(row.state)]), ".") : null,
    ];
  }, "Looking for causes…"));
}
