// What burned: the total and the rate, where it went over time, from bill to useful training, who, and why.

import {ask} from "../api.js";
import {chart, colour, dragged, plain} from "../chart.js";
import {h, link, nothing, section, state, tile} from "../dom.js";
import {finding} from "../finding.js";
import {hours, number, share, span, unwall, usd, usdMicro, useZone, wall, when} from "../format.js";
import {later} from "../parts.js";
import {go, withWindow} from "../place.js";
import {STATES} from "../states.js";
import {table} from "../table.js";

const MOST_FINDINGS = 8;

export async function show(place) {
  const burn = await ask("burn", place);
  useZone(burn.timezone);
  const why = ask("why", place);
  return [headline(burn), overTime(burn, place), h("div.pair", {}, waterfall(burn), treemap(burn, place)), findings(why, place)];
}

const sum = (rows, family, key = "usd_micro") => rows.filter((row) => row.family === family).reduce((all, row) => all + (row[key] ?? 0), 0);

/** What is counted: dollars where anything is priced, else GPU-hours. */
function measured(burn) {
  const priced = burn.total.usd_micro !== null;
  return priced ? {key: "usd_micro", of: (value) => value / 1e6, said: usd, unit: "$"} : {key: "gpu_ms", of: (value) => value / 3.6e6, said: (value) => `${hours(value)} GPU-h`, unit: ""};
}

function headline(burn) {
  const {key, of, said} = measured(burn);
  const total = burn.total[key], waste = sum(burn.states, "waste", key);
  const held = burn.total.gpu_ms - sum(burn.states, "platform", "gpu_ms");
  const train = burn.states.find((row) => row.state === "train")?.gpu_ms ?? 0;
  const rate = burn.rate;
  return [
    h("h1", {"data-short": "Burn"}, h("b", {}, said(of(total))), " burned, ", h("em", {}, said(of(waste))), ` of it wasted`),
    h("p.lede", {}, span(burn.window), `, ${burn.timezone}. ${number(Math.round(burn.total.gpu_ms / 3.6e6))} GPU-hours`,
      burn.total.kwh ? `, ${number(burn.total.kwh)} kWh` : "", ". ",
      burn.origin ? h("span.badge", {}, burn.origin) : null, " ", burn.prices_assumed ? h("span.badge", {title: "From the bundled list: `pyrometer prices` says which"}, "list prices") : null),
    burn.total.unpriced_gpu_ms ? h("p.note", {}, `${hours(burn.total.unpriced_gpu_ms / 3.6e6)} GPU-hours have no price and are not in the dollars.`) : null,
    h("dl.tiles", {},
      tile("Now", rate?.usd_per_hour === null || !rate ? "–" : `${usd(rate.usd_per_hour)}/h`, rate ? `${usd(rate.wasted_usd_per_hour)}/h of it wasted` : null),
      tile("Wasted", share(waste, total), said(of(waste)), total > 0 && waste / total > 0.1),
      tile("GPUs held", rate ? `${number(rate.held_gpus)} of ${number(rate.gpus)}` : "–", "in the last minutes"),
      tile("Goodput", share(train, held), "training, of the time that GPUs were held"),
      tile("Free or broken", share(sum(burn.states, "platform", "gpu_ms"), burn.total.gpu_ms), said(of(sum(burn.states, "platform", key))))),
  ];
}

