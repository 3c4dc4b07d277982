// The pipelines page: pipeline runs and sweeps with their cost. One run shows its steps over time, one sweep its trials against dollars.

import {ask} from "../api.js";
import {measured, shareTile} from "../burned.js";
import {chart, color, plain} from "../chart.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {finding} from "../finding.js";
import {duration, hours, metric, number, plural, ratio, share, usdMicro, when} from "../format.js";
import {isNow} from "../freshness.js";
import {later} from "../parts.js";
import {go, windowOf} from "../place.js";
import {table} from "../table.js";

const HUES = {running: "s-active", pending: "rest", succeeded: "s-train", failed: "s-hang", retried: "s-straggler_wait", skipped: "rest", cached: "s-checkpoint", unknown: "rest"};

export async function show(place) {
  const run = place.get("run");
  if (!run) return listed(place);
  const answer = await ask("show", place, {run, without: "windows,findings"});
  if (answer.run !== null) {
    go(place.to("/run", {run: answer.run}), {replace: true});
    return [];
  }
  return answer.pipeline ? pipeline(answer.pipeline, place) : sweep(answer.sweep, place);
}

const crumbs = (place, ...names) => h("p.crumbs", {}, link(place.to("/pipelines"), "Pipelines"), names.map((name) => h("span", {}, `› ${name}`)));
const badge = (state) => h("span.badge", {class: state === "failed" ? "alarm" : ""}, state.replaceAll("_", " "));

// -- the lists --------------------------------------------------------------------------------------------------

async function listed(place) {
  const everything = Object.keys(windowOf(place)).length ? {} : {all: "1"};
  const [runs, sweeps] = await Promise.all(["pipeline,pipeline_run", "sweep"].map((by) => ask("cost", place, {by, ...everything})));
  const ran = runs.rows.filter((row) => row.pipeline_run), swept = sweeps.rows.filter((row) => row.sweep);
  if (!ran.length && !swept.length) return [h("h1", {}, "Pipelines"), nothing("No pipeline run or sweep held a GPU in this time range. Pyrometer reads Argo Workflows, Kubeflow Pipelines and Katib if the cluster has them.")];
  const cost = ran.concat(swept).reduce((all, row) => all + (row.usd_micro ?? 0), 0);
  const sort = (name) => ({sort: place.get(name), sorted: (value) => go(place.href({[name]: value}), {replace: true})});
  const money = [
    {name: "usd", title: "cost", number: true, value: (row) => row.usd_micro, cell: (row) => usdMicro(row.usd_micro)},
    {name: "hours", title: "GPU-hours", number: true, value: (row) => row.gpu_hours, cell: (row) => hours(row.gpu_hours)},
  ];
  return [
    h("h1", {"data-short": "Pipelines"}, h("b", {}, usdMicro(cost)), ` for ${plural(ran.length, "pipeline run")} and ${plural(swept.length, "sweep")}`),
    section("Pipeline runs", null, ran.length ? table({caption: "Pipeline runs", rows: ran, ...sort("sort"), columns: [
      {name: "run", title: "run", value: (row) => row.pipeline_run, cell: (row) => link(place.href({run: row.pipeline_run}), row.pipeline_run)},
      {name: "pipeline", title: "pipeline", value: (row) => row.pipeline ?? "", cell: (row) => row.pipeline ?? "–"}, ...money]}) : nothing("No pipeline run held a GPU.")),
    section("Sweeps", null, swept.length ? table({caption: "Sweeps", rows: swept, ...sort("sweeps"), columns: [
      {name: "sweep", title: "sweep", value: (row) => row.sweep, cell: (row) => link(place.href({run: row.sweep}), row.sweep)}, ...money]}) : nothing("No sweep held a GPU.")),
  ];
}

const wasted = (total) => shareTile("Wasted", total[`wasted_${measured(total).key}`], total);

const tiles = (total, ...more) => h("dl.tiles", {},
  tile("Cost", usdMicro(total.usd_micro), `${hours(total.gpu_hours)} GPU-hours`),
  wasted(total),
  tile("Goodput", ratio(total.goodput), "share of held GPU time spent training"), ...more);

