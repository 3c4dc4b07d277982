// Who owes what: by team and experiment, for a month or any other time; as files for those who book it.

import {ask, fileOf} from "../api.js";
import {chart, colour, hue as hueOf, plain} from "../chart.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {hours, number, share, span, usd, usdMicro} from "../format.js";
import {go, windowOf, withWindow} from "../place.js";
import {table} from "../table.js";

export async function show(place) {
  const windowed = Object.keys(windowOf(place)).length > 0;
  const at = windowed ? place : withLast(place);
  const [answer, byDay] = await Promise.all([ask("cost", at, {by: "team,experiment"}), ask("cost", at, {by: "day,team"})]);
  const total = answer.total;
  if (!answer.rows.length) return [h("h1", {}, "Chargeback"), months(place), nothing("Nothing is accounted for in this time.")];
  return [
    h("h1", {"data-short": "Chargeback"}, h("b", {}, usdMicro(total.usd_micro)), " to charge"),
    h("p.lede", {}, span(answer.window), ". Rows add up to the total, to the micro-dollar.", booked(answer.books)), months(place),
    h("dl.tiles", {}, tile("GPU-hours", number(Math.round(total.gpu_hours)), null), tile("Teams", number(new Set(answer.rows.map((row) => row.team).filter((team) => team !== "platform")).size), null),
      tile("Paid by the platform", usdMicro(owed(answer.rows, "platform")), share(owed(answer.rows, "platform"), total.usd_micro)),
      tile("Without a price", `${hours(total.unpriced_gpu_ms / 3.6e6)} h`, "in no team's bill")),
    section("By day", null, days(byDay)),
    section("By team and experiment", null, files(at), sheet(answer, place)),
  ];
}

/** What the figures are made from, once months are closed. */
function booked(books) {
  if (books?.basis === "closed") return ` ${books.month} is closed: nothing in it changes any more.`;
  if (books?.basis === "open" && books.adjustments.usd_micro !== null) return ` ${usdMicro(books.adjustments.usd_micro)} of it adjust months that are closed.`;
  return books?.closed_time ? " Months that are closed are in this time: these are the ledger’s figures as they are now." : "";
}

/** The newest month there is, where nothing else is chosen: the last 31 days of it. */
const withLast = (place) => ({get: (name) => (name === "last" ? "31d" : place.get(name)), signal: place.signal});

const owed = (rows, team) => rows.filter((row) => row.team === team).reduce((all, row) => all + (row.usd_micro ?? 0), 0);

function months(place) {
  return h("div.controls", {}, h("label", {}, "Month", h("input", {type: "month", id: "month", value: place.get("month") ?? "", onchange: (event) => go(place.href(withWindow({month: event.target.value || null})))})));
}

function files(place) {
  return h("p.controls", {}, "Download ", link(fileOf("csv", place, {by: "team,experiment,month"}), "CSV"), link(fileOf("focus", place), "FOCUS 1.2"), link(fileOf("focus", place, {as: "parquet"}), "the same as Parquet"), link(fileOf("csv", place, {by: "day,team,experiment,workload"}), "CSV by day and workload"));
}

function days(answer) {
  const teams = [...new Set(answer.rows.map((row) => row.team))], names = [...new Set(answer.rows.map((row) => row.day))].sort();
  const priced = answer.total.usd_micro !== null;
  const value = new Map(answer.rows.map((row) => [`${row.day} ${row.team}`, priced ? (row.usd_micro ?? 0) / 1e6 : row.gpu_hours]));
  const hue = (team, at) => (team === "platform" ? colour("f-platform") : hueOf(at));
  return chart("days", {
    label: `What each day cost, by team, from ${names[0]} to ${names.at(-1)}.`, height: 260,
    traces: teams.map((team, at) => ({type: "bar", name: plain(team ?? "no team"), x: names, y: names.map((day) => value.get(`${day} ${team}`) ?? 0), marker: {color: hue(team, at)}, hovertemplate: priced ? "%{y:$,.2f}" : "%{y:,.1f} GPU-hours"})),
    layout: {barmode: "stack", hovermode: "x unified", bargap: 0.25, xaxis: {type: "category", fixedrange: true}, yaxis: {tickprefix: priced ? "$" : "", fixedrange: true}, legend: {orientation: "h", y: -0.2}},
    table: () => table({caption: "By day and team", columns: [{title: "day", cell: (row) => row.day}, {title: "team", cell: (row) => row.team ?? "–"}, {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_hours)}, {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)}], rows: answer.rows}),
  });
}

function sheet(answer, place) {
  const whole = table({
    caption: "By team and experiment", rows: answer.rows, sort: place.get("sort") ?? "-usd", sorted: (sort) => go(place.href({sort}), {replace: true}), most: 500,
    columns: [
      {name: "team", title: "team", value: (row) => row.team ?? "", cell: (row) => (row.team && row.team !== "platform" ? link(place.href({team: row.team}), row.team) : row.team ?? "no team")},
      {name: "experiment", title: "experiment", value: (row) => row.experiment ?? "", cell: (row) => (row.experiment ? h("span", {}, link(place.to("/worth", {experiment: row.experiment}), row.experiment), row.adjusts ? h("span.soft", {}, ` adjusts ${row.adjusts}`) : null) : h("span.soft", {}, row.adjusts ? `adjusts ${row.adjusts}` : row.team === "platform" ? "free or broken" : "no experiment"))},
      {name: "hours", title: "GPU-hours", number: true, value: (row) => row.gpu_hours, cell: (row) => hours(row.gpu_hours)},
      {name: "usd", title: "cost", number: true, value: (row) => row.usd_micro, cell: (row) => (row.usd_micro === null ? "unpriced" : `$${(row.usd_micro / 1e6).toLocaleString("en-US", {minimumFractionDigits: 2, maximumFractionDigits: 2})}`)},
      {name: "share", title: "share", number: true, value: (row) => row.usd_micro, cell: (row) => share(row.usd_micro, answer.total.usd_micro)},
    ],
  });
  const foot = h("tfoot", {}, h("tr", {}, h("th", {scope: "row"}, "Total"), h("td", {}), h("td.n", {}, hours(answer.total.gpu_hours)),
    h("td.n", {}, answer.total.usd_micro === null ? "unpriced" : `$${(answer.total.usd_micro / 1e6).toLocaleString("en-US", {minimumFractionDigits: 2, maximumFractionDigits: 2})}`), h("td.n", {}, "100 %")));
  whole.querySelector("table").append(foot);
  return whole;
}
