// The run page: lifecycle, metrics, phases, throughput, GPUs, memory and ranks on one time axis, with findings and checkpoints.

import {ask} from "../api.js";
import {chart, color, dragged, faded, follow, mark, plain} from "../chart.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {classOf, finding} from "../finding.js";
import {stillRunning} from "../freshness.js";
import {compact, duration, hours, metric, number, plural, ratio, share, unwall, usdMicro, wall, when} from "../format.js";
import {later} from "../parts.js";
import {go} from "../place.js";
import {isOutside, outside, runTabs} from "../runs.js";
import {phaseClass} from "../phases.js";
import {table} from "../table.js";

const LIFE = {startup: "s-startup", compile: "s-startup", train: "s-train", training: "s-train", checkpoint: "s-checkpoint", evaluate: "s-evaluate", evaluation: "s-evaluate", lost: "s-lost_work", hang: "s-hang"};

export async function show(place) {
  if (!place.get("run")) return listed(place);
  if (await isOutside(place)) return outside(place);
  const about = await ask("show", place, {run: place.get("run"), without: "windows,findings"});
  if (about.run === null) {  // pipeline runs and sweeps have their own page
    go(place.to("/pipelines", {run: place.get("run")}), {replace: true});
    return [];
  }
  const signals = ask("signals", place, {run: about.run});
  const found = ask("why", place).then((answer) => answer.findings.filter((one) => about.workload && one.workload?.uid === about.workload.uid));
  Promise.all([signals, found]).then(([, all]) => mark(`run ${about.run}`, all.map(marked), all.map(named)), () => null);
  return [
    ...headline(about, place), runTabs(place, "/run"),
    later("signals", signals, (answer) => [section("Over time", "drag to zoom all charts, double-click to reset", axis(about, answer, place)), ranks(answer, place)], "Loading signals…"),
    section("Findings", null, later("findings of run", found, (all) => (all.length ? h("ul.findings", {}, all.map((one) => h("li", {}, finding(one, place)))) : nothing("No findings for this run.")), "Looking for causes…")),
    h("div.pair", {}, section("Lifecycle", null, lifecycle(about)), section("Step time by phase", null, phases(about))),
  ];
}

// -- the list ---------------------------------------------------------------------------------------------

async function listed(place) {
  const workload = place.get("workload");
  const {rows: own} = await ask("runs", place, {limit: 2000, ...(workload ? {workload, team: null, experiment: null} : {})});
  if (workload && own.length < 2) { // show the run directly if there is only one
    go(own.length ? place.href({workload: null, run: own[0].run}) : place.to("/workload", {workload}), {replace: true});
    return [];
  }
  if (!own.length) return [h("h1", {}, "Runs"), nothing("No training runs in this time range. Start training with ", h("code", {}, "pyrometer run -- torchrun train.py"), " to see it here.")];
  const live = own.filter((row) => row.outcome === "running").length;
  return [
    h("h1", {"data-short": "Runs"}, h("b", {}, number(own.length)), own.length === 1 ? " run" : " runs", live ? h("small", {}, ` ${stillRunning(live)}`) : null),
    section("All runs", "newest first; click a heading to sort", table({
      caption: "Runs", rows: own, sort: place.get("sort"), sorted: (sort) => go(place.href({sort}), {replace: true}),
      columns: [
        {name: "run", title: "run", value: (row) => row.run, cell: (row) => link(place.href({run: row.run, sort: null}), row.run)},
        {name: "experiment", title: "experiment", value: (row) => row.experiment ?? "", cell: (row) => (row.experiment ? link(place.to("/worth", {experiment: row.experiment}), row.experiment) : "–")},
        {name: "team", title: "team", value: (row) => row.team ?? "", cell: (row) => row.team ?? "–"},
        {name: "outcome", title: "outcome", value: (row) => row.outcome, cell: (row) => h("span", {class: row.outcome === "failed" ? "alarm" : "", title: failed(row.failure)}, row.outcome)},
        {name: "started", title: "started", number: true, value: (row) => Date.parse(row.started), cell: (row) => when(row.started)},
        ...(own.some((row) => row.progress) ? [{name: "done", title: "progress", number: true, value: (row) => row.progress?.share, cell: (row) => ratio(row.progress?.share)}] : []),
        {name: "ranks", title: "ranks", number: true, value: (row) => row.ranks, cell: (row) => number(row.ranks)},
        {name: "steps", title: "steps", number: true, value: (row) => row.steps, cell: (row) => number(row.steps)},
        {name: "step", title: "step time", number: true, value: (row) => row.step_p50_ms, cell: (row) => duration(row.step_p50_ms)},
        {name: "usd", title: "cost", number: true, value: (row) => row.usd_micro, cell: (row) => usdMicro(row.usd_micro)},
        {name: "goodput", title: "goodput", number: true, value: (row) => row.goodput, cell: (row) => ratio(row.goodput)},
      ],
    })),
  ];
}