const span = (one) => [one.namespace, one.teams.join(", "), one.started ? `since ${when(one.started)}` : null, one.ended ? `until ${when(one.ended)}` : null].filter(Boolean).join(" · ");

// -- one run of a pipeline --------------------------------------------------------------------------------------------

function pipeline(run, place) {
  const found = ask("show", place, {run: run.id, without: "windows"}).then((answer) => answer.findings);
  const failed = run.steps.filter((step) => step.state === "failed").length;
  return [
    crumbs(place, run.pipeline, run.name), h("h1", {"data-short": run.name}, run.name),
    h("p.lede", {}, badge(run.state), " ", span(run)),
    tiles(run.total, tile("Steps", number(run.steps.length), failed ? `${failed} failed` : `${run.steps.filter((step) => step.gpu_ms).length} with GPUs`, failed > 0)),
    section("Steps", "in start order", steps(run, place)),
    section("Findings", null, later("findings of pipeline", found, (all) => (all.length ? h("ul.findings", {}, all.map((one) => h("li", {}, finding(one, place)))) : nothing("No findings for this run.")), "Looking for causes…")),
  ];
}

function steps(run, place) {
  const rows = run.steps.flatMap((step) => [step, ...(step.attempts.length > 1 ? step.attempts.map((one) => ({...one, step: step.step, inside: true, workloads: []})) : [])]);
  const begun = rows.filter((row) => row.started);
  const from = Math.min(...begun.map((row) => Date.parse(row.started))), to = Math.max(...begun.map((row) => Date.parse(row.ended ?? run.window.to)));
  const highest = Math.max(...run.steps.map((step) => step.usd_micro ?? 0), 1);
  return table({caption: `Steps of ${run.name}`, rows, row: (row) => ({class: row.inside ? "inside" : ""}), columns: [
    {title: "step", cell: (row) => (row.inside ? h("span.soft", {}, `attempt ${row.attempt}`) : row.step ?? "no step")},
    {title: "state", cell: (row) => h("span", {class: row.state === "failed" ? "alarm" : "", title: row.message ?? null}, row.state)},
    {title: "time", cell: (row) => bar(row, from, to, run.window.to)},
    {title: "took", number: true, cell: (row) => (row.state === "skipped" ? "–" : duration(row.duration_ms))},
    {title: "GPU-hours", number: true, cell: (row) => (row.gpu_ms ? hours(row.gpu_hours) : "–")},
    {title: "cost", number: true, cell: (row) => (row.gpu_ms ? [usdMicro(row.usd_micro), h("span.meter", {"aria-hidden": "true"}, h("span", {style: {width: `${(100 * (row.usd_micro ?? 0)) / highest}%`}}))] : "–")},
    {title: "wasted", number: true, cell: (row) => (row.gpu_ms ? usdMicro(row.wasted_usd_micro) : "–")},
    {title: "goodput", number: true, cell: (row) => ratio(row.goodput)},
    {title: "job", cell: (row) => row.workloads.map((one) => [link(place.to("/run", {workload: one.uid}), `${one.kind} ${one.name}`), " "])},
  ]});
}

/** A bar on the time axis of the run. Running steps extend to the end of the data. */
function bar(row, from, to, now) {
  if (!row.started) return "–";
  const began = Date.parse(row.started), ended = Date.parse(row.ended ?? now), whole = Math.max(to - from, 1);
  const until = row.ended ? when(row.ended) : isNow(now) ? "now" : `${when(now)}, running`;
  return h("span.gantt", {role: "img", "aria-label": `from ${when(row.started)} to ${until}`, title: `${when(row.started)} – ${until}`},
    h("span", {class: HUES[row.state] ?? "rest", style: {left: `${(100 * (began - from)) / whole}%`, width: `${Math.max((100 * (ended - began)) / whole, 0.6)}%`}}));
}

// -- one sweep --------------------------------------------------------------------------------------------------------