function overTime(burn, place) {
  const {key, of} = measured(burn);
  const inDollars = key === "usd_micro" && place.get("count") !== "gpus";
  const {rows, bucket_ms: bucket} = burn.timeline;
  if (!rows.length) return section("Over time", null, nothing("Nothing is accounted for in this time."));
  const used = STATES.filter(({name}) => rows.some((row) => row.gpu_ms[name]));
  const amount = (row, name) => (inDollars ? (row.usd_micro?.[name] ?? 0) / 1e6 / (bucket / 3.6e6) : (row.gpu_ms[name] ?? 0) / bucket);
  const x = rows.map((row) => wall(row.from_ms));
  const traces = used.map(({name}) => ({
    type: "scatter", mode: "lines", stackgroup: "all", name, x, y: rows.map((row) => amount(row, name)), line: {width: 0.6, color: colour("--paper"), shape: "hv"},
    fillcolor: colour(`s-${name}`), hovertemplate: inDollars ? "%{y:$,.0f}/h" : "%{y:,.1f} GPUs",
  }));
  const choice = h("span.switch.beside", {}, [["dollars", "$/h"], ["gpus", "GPUs"]].map(([value, text]) =>
    h("a", {href: place.href({count: value === "dollars" ? null : value}), "aria-current": (value === "dollars") === inDollars ? "true" : null}, text)));
  const drawn = chart("burn over time", {
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
  const heading = section("Over time", "drag to look closer", drawn,
    h("ul.legend", {}, used.map(({name, meaning}) => h("li", {title: meaning}, state(name)))));
  heading.querySelector("h2").append(key === "usd_micro" ? choice : "");
  return heading;
}

function waterfall(burn) {
  const {key, of, said, unit} = measured(burn);
  const total = of(burn.total[key] ?? 0);
  const steps = [["the bill", total, "absolute", "ink"]];
  for (const family of ["platform", "unknown", "waste", "overhead"]) steps.push([family, -of(sum(burn.states, family, key)), "relative", `f-${family}`]);
  const others = burn.states.filter((row) => row.family === "useful" && row.state !== "train").reduce((all, row) => all + of(row[key] ?? 0), 0);
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
    label: `From the bill to useful training: ${steps.map(([name], at) => `${name} ${said(sizes[at])}`).join(", ")}.`, height: 300,
    traces: [{
      type: "bar", x: steps.map(([name]) => name), y: sizes, base: ends.map(([from]) => from), marker: {color: steps.map(([, , , name]) => colour(name))},
      text: sizes.map(said), textposition: "outside", cliponaxis: false, hovertemplate: "%{x}: %{text}<extra></extra>", textfont: {color: colour("--ink")},
    }],
    layout: {showlegend: false, bargap: 0.28, margin: {t: 22}, xaxis: {fixedrange: true, tickangle: innerWidth < 700 ? -40 : 0}, yaxis: {tickprefix: unit, fixedrange: true, rangemode: "tozero", nticks: 5}},
  });
  return section("From the bill to useful training", null, drawn, h("div", {}, statesTable(burn)));
}

function statesTable(burn) {
  const {key, of, said} = measured(burn);
  return h("details.numbers", {}, h("summary", {}, "By state"), table({caption: "By state", columns: [
    {title: "state", cell: (row) => state(row.state)}, {title: "family", cell: (row) => row.family},
    {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_ms / 3.6e6)}, {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)},
    {title: "share", number: true, cell: (row) => share(row[key], burn.total[key])}], rows: burn.states}));
}

