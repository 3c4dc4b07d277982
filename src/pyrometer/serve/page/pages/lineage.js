// The lineage page: from a step to its samples and back, and to the checkpoints that contain them.

import {ask} from "../api.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {duration, number, plural, when} from "../format.js";
import {go} from "../place.js";
import {isOutside, outside, runTabs} from "../runs.js";
import {table} from "../table.js";

const MAX_SAMPLES = 16;

export async function show(place) {
  const run = place.get("run");
  if (!run) return [h("h1", {}, "Lineage"), nothing("No run selected. ", link(place.to("/run"), "Select a run"))];
  if (await isOutside(place)) return outside(place);
  const head = [h("p.crumbs", {}, link(place.to("/run"), "Runs"), "›", link(place.to("/run", {run}), run), "› lineage"), h("h1", {"data-short": `${run}, lineage`}, "Lineage"), runTabs(place, "/lineage"), questions(place, run)];
  const subject = ["sample", "step", "checkpoint"].find((name) => place.get(name));
  if (!subject) return [...head, await offers(place, run)];
  const answer = await ask("lineage", place, {run, [subject]: place.get(subject), attempt: place.get("attempt"), limit: 200, offset: place.get("offset")});
  const draw = {sample: ofSample, step: ofStep, checkpoint: ofCheckpoint}[subject];
  return [...head, ...draw(answer, place, run)];
}

function questions(place, run) {
  const form = (name, label, type) => h("form.choice", {onsubmit: (event) => {
    event.preventDefault();
    go(place.to("/lineage", {run, [name]: new FormData(event.target).get(name)}));
  }}, h("label", {for: `q-${name}`}, label), h("input", {type, id: `q-${name}`, name, value: place.get(name) ?? "", size: 12, required: true, min: 0}), h("button", {type: "submit"}, "Show"));
  return h("div.controls", {}, form("step", "Step", "number"), form("sample", "Sample ID", "text"), form("checkpoint", "Checkpoint step", "number"));
}

async function offers(place, run) {
  const about = await ask("show", place, {run, without: "windows,findings"});
  const saved = about.lifecycle.filter((row) => row.what === "checkpoint_saved");
  const steps = [...new Map(saved.map((row) => [`${row.step} ${row.attempt}`, row])).values()].reverse();
  return section("Checkpoints", "select one to see its data", steps.length ? table({caption: "Checkpoints", columns: [
    {title: "step", number: true, cell: (row) => link(place.href({checkpoint: row.step, attempt: row.attempt}), number(row.step))}, {title: "attempt", number: true, cell: (row) => row.attempt},
    {title: "saved", cell: (row) => when(row.at)}, {title: "took", number: true, cell: (row) => duration(row.duration_ms)}], rows: steps}) : nothing("This run saved no checkpoints."));
}

const samples = (row, place, run) => h("div.chips", {}, (row.samples ?? []).slice(0, MAX_SAMPLES).map((sample) => link(place.to("/lineage", {run, sample}), String(sample))), (row.samples ?? []).length > MAX_SAMPLES ? h("span", {}, `+${row.samples.length - MAX_SAMPLES}`) : null);

function updates(answer, place, run, {step = true} = {}) {
  if (!answer.updates.length) return nothing("No batches were recorded.", answer.nearest?.length ? [" Nearest recorded steps: ", answer.nearest.map((one, at) => [at ? ", " : "", link(place.to("/lineage", {run, step: one.step ?? one}), number(one.step ?? one))])] : null);
  const after = answer.offset + answer.updates.length;
  return [
    table({caption: "Batches", maxRows: 32, columns: [
      ...(step ? [{title: "step", number: true, cell: (row) => link(place.to("/step", {run, step: row.step, attempt: row.attempt}), number(row.step))}] : []),
      {title: "attempt", number: true, cell: (row) => [row.attempt, row.lost ? h("small", {}, " lost") : null]}, {title: "rank", number: true, cell: (row) => row.rank}, {title: "micro-batch", number: true, cell: (row) => row.micro_batch}, {title: "epoch", number: true, cell: (row) => row.epoch},
      {title: "data set", cell: (row) => row.dataset ?? "–"}, {title: "samples", cell: (row) => samples(row, place, run)}], rows: answer.updates}),
    h("p.controls", {}, h("small", {}, `${number(answer.offset + 1)} to ${number(after)} of ${number(answer.total)}`), answer.offset ? link(place.href({offset: Math.max(answer.offset - 200, 0) || null}), "← previous") : null, after < answer.total ? link(place.href({offset: after}), "next →") : null),
  ];
}

function checkpoints(answer, place, run) {
  if (!answer.checkpoints.length) return nothing("No later checkpoint was recorded.");
  return table({caption: "Checkpoints that contain it", maxRows: 20, columns: [
    {title: "step", number: true, cell: (row) => link(place.to("/lineage", {run, checkpoint: row.step, attempt: row.attempt}), number(row.step))}, {title: "attempt", number: true, cell: (row) => row.attempt}, {title: "saved", cell: (row) => when(row.at)}], rows: answer.checkpoints});
}

function ofStep(answer, place, run) {
  return [
    h("dl.tiles", {}, tile("Step", number(answer.step), link(place.to("/step", {run, step: answer.step}), "Open trace")), tile("Batches", number(answer.total), answer.unknown_batches ? `${answer.unknown_batches} not recorded` : null), tile("In checkpoints", number(answer.checkpoints.length), null)),
    section(`Data of step ${number(answer.step)}`, null, updates(answer, place, run, {step: false})), section("Checkpoints that contain it", null, checkpoints(answer, place, run)),
  ];
}

function ofSample(answer, place, run) {
  return [
    h("dl.tiles", {}, tile("Sample", answer.sample, null), tile("Used in", plural(answer.total, "batch", "batches"), `of ${number(answer.batches)} recorded`), tile("In checkpoints", number(answer.checkpoints.length), null)),
    section("Batches that contain it", null, updates(answer, place, run)), section("Checkpoints that contain it", null, checkpoints(answer, place, run)),
  ];
}

function ofCheckpoint(answer, place, run) {
  return [
    h("dl.tiles", {}, tile("Checkpoint", `step ${number(answer.step)}`, when(answer.checkpoint.at)), tile("Batches", number(answer.total), "recorded in its steps"), tile("Built from", plural(answer.parts.length, "attempt"), answer.parts.map((part) => `${number(part.from_step)}–${number(part.to_step)}`).join(", "))),
    section("By epoch", null, answer.epochs.length ? table({caption: "Epochs", columns: [
      {title: "data set", cell: (row) => row.dataset ?? "–"}, {title: "epoch", number: true, cell: (row) => row.epoch}, {title: "steps", cell: (row) => `${number(row.first_step)}–${number(row.last_step)}`}, {title: "batches", number: true, cell: (row) => number(row.batches)}, {title: "samples", number: true, cell: (row) => number(row.samples)}], rows: answer.epochs}) : nothing("No data was recorded.")),
    section("Batches", null, updates(answer, place, run)),
  ];
}
