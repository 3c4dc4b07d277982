// The worth page: the runs of an experiment by metric and cost, with the Pareto front.

import {ask} from "../api.js";
import {chart, color, hue, plain} from "../chart.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {hours, metric, number, plural, ratio, share, usdMicro, wall} from "../format.js";
import {go} from "../place.js";
import {table} from "../table.js";

const AXES = {step: "step", time: "time", hours: "GPU-hours", usd: "dollars"};
const MAX_DRAWN = 40;

export async function show(place) {
  const listed = place.get("experiment") ? null : await ask("worth", place);
  const name = place.get("experiment") ?? listed.rows.find((row) => row.experiment && row.metric)?.experiment;
  if (!name) return [h("h1", {}, "Worth"), nothing("No experiment reported a metric in this time range.")];
  const answer = await ask("worth", place, {experiment: name, metric: place.get("metric"), target: place.get("target")});
  if (!answer.metric) {
    const why = answer.runs.length ? "No run of this experiment reported a metric in this time range. " : "This experiment has no training runs in this time range. ";
    return [crumbs(place, name), h("h1", {}, name), nothing(why, link(place.to("/experiment", {experiment: name}), "Show its cost"))];
  }
  const runs = answer.runs.map((run, at) => ({...run, hue: hue(at)}));
  return [
    crumbs(place, name), headline(answer), controls(answer, place, name),
    section(`${answer.metric} against ${AXES[place.get("x")] ?? AXES.usd}`, "choose runs in the table below to compare them", curves(answer, runs, place)),
    section("The Pareto front", "no cheaper run was as good", front(answer, runs, place)),
    section("Runs", null, compared(answer, runs, place)),
  ];
}

const crumbs = (place, name) => h("p.crumbs", {}, link(place.to("/experiments"), "Experiments"), "›", link(place.to("/experiment", {experiment: name}), name), h("span", {}, "› worth"));

function headline(answer) {
  const best = answer.runs.filter((run) => run.best !== null).sort((one, other) => (answer.goal === "max" ? other.best - one.best : one.best - other.best))[0];
  return [
    h("h1", {"data-short": answer.experiment}, h("b", {}, usdMicro(answer.total.usd_micro)), ` for ${answer.experiment}`),
    h("dl.tiles", {},
      tile(`Best ${answer.metric}`, metric(best?.best), best ? `${best.run}, for ${usdMicro(best.usd_micro)}` : null),
      tile("Runs", number(answer.runs.length), `${answer.runs.filter((run) => run.pareto).length} on the Pareto front`),
      tile("Spent on outperformed runs", usdMicro(answer.dominated_usd_micro), share(answer.dominated_usd_micro, answer.total.usd_micro)),
      tile("GPU-hours", hours(answer.total.gpu_hours), null)),
  ];
}

function controls(answer, place, name) {
  const x = place.get("x") ?? "usd";
  const target = h("input", {type: "number", step: "any", id: "target", value: place.get("target") ?? "", placeholder: "none", size: 8, onchange: (event) => go(place.href({experiment: name, target: event.target.value}), {replace: true})});
  const names = answer.metrics.map((one) => (typeof one === "string" ? one : one.name));
  return h("div.controls", {},
    h("label", {}, "Metric", h("select", {id: "metric", onchange: (event) => go(place.href({experiment: name, metric: event.target.value}), {replace: true})}, names.map((one) => h("option", {value: one, selected: one === answer.metric}, one)))),
    h("span.switch", {role: "group", "aria-label": "Against"}, Object.entries(AXES).map(([value, text]) => h("a", {href: place.href({experiment: name, x: value}), "aria-current": x === value ? "true" : null}, text))),
    h("label", {}, "Target", target), h("small", {}, answer.goal === "max" ? "higher is better" : "lower is better", answer.goal_guessed ? " (guessed from its name)" : ""));
}

const chosenRuns = (place) => new Set((place.get("runs") ?? "").split(",").filter(Boolean).map(decodeURIComponent));
const at = {step: (point) => point[0], time: (point) => wall(point[1]), hours: (point) => point[3] / 3.6e6, usd: (point) => (point[4] === null ? null : point[4] / 1e6)};