function treemap(burn, place) {
  const {key, of, said} = measured(burn);
  const rows = burn.experiments.filter((row) => (row[key] ?? 0) > 0);
  if (!rows.length) return section("Who", null, nothing("Nobody held anything."));
  const ids = ["all"], labels = ["everybody"], parents = [""], values = [0], wasted = [0];
  const add = (id, label, parent, value, waste) => { ids.push(id); labels.push(plain(label)); parents.push(parent); values.push(value); wasted.push(waste); };
  for (const team of burn.teams) {
    const own = rows.filter((row) => row.team === team.team);
    if (!own.length) continue;
    const waste = key === "usd_micro" ? "waste_usd_micro" : "waste_gpu_ms";
    add(`team ${team.team}`, team.team ?? "no team", "all", of(own.reduce((all, row) => all + row[key], 0)), of(own.reduce((all, row) => all + (row[waste] ?? 0), 0)));
    for (const row of own) add(`experiment ${row.team} ${row.experiment}`, row.experiment ?? (row.team === "platform" ? "free or broken" : "no experiment"), `team ${team.team}`, of(row[key]), of(row[waste] ?? 0));
  }
  values[0] = parents.reduce((all, parent, at) => (parent === "all" ? all + values[at] : all), 0);
  wasted[0] = parents.reduce((all, parent, at) => (parent === "all" ? all + wasted[at] : all), 0);
  const shares = values.map((value, at) => (value ? wasted[at] / value : 0));
  const drawn = chart("who", {
    label: `Teams and experiments by what they burned: ${burn.teams.slice(0, 8).map((team) => `${team.team} ${said(of(team[key] ?? 0))}`).join(", ")}.`, height: 300,
    traces: [{
      type: "treemap", ids, labels, parents, values, branchvalues: "total", marker: {colors: ids.map((id, at) => mixed(id, shares[at])), line: {width: 1.5, color: colour("--paper")}},
      text: values.map((value, at) => `${said(value)}<br>${share(wasted[at], value)} wasted`), textinfo: "label+text", hovertemplate: "%{label}<br>%{text}<extra></extra>", tiling: {pad: 2}, pathbar: {visible: true, thickness: 20},
      textfont: {color: ids.map((id) => (id === "all" ? colour("--ink") : "#fff"))}, maxdepth: 3,
    }],
    layout: {margin: {l: 0, r: 0, t: 22, b: 0}},
    table: () => table({caption: "Teams and experiments", columns: [
      {title: "team", cell: (row) => (row.team && row.team !== "platform" ? link(place.href({team: row.team}), row.team) : row.team ?? "–")},
      {title: "experiment", cell: (row) => (row.experiment ? link(place.to("/worth", {experiment: row.experiment}), row.experiment) : "–")},
      {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_hours)}, {title: "cost", number: true, cell: (row) => usd(row.usd)},
      {title: "wasted", number: true, cell: (row) => usd(row.waste_usd)}], rows: burn.experiments}),
  });
  return section("Who", "by what they burned; red: wasted. Click to go deeper", drawn);
}

/** Green where all was used well, red where half of it was wasted; what nobody held is grey. White text can be read on all of it. */
function mixed(id, wasted) {
  if (id === "all") return colour("--track");
  if (id.startsWith("team platform") || id.startsWith("experiment platform ")) return colour("s-unhealthy");
  const [from, to] = [[31, 110, 84], [176, 28, 54]], part = Math.min(wasted / 0.5, 1);
  return `rgb(${from.map((value, at) => Math.round(value + (to[at] - value) * part)).join(",")})`;
}

let met; // the finding that a message has led to: it is shown once, and then one may look elsewhere

function findings(why, place) {
  return section("Why", "what was wasted, most expensive first", later("findings", why, (answer) => {
    if (!answer.findings.length) return nothing("No waste with a cause was found in this time.");
    const asked = answer.findings.find((one) => `#finding-${one.id}` === location.hash)?.id;
    const all = place.get("findings") === "all" || answer.findings.slice(MOST_FINDINGS).some((one) => one.id === asked);
    if (asked && asked !== met) {
      met = asked;
      setTimeout(() => document.getElementById(`finding-${asked}`)?.scrollIntoView({block: "center"}));
    }
    const shown = all ? answer.findings : answer.findings.slice(0, MOST_FINDINGS);
    const left = answer.findings.length - shown.length;
    return [
      h("ul.findings", {}, shown.map((one, at) => h("li", {}, finding(one, place, asked ? one.id === asked : at === 0)))),
      left > 0 ? h("p.more", {}, link(place.href({findings: "all"}), `Show ${left} more`)) : null,
      answer.saved_if_caught.sentence ? h("p.lede", {}, answer.saved_if_caught.sentence) : null,
      answer.unexplained.length ? h("p.lede", {}, "No finding explains ", answer.unexplained.slice(0, 3).map((row, at) => [at ? ", " : "", usdMicro(row.usd_micro), " of ", state(row.state)]), ".") : null,
    ];
  }, "Looking for causes…"));
}
