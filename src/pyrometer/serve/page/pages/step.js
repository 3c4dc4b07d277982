// The step page: one step over all ranks with its critical path, slowest rank and data.

import {ask, fileOf} from "../api.js";
import {chart, color} from "../chart.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {duration, exactly, number, plural} from "../format.js";
import {go} from "../place.js";
import {runTabs} from "../runs.js";
import {phaseClass, phaseNames} from "../phases.js";
import {table} from "../table.js";

const MAX_DRAWN = 64;

export async function show(place) {
  const run = place.get("run");
  if (!run) return [h("h1", {}, "Steps"), nothing("No run selected. ", link(place.to("/run"), "Select a run"))];
  const about = await ask("trace", place, {run});
  const traced = about.traced;
  if (!traced.count) return [...crumbs(place, run), h("h1", {"data-short": `${run}, steps`}, "Steps"), runTabs(place, "/step"), nothing("No step of this run has been traced yet. Pyrometer traces some steps, and those that are unusually slow.")];
  const slow = [...traced.steps].sort((one, other) => other.duration_ms - one.duration_ms || one.step - other.step);
  const step = place.get("step") ?? String(slow[0].step);
  const answer = await ask("trace", place, {run, step, attempt: place.get("attempt")});
  return [
    ...crumbs(place, run, step), h("h1", {"data-short": `${run}, step ${step}`}, "Step ", h("b", {}, number(Number(step)))), runTabs(place, "/step"), slower(traced, slow, Number(step), place), overview(traced, Number(step), place),
    ...(answer.spans.length ? of(answer, place) : [missing(answer, place)]),
  ];
}

const crumbs = (place, run, step = null) => [h("p.crumbs", {}, link(place.to("/run"), "Runs"), "›", link(place.to("/run", {run}), run), step ? [" › step ", number(Number(step))] : null)];

function missing(answer, place) {
  const near = answer.nearest.map((one) => (typeof one === "number" ? one : one.step));
  return nothing(answer.done ? "This step ran but was not traced. " : "This run has no such step. ", near.length ? ["Nearest traced steps: ", near.map((step, at) => [at ? ", " : "", link(place.href({step}), number(step))])] : null);
}

function slower(traced, slow, step, place) {
  const at = slow.findIndex((one) => one.step === step && (!place.get("attempt") || String(one.attempt) === place.get("attempt")));
  const jump = (index, text, key) => {
    const to = slow[index];
    return h("a", {href: to ? place.href({step: to.step, attempt: to.attempt}) : null, id: key, "aria-disabled": to ? null : "true", class: to ? "" : "soft"}, text);
  };
  const field = h("input", {type: "number", min: 0, id: "step", value: step, "aria-label": "Step", onchange: (event) => go(place.href({step: event.target.value, attempt: null}))});
  const bar = h("div.controls", {}, jump(at < 0 ? 0 : at - 1, "← slower step", "slower"), jump(at < 0 ? 1 : at + 1, "faster step →", "faster"), h("label", {}, "Step", field),
    h("small", {}, at === 0 ? `the slowest of ${plural(traced.count, "traced step")}` : at > 0 ? `${plural(at, "slower one", "slower ones")} among ${plural(traced.count, "traced step")}` : plural(traced.count, "traced step")), link(fileOf("perfetto", place, {run: place.get("run"), step}), "Download for Perfetto"));
  bar.querySelectorAll("a[href*='perfetto']").forEach((one) => one.setAttribute("download", ""));
  return bar;
}

function of(answer, place) {
  const waited = answer.waited_for;
  const critical = answer.critical_path;
  return [
    h("dl.tiles", {},
      tile("Duration", duration(answer.duration_ms), exactly(answer.start_ms)),
      tile("Slowest rank", `rank ${answer.ranks[0].rank}`, answer.ranks[0].node ?? null),
      tile("Waited for", waited ? `rank ${waited.rank}` : "none", waited ? `the others waited ${duration(waited.waited_ms)}${waited.phase ? `; its ${waited.phase} took ${duration(waited.excess_ms)} longer` : ""}` : "all ranks were ready together"),
      tile("Attempt", `${answer.attempt} of ${Math.max(...answer.attempts)}`, answer.lost ? "lost, repeated later" : null, answer.lost)),
    section("All ranks", `slowest first; the critical path of rank ${critical[0]?.rank} is outlined`, gantt(answer, place), h("ul.legend", {}, phaseNames(answer.ranks.flatMap((rank) => Object.keys(rank.phases))).map((name) => h("li", {}, h("span.key", {class: phaseClass(name)}), name)))),
    section("Training data", null, batches(answer, place)),
  ];
}

