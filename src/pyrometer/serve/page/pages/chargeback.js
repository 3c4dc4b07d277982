// The bill by team and experiment, for a month or any other time range, with downloads.

import {ask, fileOf} from "../api.js";
import {chart, color, hue as hueOf, plain} from "../chart.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {measured, shareTile} from "../burned.js";
import {exactUsd, hours, number, share, span, usdMicro} from "../format.js";
import {go, windowOf, withWindow} from "../place.js";
import {table} from "../table.js";

const LAST = "31d";

export async function show(place) {
  const windowed = Object.keys(windowOf(place)).length > 0;
  const at = windowed ? place : withLast(place);
  const [answer, byDay] = await Promise.all([ask("cost", at, {by: "team,experiment"}), ask("cost", at, {by: "day,team"})]);
  const total = answer.total;
  if (!answer.rows.length) return [h("h1", {}, "Chargeback"), months(place), nothing("No GPU time in this time range.")];
  return [
    h("h1", {"data-short": "Chargeback"}, h("b", {}, usdMicro(total.usd_micro)), " to charge"),
    h("p.lede", {}, span(answer.window), ". Rows add up to the total exactly.", booked(answer.books)), months(place),
    h("dl.tiles", {}, tile("GPU-hours", number(Math.round(total.gpu_hours)), null), tile("Teams", number(new Set(answer.rows.map((row) => row.team).filter((team) => team !== "platform")).size), null),
      platform(answer),
      tile("Unpriced", `${hours(total.unpriced_gpu_ms / 3.6e6)} h`, "not in any bill")),
    section("By day", null, days(byDay)),
    section("By team and experiment", null, files(at), sheet(answer, place)),
  ];
}

/** The basis of the amounts when months are closed. */
function booked(books) {
  if (books?.basis === "closed") return ` ${books.month} is closed and no longer changes.`;
  if (books?.basis === "open" && books.adjustments.usd_micro !== null) return ` ${usdMicro(books.adjustments.usd_micro)} adjusts closed months.`;
  return books?.closed_time ? " This time range includes closed months. The amounts are from the current ledger." : "";
}

/** The last 31 days, when no time range is chosen. */
const withLast = (place) => ({get: (name) => (name === "last" ? LAST : place.get(name)), signal: place.signal});

/** The cost of GPUs without a holder. A team's own bill has none. */
function platform({rows, total}) {
  const own = rows.filter((row) => row.team === "platform"), {key} = measured(total);
  return own.length ? shareTile("Paid by the platform", own.reduce((all, row) => all + (row[key] ?? 0), 0), total) : null;
}

function months(place) {
  return h("div.controls", {}, h("label", {}, "Month", h("input", {type: "month", id: "month", value: place.get("month") ?? "", onchange: (event) => go(place.href(withWindow({month: event.target.value || null})))})));
}

function files(place) {
  return h("p.controls", {}, "Download ", link(fileOf("csv", place, {by: "team,experiment,month"}), "CSV"), link(fileOf("focus", place), "FOCUS 1.2"), link(fileOf("focus", place, {as: "parquet"}), "FOCUS 1.2 (Parquet)"), link(fileOf("csv", place, {by: "day,team,experiment,workload"}), "CSV by day and workload"));
}

function days(answer) {
  const teams = [...new Set(answer.rows.map((row) => row.team))], names = [...new Set(answer.rows.map((row) => row.day))].sort();
  const priced = answer.total.usd_micro !== null;
  const value = new Map(answer.rows.map((row) => [`${row.day} ${row.team}`, priced ? (row.usd_micro ?? 0) / 1e6 : row.gpu_hours]));
  const hue = (team, at) => (team === "platform" ? color("f-platform") : hueOf(at));
  return chart("days", {
    label: `Cost per day by team, from ${names[0]} to ${names.at(-1)}.`, height: 260,
    traces: teams.map((team, at) => ({type: "bar", name: plain(team ?? "no team"), x: names, y: names.map((day) => value.get(`${day} ${team}`) ?? 0), marker: {color: hue(team, at)}, hovertemplate: priced ? "%{y:$,.2f}" : "%{y:,.1f} GPU-hours"})),
    layout: {barmode: "stack", hovermode: "x unified", bargap: 0.25, xaxis: {type: "category", fixedrange: true}, yaxis: {tickprefix: priced ? "$" : "", fixedrange: true}, legend: {orientation: "h", y: -0.2}},
    table: () => table({caption: "By day and team", columns: [{title: "day", cell: (row) => row.day}, {title: "team", cell: (row) => row.team ?? "–"}, {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_hours)}, {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)}], rows: answer.rows}),
  });
}

function sheet(answer, place) {
  const {key, basis} = measured(answer.total);
  const shown = Object.keys(windowOf(place)).length ? {} : {last: LAST}; // a link shows the amount that it was clicked on
  const whole = table({
    caption: "By team and experiment", rows: answer.rows, sort: place.get("sort") ?? "-usd", sorted: (sort) => go(place.href({sort}), {replace: true}), maxRows: 500,
    columns: [
      {name: "team", title: "team", value: (row) => row.team ?? "", cell: (row) => (row.team && row.team !== "platform" ? link(place.href({team: row.team}), row.team) : row.team ?? "no team")},
      {name: "experiment", title: "experiment", value: (row) => row.experiment ?? "", cell: (row) => (row.experiment ? h("span", {}, link(place.to("/experiment", {...shown, experiment: row.experiment}), row.experiment), row.adjusts ? h("span.soft", {}, ` adjusts ${row.adjusts}`) : null) : h("span.soft", {}, row.adjusts ? `adjusts ${row.adjusts}` : row.team === "platform" ? "free or broken" : "no experiment"))},
      {name: "hours", title: "GPU-hours", number: true, value: (row) => row.gpu_hours, cell: (row) => hours(row.gpu_hours)},
      {name: "usd", title: "cost", number: true, value: (row) => row.usd_micro, cell: (row) => exactUsd(row.usd_micro)},
      {name: "share", title: basis ? "share of GPU time" : "share", number: true, value: (row) => row[key], cell: (row) => share(row[key], answer.total[key])},
    ],
  });
  const foot = h("tfoot", {}, h("tr", {}, h("th", {scope: "row"}, "Total"), h("td", {}), h("td.n", {}, hours(answer.total.gpu_hours)),
    h("td.n", {}, exactUsd(answer.total.usd_micro)), h("td.n", {}, "100%")));
  whole.querySelector("table").append(foot);
  return whole;
}