function sweep(one, place) {
  const won = one.trials.find((trial) => trial.best);
  return [
    crumbs(place, one.name), h("h1", {"data-short": one.name}, h("b", {}, usdMicro(one.total.usd_micro)), ` for ${plural(one.trials.length, "trial")} of ${one.name}`),
    h("p.lede", {}, badge(one.state), " ", [span(one), one.algorithm].filter(Boolean).join(" · ")),
    h("dl.tiles", {},
      tile(one.metric ? `Best ${one.metric}` : "Best", metric(won?.value), won ? `${won.trial}, for ${usdMicro(won.usd_micro)}` : null),
      tile("Cost of other trials", usdMicro(one.losers_usd_micro), share(one.losers_usd_micro, one.total.usd_micro)),
      tile("Stopped early", number(one.early_stopped), one.early_stopped_saved_usd_micro === null ? null : `about ${usdMicro(one.early_stopped_saved_usd_micro)} saved, compared with the median trial`),
      wasted(one.total)),
    section(`${one.metric ?? "Objective"} against dollars`, "★ Pareto front: no cheaper trial was as good", front(one)),
    section("Trials", "best first", trials(one, place)),
  ];
}

function front(one) {
  const shown = one.trials.filter((trial) => trial.value !== null && trial.usd !== null);
  if (shown.length < 2) return nothing("A comparison needs two priced trials with a value.");
  const best = shown.filter((trial) => trial.pareto).sort((a, b) => a.usd - b.usd);
  const hueOf = (trial) => color(trial.best ? "s-train" : trial.state === "early_stopped" ? "s-checkpoint" : trial.pareto ? "s-evaluate" : "--rest");
  return chart("sweep", {
    label: `${one.metric} against dollars of ${shown.length} trials; ${best.map((trial) => `${trial.trial} ${metric(trial.value)} for ${usdMicro(trial.usd_micro)}`).join(", ")}.`, height: 320,
    traces: [
      {type: "scatter", mode: "lines", x: best.map((trial) => trial.usd), y: best.map((trial) => trial.value), line: {shape: "hv", color: color("--rest"), width: 1.2, dash: "dot"}, hoverinfo: "skip", showlegend: false},
      {type: "scatter", mode: "markers", x: shown.map((trial) => trial.usd), y: shown.map((trial) => trial.value), text: shown.map((trial) => plain(`${trial.trial} · ${Object.entries(trial.parameters).map(([name, value]) => `${name} ${value}`).join(", ")}`)), showlegend: false,
        marker: {size: shown.map((trial) => (trial.best ? 13 : 9)), color: shown.map(hueOf), line: {width: 1, color: color("--paper")}}, hovertemplate: "%{text}<br>%{y:.5g} for %{x:$,.2f}<extra></extra>"},
    ],
    layout: {xaxis: {title: {text: "dollars"}, tickprefix: "$"}, yaxis: {title: {text: plain(one.metric ?? "")}}, hovermode: "closest"},
  });
}

function trials(one, place) {
  const names = [...new Set(one.trials.flatMap((trial) => Object.keys(trial.parameters)))].slice(0, 6);
  const numeric = (text) => (text === undefined || text === "" || Number.isNaN(Number(text)) ? text : Number(text));
  return table({caption: `Trials of ${one.name}`, rows: one.trials, sort: place.get("sort"), sorted: (sort) => go(place.href({sort}), {replace: true}), columns: [
    {name: "trial", title: "trial", value: (row) => row.trial, cell: (row) => [row.workload ? link(place.to("/run", {workload: row.workload.uid}), row.trial) : row.trial, row.best ? h("b", {}, " best") : null, row.pareto ? h("small", {title: "No cheaper trial was as good"}, " ★") : null]},
    {name: "state", title: "state", value: (row) => row.state, cell: (row) => h("span", {class: row.state === "failed" ? "alarm" : ""}, row.state.replaceAll("_", " "))},
    ...names.map((name) => ({name: `p-${name}`, title: name, number: true, value: (row) => numeric(row.parameters[name]), cell: (row) => row.parameters[name] ?? "–"})),
    {name: "value", title: one.metric ?? "value", number: true, value: (row) => row.value, cell: (row) => metric(row.value)},
    {name: "usd", title: "cost", number: true, value: (row) => row.usd_micro, cell: (row) => usdMicro(row.usd_micro)},
    {name: "hours", title: "GPU-hours", number: true, value: (row) => row.gpu_hours, cell: (row) => hours(row.gpu_hours)},
    {name: "goodput", title: "goodput", number: true, value: (row) => row.goodput, cell: (row) => ratio(row.goodput)},
  ]});
}