/** The pipeline's run and the sweep that it is a part of. */
function partOf(about, place) {
  const parts = [about.pipeline && [`step ${about.pipeline.step ?? "?"} of `, link(place.to("/pipelines", {run: about.pipeline.id}), about.pipeline.name)], about.sweep && [`trial ${about.sweep.trial} of `, link(place.to("/pipelines", {run: about.sweep.name}), about.sweep.name)]];
  return parts.filter(Boolean).map((part) => h("p.crumbs", {}, h("span", {}, ...part)));
}

// -- one run ----------------------------------------------------------------------------------------------------------

function headline(about, place) {
  const best = Object.entries(about.best ?? {})[0];
  const reported = Object.entries(about.metrics).find(([name]) => !["progress", "remaining_seconds"].includes(name));
  return [
    h("p.crumbs", {}, link(place.to("/run"), "Runs"), "›", about.experiment ? [link(place.to("/worth", {experiment: about.experiment}), about.experiment), `› ${about.run}`] : about.run),
    partOf(about, place), h("h1", {"data-short": about.run}, about.run),
    h("p.lede", {}, h("span.badge", {class: about.outcome === "failed" ? "alarm" : ""}, about.outcome === "running" ? stillRunning() : about.outcome), " ",
      about.workload ? [link(place.to("/workload", {workload: about.workload.uid}), `${about.workload.kind} ${about.workload.namespace}/${about.workload.name}`), " · "] : null,
      [about.team, plural(about.ranks, "rank"), plural(about.attempts, "attempt"), `since ${when(about.started)}`, about.ended ? `until ${when(about.ended)}` : null].filter(Boolean).join(" · ")),
    about.failure ? h("p.alarm", {}, failed(about.failure)) : null,
    h("dl.tiles", {},
      tile("Cost", usdMicro(about.usd_micro), `${hours(about.gpu_hours)} GPU-hours`),
      tile("Goodput", ratio(about.goodput), "share of held GPU time spent training"),
      best ? tile(best[0], metric(best[1].final), `best ${metric(best[1].best)} at step ${number(best[1].best_step)}`) : reported ? tile(reported[0], metric(reported[1].at(-1)[2]), "last value") : tile("Metric", "–", "none reported"),
      about.progress ? tile("Progress", ratio(about.progress.share), about.ended || about.progress.eta_ms === null ? "reported by Kubeflow Trainer" : `${duration(about.progress.eta_ms)} left, reported by Kubeflow Trainer`) : null,
      tile("Step", number(about.steps), about.step_p50_ms ? `${duration(about.step_p50_ms)} each` : null),
      tile("Throughput", about.samples_per_s ? `${compact(about.samples_per_s)}/s` : "–", [about.tokens_per_s ? `${compact(about.tokens_per_s)} tokens/s` : null, about.mfu ? `MFU ${ratio(about.mfu)}` : null].filter(Boolean).join(" · ") || "samples"),
      tile("Last checkpoint", about.checkpoints?.last ? `step ${number(about.checkpoints.last.step)}` : "none", about.checkpoints?.last_age_ms ? `${duration(about.checkpoints.last_age_ms)} of work since then` : null)),
  ];
}