function gantt(answer, place) {
  const shown = answer.ranks.slice(0, MAX_DRAWN);
  const names = shown.map((rank) => `rank ${rank.rank}`);
  const phases = [...new Set(shown.flatMap((rank) => rank.timeline.map(([name]) => name)))];
  const traces = phases.map((phase) => {
    const bars = shown.flatMap((rank, at) => rank.timeline.filter(([name]) => name === phase).map(([, offset, length]) => ({y: names[at], base: offset, x: length})));
    return {type: "bar", orientation: "h", name: phase, y: bars.map((bar) => bar.y), x: bars.map((bar) => bar.x), base: bars.map((bar) => bar.base), marker: {color: color(phaseClass(phase)), line: {width: 0}}, hovertemplate: `${phase}: %{x:.2f} ms, from %{base:.2f} ms<extra>%{y}</extra>`, width: 0.82};
  });
  const path = answer.critical_path, row = names.indexOf(`rank ${path[0]?.rank}`);
  const shapes = row < 0 ? [] : [{type: "rect", x0: path[0].offset_ms, x1: path.at(-1).offset_ms + path.at(-1).duration_ms, y0: row - 0.47, y1: row + 0.47, line: {color: color("--ink"), width: 2}, fillcolor: "rgba(0,0,0,0)"}];
  return [chart("gantt", {
    label: `Step ${answer.step} over ${answer.ranks.length} ranks, ${duration(answer.duration_ms)}. Slowest: ${shown.slice(0, 3).map((rank) => `rank ${rank.rank}`).join(", ")}. Critical path: ${path.map((piece) => `${piece.name} ${duration(piece.duration_ms)}`).join(", ")}.`,
    traces, height: Math.max(70 + shown.length * (shown.length > 24 ? 13 : 24), 150),
    layout: {barmode: "overlay", showlegend: false, shapes, hovermode: "closest", margin: {l: 74}, uirevision: `step ${answer.step}`, xaxis: {ticksuffix: " ms", rangemode: "tozero"}, yaxis: {autorange: "reversed", type: "category", categoryorder: "array", categoryarray: names, fixedrange: true, showgrid: false, nticks: Math.min(shown.length, 32)}},
    table: () => table({caption: "Phases by rank, in ms", columns: [{title: "rank", cell: (rank) => rank.rank}, ...phases.map((phase) => ({title: phase, number: true, cell: (rank) => (rank.phases[phase] === undefined ? "–" : rank.phases[phase].toFixed(2))})), {title: "waited", number: true, cell: (rank) => (rank.waited_ms === null ? "–" : rank.waited_ms.toFixed(2))}], rows: answer.ranks}),
  }), answer.ranks.length > shown.length ? h("small", {}, `${answer.ranks.length - shown.length} faster ranks are not drawn.`) : null];
}

function batches(answer, place) {
  const rows = answer.ranks.flatMap((rank) => rank.batches.map((batch) => ({rank: rank.rank, waited: rank.waited_ms, ...batch})));
  if (!rows.length) return nothing("No batches were recorded for this step.");
  const run = place.get("run");
  return table({caption: "Batches of the step", maxRows: 12, columns: [
    {title: "rank", number: true, cell: (row) => row.rank}, {title: "micro-batch", number: true, cell: (row) => row.micro_batch}, {title: "epoch", number: true, cell: (row) => row.epoch}, {title: "data set", cell: (row) => row.dataset ?? "–"},
    {title: "samples", cell: (row) => h("div.chips", {}, (row.samples ?? []).slice(0, 12).map((sample) => link(place.to("/lineage", {run, sample}), String(sample))), (row.samples ?? []).length > 12 ? h("span", {}, `+${row.samples.length - 12}`) : null)}], rows});
}

function overview(traced, step, place) {
  const rows = traced.steps;
  return chart("traced", {
    label: `Duration of each of ${rows.length} traced steps; the slowest took ${duration(Math.max(...rows.map((row) => row.duration_ms)))}.`, height: 130,
    traces: [{type: "scatter", mode: "markers", x: rows.map((row) => row.step), y: rows.map((row) => row.duration_ms), customdata: rows.map((row) => row.attempt), marker: {size: rows.map((row) => (row.step === step ? 12 : 7)), color: rows.map((row) => (row.step === step ? color("--alarm") : color("s-infer")))}, hovertemplate: "step %{x:,}: %{y:.1f} ms<extra></extra>"}],
    layout: {margin: {t: 10, b: 24}, xaxis: {fixedrange: true, tickprefix: "step "}, yaxis: {ticksuffix: " ms", rangemode: "tozero", nticks: 3, fixedrange: true}, hovermode: "closest"},
    on: {plotly_click: (event) => go(place.href({step: event.points[0].x, attempt: event.points[0].customdata}))},
  });
}
