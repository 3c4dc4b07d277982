// One experiment or workload, with or without the SDK: cost, states over time, parts, runs and findings.

import {ask} from "../api.js";
import {evidence, heldTile, measured, overTime, rateTile, statesTable, wastedTile} from "../burned.js";
import {h, link, nothing, section, tile} from "../dom.js";
import {finding} from "../finding.js";
import {day, hours, number, plural, ratio, share, span, usdMicro, useZone, when} from "../format.js";
import {later} from "../parts.js";
import {windowOf, withWindow} from "../place.js";
import {table} from "../table.js";

const MAX_RUNS = 50;
const FEW_BUCKETS = 24;
const LAST = "31d"; // like the bill, so that amounts match

export async function show(place) {
  const isWorkload = place.path === "/workload";
  const name = place.get(isWorkload ? "workload" : "experiment");
  if (!name) return [h("h1", {}, isWorkload ? "Workload" : "Experiment"), nothing("Select one on the ", link(place.to("/chargeback"), "bill"), ".")];
  const subject = isWorkload ? {workload: name, team: null, experiment: null} : {experiment: name};
  const at = Object.keys(windowOf(place)).length ? place : {get: (key) => (key === "last" ? LAST : place.get(key)), signal: place.signal};
  const by = isWorkload ? "workload,pod,node,gpu_model,experiment,team,user" : "workload,experiment,team,user";
  const [burn, cost] = await Promise.all([ask("burn", at, subject), ask("cost", at, {...subject, by})]);
  useZone(burn.timezone);
  if (!cost.rows.length) return empty(place, subject, isWorkload, name, burn.window);
  const about = {isWorkload, name, rows: cost.rows, workload: cost.rows[0].workload, window: burn.window};
  const near = closer(burn);
  const shown = near ? await ask("burn", at, {...subject, ...near}) : burn;
  const why = ask("why", at, {...subject, ...near}), runs = ask("runs", at, {...subject, limit: MAX_RUNS});
  return [
    heading(about, cost.total, place),
    figures(burn, cost.total, why, name),
    // closed months keep their bill when the details are deleted
    burn.total.gpu_ms ? [overTime(shown, place, `${place.path} ${name}`), section("By state", null, statesTable(burn), evidence(burn))] : nothing("The details of this time range were deleted. Only the bill remains."),
    section(isWorkload ? "Pods" : "Workloads", null, parts(about, cost.total, place)),
    later(`runs of ${name}`, runs, (answer) => trainingRuns(answer, about, place)),
    section("Findings", null, later(`findings of ${name}`, why, (answer) => (answer.findings.length ? h("ul.findings", {}, answer.findings.map((one, at) => h("li", {}, finding(one, place, at === 0)))) : nothing("No findings in this time range.")), "Looking for causes…")),
  ];
}

/** The part of the time range that has data, if it is small. In a month, one night would be a single point. */
function closer({timeline: {rows, bucket_ms: bucket}, window}) {
  if (!rows.length || rows.length > FEW_BUCKETS) return null;
  const from = Math.max(rows[0].from_ms, Date.parse(window.from)), to = Math.min(rows.at(-1).from_ms + bucket, Date.parse(window.to));
  return withWindow({since: new Date(from).toISOString(), until: new Date(to).toISOString()});
}

const titleOf = (workload, pod, uid) => workload?.name ?? pod ?? uid;
const named = (rows, key) => [...new Set(rows.map((row) => row[key]).filter(Boolean))];

function crumbs({isWorkload, name, rows, workload}, place) {
  if (!isWorkload) return h("p.crumbs", {}, link(place.to("/experiments", {experiment: null}), "Experiments"), h("span", {}, `› ${name}`));
  const [experiment] = named(rows, "experiment");
  return h("p.crumbs", {}, experiment ? link(place.to("/experiment", {experiment}), experiment) : "Workloads", h("span", {}, `› ${titleOf(workload, rows[0]?.pod, name)}`));
}