/** All signals in rows of one chart with one time axis, so that they zoom together. */
function axis(about, signals, place) {
  const x = signals.times_ms.map(wall);
  const rows = [];
  const add = (title, size, traces, layout = {}) => traces.length && rows.push({title, size, traces, layout});
  const line = (name, y, hue, more = {}) => ({type: "scatter", mode: "lines", name, x, y, line: {width: 1.5, color: color(hue)}, connectgaps: false, ...more});
  const present = (values) => values?.some((value) => value !== null && value !== undefined);

  add("lifecycle", 0.5, signals.lifecycle.length ? [lifecycleBars(signals)] : [], {showticklabels: false, fixedrange: true, range: [-0.6, 0.6]});
  const chosen = place.get("metric") ?? Object.keys(about.best ?? {})[0] ?? Object.keys(about.metrics)[0];
  const curve = about.metrics[chosen] && interrupted(about.metrics[chosen]);
  if (curve) add(plain(chosen), 1.3, [{type: "scatter", mode: curve.length < 3 ? "markers" : "lines", name: plain(chosen), x: curve.map((point) => wall(point[1])), y: curve.map((point) => point[2]), connectgaps: false, line: {width: 1.5, color: color("--ink")}, customdata: curve.map((point) => [point[0], usdMicro(point[4])]), hovertemplate: "%{y:.5g} at step %{customdata[0]}, %{customdata[1]}"}]);
  add("step time, ms", 1.3, signals.phases.filter((phase) => present(phase.ms_per_step)).map((phase) => ({type: "scatter", mode: "lines", stackgroup: "phases", name: phase.name, x, y: phase.ms_per_step, line: {width: 0, shape: "hv"}, fillcolor: color(phaseClass(phase.name)), hovertemplate: "%{y:.1f} ms"})), {rangemode: "tozero"});
  const rate = signals.throughput;
  const rates = [["samples_per_s", "samples/s", "s-infer"], ["tokens_per_s", "tokens/s", "s-infer"]].filter(([key]) => present(rate[key])).slice(-1);
  add("throughput", 0.9, rates.map(([key, name, hue]) => line(name, rate[key], hue, {hovertemplate: `%{y:,.3s} ${name}`})), {rangemode: "tozero"});
  if (present(rate.mfu)) add("MFU", 0.7, [line("MFU", rate.mfu, "s-train", {hovertemplate: "%{y:.1%}"})], {tickformat: ".0%", rangemode: "tozero"});
  const band = (key, name, hue, form) => {
    const one = signals.series[key];
    if (!present(one?.mean)) return [];
    return [
      {type: "scatter", mode: "lines", x, y: one.max, line: {width: 0}, hoverinfo: "skip", showlegend: false},
      {type: "scatter", mode: "lines", x, y: one.min, line: {width: 0}, fill: "tonexty", fillcolor: faded(hue, 0.22), hoverinfo: "skip", showlegend: false},
      line(name, one.mean, hue, {hovertemplate: form}),
    ];
  };
  add("GPU activity", 0.9, [...band("gpu_util", "utilization", "s-active", "%{y:.0%}"), ...band("sm_active", "cores active", "s-train", "%{y:.0%}")], {range: [0, 1.05], tickformat: ".0%"});
  add("power, W", 0.9, band("power_w", "power", "s-data_stall", "%{y:.0f} W"), {rangemode: "tozero"});
  add("memory, GiB", 0.9, gib(band("memory_used_mib", "memory", "s-idle_held", "%{y:.1f} GiB")), {rangemode: "tozero"});

  const whole = rows.reduce((all, row) => all + row.size, 0), gap = 0.022, height = Math.round(whole * 105 + 60);
  const layout = {showlegend: false, hovermode: "x unified", hoversubplots: "axis", margin: {l: 76, r: 16, t: 34, b: 34}, shapes: marks(signals, about), xaxis: {type: "date", anchor: `y${rows.length}`, showgrid: false, range: zoomed(place) ?? [x[0], wall(signals.times_ms.at(-1) + signals.bucket_ms)]}};
  const traces = [];
  let level = 1;
  rows.forEach((row, at) => {
    const share = (row.size / whole) * (1 - gap * (rows.length - 1));
    const name = at ? `yaxis${at + 1}` : "yaxis", ref = at ? `y${at + 1}` : "y";
    layout[name] = {domain: [Math.max(level - share, 0), level], title: {text: row.title, font: {size: 11}, standoff: 4}, nticks: 4, fixedrange: true, anchor: "x", ...row.layout};
    level -= share + gap;
    traces.push(...row.traces.map((trace) => ({...trace, xaxis: "x", yaxis: ref})));
  });
  const names = Object.keys(about.metrics);
  return [
    names.length > 1 ? h("p.controls", {}, h("label", {}, "Metric", h("select", {id: "metric", onchange: (event) => go(place.href({metric: event.target.value}), {replace: true})}, names.map((name) => h("option", {value: name, selected: name === chosen}, name))))) : null,
    chart(`run ${about.run}`, {
      label: `${about.run} over time: ${rows.map((row) => row.title).join(", ")}; ${signals.checkpoints.length} checkpoints marked.`, traces, layout, height,
      on: {plotly_relayout: (event) => {
        const range = dragged(event);
        if (!range) return;
        history.replaceState(null, "", place.href({from: range.from && new Date(unwall(range.from)).toISOString(), to: range.to && new Date(unwall(range.to)).toISOString()}));
        follow("ranks", range);
      }},
    }),
    h("ul.legend", {}, signals.phases.filter((phase) => present(phase.ms_per_step)).map((phase) => h("li", {}, h("span.key", {class: phaseClass(phase.name)}), phase.name)), h("li", {}, h("span.key", {class: "s-checkpoint"}), "checkpoint saved"), h("li", {}, h("span.key", {class: "s-hang"}), "attempt ended")),
  ];
}