function curves(answer, runs, place) {
  const x = place.get("x") ?? "usd", chosen = chosenRuns(place);
  const drawn = (chosen.size ? runs.filter((run) => chosen.has(run.run)) : runs).filter((run) => run.curve.length).slice(0, MAX_DRAWN);
  if (!drawn.length) return nothing("No curves to draw.");
  const lines = answer.target === null || answer.target === undefined ? [] : [{type: "line", xref: "paper", x0: 0, x1: 1, y0: answer.target, y1: answer.target, line: {color: color("--alarm"), width: 1, dash: "dot"}}];
  return [chart("curves", {
    label: `${answer.metric} of ${drawn.length} runs against ${AXES[x]}: ${drawn.slice(0, 6).map((run) => `${run.run} best ${metric(run.best)}`).join(", ")}.`, height: 380,
    traces: drawn.map((run) => ({
      type: "scatter", mode: run.curve.length < 12 ? "lines+markers" : "lines", name: plain(run.run), x: run.curve.map(at[x]), y: run.curve.map((point) => point[2]),
      line: {width: run.pareto ? 2.2 : 1.3, color: run.hue}, opacity: run.pareto || chosen.size ? 1 : 0.65,
      customdata: run.curve.map((point) => [point[0], usdMicro(point[4])]), hovertemplate: `%{y:.5g} at step %{customdata[0]}, %{customdata[1]}<extra>%{fullData.name}</extra>`,
    })),
    layout: {showlegend: drawn.length <= 10, legend: {orientation: "h", y: -0.26}, hovermode: "closest", shapes: lines, uirevision: `${answer.metric} ${x}`,
      xaxis: {type: x === "time" ? "date" : "linear", tickprefix: x === "usd" ? "$" : "", title: {text: AXES[x]}}, yaxis: {title: {text: plain(answer.metric)}, type: place.get("y") === "log" ? "log" : "linear"}},
  }), h("p.controls", {}, h("span.switch", {role: "group", "aria-label": "Scale"}, ["linear", "log"].map((one) => h("a", {href: place.href({experiment: answer.experiment, y: one === "log" ? "log" : null}), "aria-current": (place.get("y") === "log") === (one === "log") ? "true" : null}, one))),
    drawn.length < runs.length ? h("small", {}, `${plural(runs.length - drawn.length, "run")} not drawn`) : null)];
}

function front(answer, runs, place) {
  const shown = runs.filter((run) => run.best !== null && run.usd !== null);
  if (shown.length < 2) return nothing("A comparison needs two priced runs with this metric.");
  const best = shown.filter((run) => run.pareto).sort((one, other) => one.usd - other.usd);
  return chart("front", {
    label: `Best ${answer.metric} against dollars; Pareto front: ${best.map((run) => `${run.run} ${metric(run.best)} for ${usdMicro(run.usd_micro)}`).join(", ")}.`, height: 320,
    traces: [
      {type: "scatter", mode: "lines", x: best.map((run) => run.usd), y: best.map((run) => run.best), line: {shape: "hv", color: color("--rest"), width: 1.2, dash: "dot"}, hoverinfo: "skip", showlegend: false},
      {type: "scatter", mode: "markers", x: shown.map((run) => run.usd), y: shown.map((run) => run.best), text: shown.map((run) => plain(run.run)), customdata: shown.map((run) => run.run), showlegend: false,
        marker: {size: shown.map((run) => (run.pareto ? 11 : 8)), color: shown.map((run) => (run.pareto ? color("s-train") : color("--rest"))), line: {width: 1, color: color("--paper")}},
        hovertemplate: "%{text}<br>%{y:.5g} for %{x:$,.2f}<extra></extra>"},
    ],
    layout: {xaxis: {title: {text: "dollars"}, tickprefix: "$"}, yaxis: {title: {text: `best ${plain(answer.metric)}`}}, hovermode: "closest"},
    on: {plotly_click: (event) => { const run = event.points[0]?.customdata; if (run) go(place.to("/run", {run})); }},
  });
}

function compared(answer, runs, place) {
  const chosen = chosenRuns(place);
  const toggle = (run) => {
    const next = new Set(chosen);
    next.has(run) ? next.delete(run) : next.add(run);
    go(place.href({experiment: answer.experiment, runs: [...next].map(encodeURIComponent).join(",") || null}), {replace: true});
  };
  const targeted = answer.target !== null && answer.target !== undefined;
  return table({
    caption: `Runs of ${answer.experiment}`, rows: runs, maxRows: 25, sort: place.get("sort") ?? (answer.goal === "max" ? "-best" : "best"), sorted: (sort) => go(place.href({experiment: answer.experiment, sort}), {replace: true}),
    row: (run) => ({class: chosen.has(run.run) ? "chosen" : ""}),
    columns: [
      {name: "run", title: "run", value: (run) => run.run, cell: (run) => [h("input", {type: "checkbox", id: `c-${run.run}`, checked: chosen.has(run.run), "aria-label": `Compare ${run.run}`, onchange: () => toggle(run.run)}), " ", h("span.key", {style: {background: run.hue}}), link(place.to("/run", {run: run.run, experiment: null}), run.run), run.pareto ? h("small", {title: "On the Pareto front"}, " ★") : null]},
      {name: "outcome", title: "outcome", value: (run) => run.outcome},
      {name: "best", title: `best ${answer.metric}`, number: true, value: (run) => run.best, cell: (run) => metric(run.best)},
      {name: "final", title: "last", number: true, value: (run) => run.final, cell: (run) => metric(run.final)},
      {name: "usd", title: "cost", number: true, value: (run) => run.usd_micro, cell: (run) => usdMicro(run.usd_micro)},
      {name: "hours", title: "GPU-hours", number: true, value: (run) => run.gpu_hours, cell: (run) => hours(run.gpu_hours)},
      {name: "goodput", title: "goodput", number: true, value: (run) => run.goodput, cell: (run) => ratio(run.goodput)},
      ...(targeted ? [{name: "target", title: "to target", number: true, value: (run) => run.to_target_usd_micro, cell: (run) => (run.to_target_usd_micro === null ? h("span.soft", {}, "not reached") : usdMicro(run.to_target_usd_micro))}] : []),
      {name: "marginal", title: "gain from last 10% of spend", number: true, value: (run) => run.marginal?.share_of_all_gain, cell: (run) => (run.marginal ? `${share(run.marginal.share_of_all_gain, 1)} of total gain` : "–")},
    ],
  });
}
