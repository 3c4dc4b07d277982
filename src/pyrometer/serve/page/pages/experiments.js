// The experiments page: cost, goodput and metric of each experiment.

import {ask} from "../api.js";
import {h, link, nothing, section, spark, tile} from "../dom.js";
import {stillRunning} from "../freshness.js";
import {hours, metric, number, ratio, usdMicro, when} from "../format.js";
import {go} from "../place.js";
import {table} from "../table.js";

export async function show(place) {
  const {rows, total} = await ask("worth", place, {experiment: null});  // one experiment has its own page
  if (!rows.length) {
    return [h("h1", {}, "Experiments"), nothing("No training runs in this time range. Start training with ", h("code", {}, "pyrometer run -- torchrun train.py"), " to see it here.")];
  }
  const running = rows.reduce((all, row) => all + row.running, 0);
  return [
    h("h1", {"data-short": "Experiments"}, h("b", {}, number(rows.length)), ` experiments cost `, h("b", {}, usdMicro(total.usd_micro))),
    h("dl.tiles", {}, tile("Runs", number(rows.reduce((all, row) => all + row.runs, 0)), running ? stillRunning(running) : "none running"),
      tile("GPU-hours", number(Math.round(total.gpu_hours)), null), tile("Most expensive", rows[0].experiment ?? "no experiment", usdMicro(rows[0].usd_micro)),
      tile("Improving", number(rows.filter((row) => row.improving).length), `of ${rows.filter((row) => row.improving !== null).length} with a metric`)),
    section("All experiments", "click a heading to sort", table({
      caption: "Experiments", rows, sort: place.get("sort") ?? "-usd", sorted: (sort) => go(place.href({sort}), {replace: true}),
      columns: [
        {name: "experiment", title: "experiment", value: (row) => row.experiment ?? "", cell: (row) => (row.experiment ? link(place.to("/worth", {experiment: row.experiment}), row.experiment) : h("span.soft", {}, "no experiment"))},
        {name: "team", title: "team", value: (row) => row.team ?? "", cell: (row) => row.teams?.join(", ") || row.team || "–"},
        {name: "runs", title: "runs", number: true, value: (row) => row.runs, cell: (row) => [number(row.runs), row.running ? h("small", {}, ` ${row.running} running`) : null]},
        {name: "usd", title: "cost", number: true, value: (row) => row.usd_micro, cell: (row) => usdMicro(row.usd_micro)},
        {name: "hours", title: "GPU-hours", number: true, value: (row) => row.gpu_hours, cell: (row) => hours(row.gpu_hours)},
        {name: "goodput", title: "goodput", number: true, value: (row) => row.goodput, cell: (row) => ratio(row.goodput)},
        {name: "metric", title: "metric", value: (row) => row.metric ?? "", cell: (row) => (row.metric ? [row.metric, h("small", {}, row.goal === "max" ? " ↑" : " ↓")] : "–")},
        {name: "best", title: "best", number: true, value: (row) => row.best, cell: (row) => metric(row.best)},
        {name: "final", title: "last", number: true, value: (row) => row.final, cell: (row) => metric(row.final)},
        {name: "trend", title: "trend", cell: (row) => spark(row.trend ?? [], row.improving === null ? "no trend" : row.improving ? "improving" : "not improving")},
        {name: "seen", title: "last seen", number: true, value: (row) => Date.parse(row.last_seen), cell: (row) => when(row.last_seen)},
      ],
    })),
  ];
}