const zoomed = (place) => (place.get("from") && place.get("to") ? [wall(Date.parse(place.get("from"))), wall(Date.parse(place.get("to")))] : undefined);

/** A curve with a gap wherever no value was reported for a long time. */
function interrupted(curve) {
  const pauses = curve.slice(1).map((point, at) => point[1] - curve[at][1]).sort((one, other) => one - other);
  const usual = pauses[Math.floor(pauses.length / 2)] ?? 0;
  return curve.flatMap((point, at) => (at && point[1] - curve[at - 1][1] > Math.max(20 * usual, 60_000) ? [[point[0], point[1] - 1, null, point[3], point[4]], point] : [point]));
}

const gib = (traces) => traces.map((trace) => ({...trace, y: trace.y.map((value) => (value === null ? null : value / 1024))}));

function lifecycleBars(signals) {
  const bars = signals.lifecycle;
  return {
    type: "bar", orientation: "h", y: bars.map(() => 0), base: bars.map((bar) => wall(bar.from_ms)), x: bars.map((bar) => bar.to_ms - bar.from_ms), width: 0.8,
    marker: {color: bars.map((bar) => color(LIFE[bar.phase] ?? "--rest")), line: {width: 0}}, text: bars.map((bar) => bar.phase), textposition: "none", customdata: bars.map((bar) => duration(bar.to_ms - bar.from_ms)),
    hovertemplate: "%{text}, %{customdata}<extra></extra>", name: "lifecycle",
  };
}

/** A finding on the time axis: its time, and its cause above it. */
const marked = (one) => ({type: "rect", x0: wall(Date.parse(one.from)), x1: wall(Date.parse(one.to)), yref: "paper", y0: 0, y1: 1, line: {width: 0}, fillcolor: faded(classOf(one.cause), 0.13), layer: "below"});
const named = (one, at) => ({yshift: 13 * (at % 2), x: wall(Date.parse(one.from)), y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, text: `${one.cause} ${one.usd_micro === null ? "" : usdMicro(one.usd_micro)}`, font: {size: 11, color: color("--alarm")}});

/** Checkpoints and ends of attempts, across all rows. */
function marks(signals) {
  const upright = (ms, hue, dash) => ({type: "line", x0: wall(ms), x1: wall(ms), yref: "paper", y0: 0, y1: 1, line: {color: hue, width: 1, dash}, layer: "below"});
  const saved = color("s-checkpoint"), ended = color("s-hang");
  return [...signals.checkpoints.slice(-300).map((one) => upright(one.at_ms, saved, "solid")), ...signals.attempts.filter((one) => one.to_ms).map((one) => upright(one.to_ms, ended, "dot"))];
}