function heading(about, total, place) {
  const {isWorkload, name, rows, workload, window} = about;
  const title = isWorkload ? titleOf(workload, rows[0].pod, name) : name;
  const [teams, users] = [named(rows, "team"), named(rows, "user")];
  const what = isWorkload ? (workload ? `${workload.kind ?? "Workload"} ${[workload.namespace, workload.name].filter(Boolean).join("/")}` : "pod without a workload") : null;
  const limited = !isWorkload && place.get("team") ? [" Only team ", place.get("team"), " is included: ", link(place.href({team: null}), "include all teams"), "."] : null;
  return [
    crumbs(about, place),
    h("h1", {"data-short": title}, h("b", {}, total.usd_micro === null ? `${hours(total.gpu_hours)} GPU-hours` : usdMicro(total.usd_micro)), ` for ${title}`),
    h("p.lede", {}, [what, teams.length ? `team ${teams.join(", ")}` : null, users.length ? `user ${users.join(", ")}` : null, span(window)].filter(Boolean).join(" · "), ".", limited),
  ];
}

function figures(burn, total, why, name) {
  const train = burn.states.find((row) => row.state === "train")?.gpu_ms;
  return h("dl.tiles", {},
    tile("Cost", usdMicro(total.usd_micro), total.unpriced_gpu_ms && total.usd_micro !== null ? `${hours(total.unpriced_gpu_ms / 3.6e6)} GPU-hours have no price` : null),
    tile("GPU-hours", hours(total.gpu_hours), null),
    burn.total.gpu_ms ? [
      wastedTile(burn, why, `explained ${name}`), rateTile(burn), heldTile(burn, false),
      train ? tile("Goodput", ratio(train / burn.total.gpu_ms), "share of its GPU time spent training") : null,
    ] : null);
}

/** The workloads of an experiment, or the pods of a workload. */
function parts({isWorkload, rows}, total, place) {
  const {key, basis} = measured(total);
  const shared = [
    {title: "user", cell: (row) => row.user ?? "–"},
    {title: "GPU-hours", number: true, cell: (row) => hours(row.gpu_hours)},
    {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)},
    {title: basis ? "share of GPU time" : "share of cost", number: true, cell: (row) => share(row[key], total[key])},
  ];
  if (isWorkload) {
    return table({caption: "Pods", maxRows: 30, rows, columns: [
      {title: "pod", cell: (row) => row.pod ?? "–"}, {title: "node", cell: (row) => row.node ?? "–"}, {title: "GPU", cell: (row) => row.gpu_model ?? "–"}, ...shared]});
  }
  return table({caption: "Workloads", maxRows: 30, rows, columns: [
    {title: "workload", cell: (row) => (row.workload ? link(place.to("/workload", {workload: row.workload.uid}), row.workload.name ?? row.workload.uid) : "pods without a workload")},
    {title: "kind", cell: (row) => row.workload?.kind ?? "–"}, {title: "namespace", cell: (row) => row.workload?.namespace ?? "–"}, {title: "team", cell: (row) => row.team ?? "–"}, ...shared]});
}

function trainingRuns({rows, next}, {isWorkload, name}, place) {
  if (!rows.length) return section("Training runs", null, nothing("No training runs in this time range. Start training with ", h("code", {}, "pyrometer run"), " to see steps and metrics."));
  const compare = isWorkload ? null : h("p.more", {}, link(place.to("/worth", {experiment: name}), "Compare runs"));
  return section("Training runs", next ? `the newest ${number(rows.length)}` : plural(rows.length, "run"), table({caption: "Training runs", maxRows: 12, rows, columns: [
    {title: "run", cell: (row) => link(place.to("/run", {run: row.run}), row.run)}, {title: "outcome", cell: (row) => h("span", {class: row.outcome === "failed" ? "alarm" : ""}, row.outcome)},
    {title: "started", number: true, cell: (row) => when(row.started)}, {title: "steps", number: true, cell: (row) => number(row.steps)},
    {title: "cost", number: true, cell: (row) => usdMicro(row.usd_micro)}, {title: "goodput", number: true, cell: (row) => ratio(row.goodput)}]}), compare);
}

/** A time range without data, with a link to the last data. */
async function empty(place, subject, isWorkload, name, window) {
  const ever = await ask("cost", place, {...subject, ...withWindow({all: "1"}), by: "day,workload,pod"});
  const last = ever.rows.at(-1);
  const title = isWorkload ? titleOf(last?.workload, last?.pod, name) : name;
  return [
    crumbs({isWorkload, name, rows: [], workload: last?.workload ?? {name: title}}, place), h("h1", {"data-short": title}, title), h("p.lede", {}, span(window), "."),
    nothing(last ? `No GPU time in this time range. The last GPU time was on ${day(`${last.day}T12:00:00Z`)}, ${last.day.slice(0, 4)}. ` : "It has never held a GPU.",
      last ? link(place.href(withWindow({all: "1"})), "Show all time") : null),
  ];
}