function ranks(signals, place) {
  const many = signals.ranks.length;
  const measures = {step_ms: "step time (ms)", wait_ms_share: "share of time waiting", gpu_util: "GPU utilization"};
  const kinds = Object.keys(signals.heat).filter((name) => signals.heat[name]?.some((row) => row.some((value) => value !== null)));
  if (many < 2 || !kinds.length) return null;
  const kind = kinds.includes(place.get("heat")) ? place.get("heat") : kinds[0];
  const values = signals.heat[kind];
  const flat = values.flat().filter((value) => value !== null).sort((one, other) => one - other);
  const middle = flat[Math.floor(flat.length / 2)], high = flat[Math.floor(flat.length * 0.99)];
  // Usual values are pale. Only steps a quarter longer than usual, or waiting for a fifth of the time, are red.
  const [zmin, zmax] = {step_ms: [middle, Math.max(high, middle * 1.25)], wait_ms_share: [0, Math.max(high, 0.2)], gpu_util: [0, 1]}[kind];
  const named = signals.ranks.map((one) => plain(`rank ${one.rank}${one.node ? ` · ${one.node}` : ""}`));
  return section("All ranks", many < (signals.ranks_total ?? many) ? `${many} of ${signals.ranks_total} shown` : `${many} ranks, one row per rank`,
    h("p.controls", {}, h("span.switch", {role: "group", "aria-label": "Measure"}, kinds.map((one) => h("a", {href: place.href({heat: one}), "aria-current": one === kind ? "true" : null}, measures[one] ?? one)))),
    chart("ranks", {
      label: `${measures[kind] ?? kind} of each of ${many} ranks over time.`, height: Math.min(90 + Math.max(many * 6, 120), 520),
      traces: [{type: "heatmap", x: signals.times_ms.map(wall), y: named, z: values, zmin, zmax, colorscale: kind === "gpu_util" ? [[0, color("s-hang")], [0.5, color("s-startup")], [1, color("s-train")]] : [[0, color("--track")], [0.5, color("s-startup")], [1, color("s-hang")]], hovertemplate: `%{y}<br>${kind === "step_ms" ? "%{z:.1f} ms" : "%{z:.1%}"}<extra></extra>`, colorbar: {thickness: 10, outlinewidth: 0, tickformat: kind === "step_ms" ? "" : ".0%", ticksuffix: kind === "step_ms" ? " ms" : ""}, xgap: 0, ygap: many <= 64 ? 1 : 0}],
      on: {plotly_relayout: (event) => dragged(event) && follow(`run ${signals.run}`, dragged(event))},
      layout: {margin: {l: 120}, xaxis: {type: "date", showgrid: false, range: zoomed(place)}, yaxis: {autorange: "reversed", showgrid: false, fixedrange: true, nticks: 20}},
    }));
}

/** The rank that failed first, and its exception. */
const failed = (failure) => failure && `rank ${failure.rank} failed${failure.ranks > 1 ? ` first, of ${failure.ranks} ranks` : ""}${failure.error ? `: ${failure.error}` : ""}`;

function lifecycle(about) {
  return table({caption: "Lifecycle events", maxRows: 24, columns: [
    {title: "time", cell: (row) => when(row.at)}, {title: "event", cell: (row) => row.what.replaceAll("_", " ")}, {title: "step", number: true, cell: (row) => number(row.step)},
    {title: "rank", number: true, cell: (row) => (row.ranks > 1 ? (row.error ? `${row.rank}, first of ${row.ranks}` : `${row.ranks} ranks`) : row.rank ?? "")},
    {title: "details", cell: (row) => [row.duration_ms ? `${row.ranks > 1 ? "up to " : ""}${duration(row.duration_ms)}` : null, ...(row.error ? [row.error] : [row.reason, row.message])].filter(Boolean).join(" · ")}],
    rows: together(about.lifecycle).reverse()});
}

/** Joins the same event of many ranks within a minute. */
function together(events) {
  const rows = [];
  for (const event of events) {
    const same = rows.findLast((row) => row.what === event.what && row.attempt === event.attempt && row.step === event.step && row.reason === event.reason && (event.error ? row.error === event.error : row.message === event.message) && Date.parse(event.at) - Date.parse(row.at) < 60_000);
    if (same && event.rank !== null) Object.assign(same, {ranks: same.ranks + 1, duration_ms: Math.max(same.duration_ms ?? 0, event.duration_ms ?? 0) || null});
    else rows.push({...event, ranks: 1});
  }
  return rows;
}

function phases(about) {
  const rows = Object.entries(about.phases ?? {}).filter(([, part]) => part > 0.0005);
  if (!rows.length) return nothing("No steps were reported.");
  return chart("phases", {
    label: `Shares of a step: ${rows.map(([name, part]) => `${name} ${share(part, 1)}`).join(", ")}.`, height: Math.max(60 + rows.length * 28, 160),
    traces: [{type: "bar", orientation: "h", y: rows.map(([name]) => name), x: rows.map(([, part]) => part), marker: {color: rows.map(([name]) => color(phaseClass(name)))}, text: rows.map(([, part]) => share(part, 1)), textposition: "outside", cliponaxis: false, hoverinfo: "skip", textfont: {color: color("--ink")}}],
    layout: {margin: {l: 80, r: 50}, xaxis: {visible: false, fixedrange: true}, yaxis: {autorange: "reversed", fixedrange: true}},
  });
}
