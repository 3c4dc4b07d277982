// The cluster page: every GPU as a cell with the color of its state, now or in the past, and the waiting pods.

import {ask} from "../api.js";
import {color} from "../chart.js";
import {h, link, nothing, section, state} from "../dom.js";
import {isNow} from "../freshness.js";
import {duration, number, plural, share, useZone, when, exactly, zoneName} from "../format.js";
import {go, withWindow} from "../place.js";
import {table} from "../table.js";

const MINUTE = 60_000;

export async function show(place) {
  const answer = await ask("cluster", place, {at: place.get("at")});
  if (answer.timezone) useZone(answer.timezone);
  if (answer.at_ms === null) return [h("h1", {}, "Cluster"), nothing("No GPUs were reported in this time range. ", link(place.href(withWindow({all: "1"})), "Show all time"))];
  const cells = answer.pools.reduce((all, pool) => all + pool.nodes.reduce((count, node) => count + node.cells.length, 0), 0);
  const nodes = answer.pools.reduce((all, pool) => all + pool.nodes.length, 0);
  return [
    h("h1", {"data-short": "Cluster"}, h("b", {}, number(cells)), ` GPUs on ${plural(nodes, "node")} `, h("small", {}, `${exactly(answer.at_ms)} ${zoneName()}`)),
    times(answer, place),
    h("div.pair.wide-first", {},
      section("GPUs", "use the arrow keys to move between GPUs", legend(answer, place), board(answer, place)),
      section("Waiting", answer.queue_total ? plural(answer.queue_total, "pod") : null, queue(answer, place))),
  ];
}

// -- time -------------------------------------------------------------------------------------------------------------

function times(answer, place) {
  const from = Date.parse(answer.from), to = Date.parse(answer.to) - MINUTE;
  const input = h("input", {id: "at", type: "range", min: from, max: to, step: MINUTE, value: answer.at_ms, "aria-label": "Time", "aria-valuetext": when(answer.at_ms)});
  const shownTime = h("output", {for: "at"}, when(answer.at_ms));
  input.addEventListener("input", () => { shownTime.textContent = when(Number(input.value)); });
  const move = (at) => go(place.href({at: at >= to ? null : new Date(Math.max(at, from)).toISOString()}), {replace: true});
  input.addEventListener("change", () => move(Number(input.value)));
  const step = (minutes, text, label) => h("button", {type: "button", class: Math.abs(minutes) < 60 ? "fine" : "", "aria-label": label, onclick: () => move(answer.at_ms + minutes * MINUTE)}, text);
  return h("div.slider", {}, step(-60, "−1 h", "One hour earlier"), step(-1, "−1 min", "One minute earlier"), input,
    step(1, "+1 min", "One minute later"), step(60, "+1 h", "One hour later"), shownTime,
    place.get("at") ? h("a", {href: place.href({at: null})}, isNow(answer.to) ? "Now" : "Latest") : null);
}

function legend(answer, place) {
  const chosen = place.get("state");
  const total = Object.values(answer.counts).reduce((all, ms) => all + ms, 0);
  return h("ul.legend", {}, answer.states.filter((name) => answer.counts[name]).map((name) => h("li", {},
    h("button", {type: "button", "aria-pressed": String(!chosen || chosen === name), onclick: () => go(place.href({state: chosen === name ? null : name}), {replace: true})},
      state(name), h("small", {}, ` ${number(answer.counts[name] / MINUTE)} · ${share(answer.counts[name], total)}`)))));
}

// -- the cells --------------------------------------------------------------------------------------------------------

/** All cells on one canvas, because ten thousand elements are slow. Arrow keys move between cells, and screen readers announce them. */
function board(answer, place) {
  const canvas = h("canvas", {tabindex: "0", role: "application", "aria-roledescription": "grid of GPUs", "aria-describedby": "cell-description", id: "cells"});
  const tip = h("div.tip", {hidden: true, role: "presentation"}), description = h("p.unseen", {id: "cell-description", "aria-live": "polite"});
  canvas.setAttribute("aria-label", `Every GPU as a cell: ${answer.states.map((name) => `${number((answer.counts[name] ?? 0) / MINUTE)} ${name}`).join(", ")}.`);
  const whole = h("div.cells", {}, canvas, tip, description);
  const chosen = place.get("state");
  const drawn = document.createElement("canvas");  // the cells without the selection, drawn once
  let placed = [], chosenCell = -1;

  function draw() {
    const width = whole.clientWidth;
    if (!width) return;
    const layout = arranged(answer, width);
    placed = layout.cells;
    const scale = devicePixelRatio || 1;
    canvas.width = drawn.width = width * scale;
    canvas.height = drawn.height = layout.height * scale;
    canvas.style.height = `${layout.height}px`;
    const pen = drawn.getContext("2d");
    pen.scale(scale, scale);
    const colors = answer.states.map((name) => color(`s-${name}`));
    const ink = color("--ink"), soft = color("--soft"), card = color("--card"), font = getComputedStyle(document.body).fontFamily;
    for (const {text, x, y, strong} of layout.texts) {
      pen.font = `${strong ? 600 : 400} ${strong ? 13 : 11}px ${font}`;
      pen.fillStyle = strong ? ink : soft;
      pen.fillText(text, x, y);
    }
    for (const {x, y, size, cell} of placed) {
      pen.globalAlpha = chosen && answer.states[cell[1]] !== chosen ? 0.13 : 1;
      pen.fillStyle = colors[cell[1]];
      pen.fillRect(x, y, size, size);
      if (cell[3] < 500 && size > 6) {
        pen.fillStyle = card;
        pen.fillRect(x + size - 3, y, 3, 3);
      }
    }
    mark();
  }

  function mark() {
    const pen = canvas.getContext("2d"), scale = devicePixelRatio || 1;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(drawn, 0, 0);
    if (chosenCell < 0 || !placed[chosenCell]) return;
    const {x, y, size} = placed[chosenCell];
    pen.strokeStyle = color("--ink");
    pen.lineWidth = 2 * scale;
    pen.strokeRect((x - 1.5) * scale, (y - 1.5) * scale, (size + 3) * scale, (size + 3) * scale);
  }

  function words({pool, node, cell}) {
    const holder = cell[2] === null ? null : answer.holders[cell[2]];
    return [`GPU ${cell[0]} of ${node.node}`, [pool.gpu_model, pool.pool].filter(Boolean).join(" · "), answer.states[cell[1]],
      holder ? [holder.workload?.name ?? holder.pod, holder.experiment, holder.team, holder.user].filter(Boolean).join(" · ") : "not held",
      cell[3] < 1000 ? `${Math.round(cell[3] / 10)}% of that minute` : null].filter(Boolean);
  }

  function choose(index, x = null, y = null) {
    if (index === chosenCell && index < 0) return;
    chosenCell = index;
    mark();
    const found = placed[index];
    tip.hidden = !found;
    if (!found) return;
    const [first, ...others] = words(found);
    tip.replaceChildren(h("b", {}, first), ...others.map((text) => h("div", {}, text)));
    description.textContent = [first, ...others].join(", ");
    const box = canvas.getBoundingClientRect();
    const left = (x ?? box.left + found.x + found.size) + 14, above = (y ?? box.top + found.y + found.size) + 10;
    tip.style.left = `${Math.min(left, innerWidth - tip.offsetWidth - 12)}px`;
    tip.style.top = `${Math.min(above, innerHeight - tip.offsetHeight - 12)}px`;
  }

  const under = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return placed.findIndex((one) => x >= one.x && x <= one.x + one.size + 1 && y >= one.y && y <= one.y + one.size + 1);
  };
  const open = (index) => {
    const holder = placed[index]?.cell[2] === null || !placed[index] ? null : answer.holders[placed[index].cell[2]];
    if (holder) go(place.to("/run", {workload: holder.workload?.uid ?? holder.pod_uid}));
  };
  canvas.addEventListener("pointermove", (event) => choose(under(event), event.clientX, event.clientY));
  canvas.addEventListener("pointerleave", () => choose(-1));
  canvas.addEventListener("blur", () => choose(-1));
  canvas.addEventListener("click", (event) => open(under(event)));
  canvas.addEventListener("keydown", (event) => {
    const now = Math.max(chosenCell, 0), row = placed[now];
    const near = (test) => {
      let best = -1, least = Infinity;
      placed.forEach((one, at) => {
        const far = test(one, row);
        if (far !== null && far < least) [best, least] = [at, far];
      });
      return best;
    };
    const to = {
      ArrowRight: () => Math.min(now + (chosenCell >= 0 ? 1 : 0), placed.length - 1), ArrowLeft: () => Math.max(now - 1, 0),
      ArrowDown: () => near((one, me) => (one.y > me.y ? (one.y - me.y) * 1e4 + Math.abs(one.x - me.x) : null)),
      ArrowUp: () => near((one, me) => (one.y < me.y ? (me.y - one.y) * 1e4 + Math.abs(one.x - me.x) : null)),
      Home: () => 0, End: () => placed.length - 1, Enter: () => (open(now), now), Escape: () => -1,
    }[event.key];
    if (!to || !placed.length) return;
    event.preventDefault();
    const index = to();
    if (index >= 0 || event.key === "Escape") choose(index);
  });
  new ResizeObserver(draw).observe(whole);
  return whole;
}

/** The layout: pools below each other, their nodes side by side, as large as they fit. */
function arranged(answer, width) {
  const count = answer.pools.reduce((all, pool) => all + pool.nodes.reduce((sum, node) => sum + node.cells.length, 0), 0);
  const size = count > 4000 ? 7 : count > 1200 ? 10 : count > 400 ? 13 : 18;
  const gap = size > 8 ? 2 : 1, between = size > 8 ? 12 : 5;
  const named = size >= 10;
  const cells = [], texts = [];
  let y = 0;
  for (const pool of answer.pools) {
    const own = pool.nodes.reduce((all, node) => all + node.cells.length, 0);
    texts.push({text: `${[pool.pool ?? pool.cluster, pool.gpu_model].filter(Boolean).join(" · ")} · ${own.toLocaleString("en-US")} GPUs`, x: 0, y: y + 13, strong: true});
    y += 22;
    let x = 0, tallest = 0;
    for (const node of pool.nodes) {
      const columns = Math.min(node.cells.length, named ? 8 : 4) || 1, rows = Math.ceil(node.cells.length / columns);
      const wide = columns * (size + gap) - gap, high = rows * (size + gap) - gap + (named ? 14 : 0);
      if (x + wide > width && x > 0) {
        x = 0;
        y += tallest + between;
        tallest = 0;
      }
      if (named) texts.push({text: fitted(node.node, wide), x, y: y + 10});
      node.cells.forEach((cell, at) => cells.push({
        x: x + (at % columns) * (size + gap), y: y + (named ? 14 : 0) + Math.floor(at / columns) * (size + gap), size, cell, node, pool,
      }));
      x += wide + between;
      tallest = Math.max(tallest, high);
    }
    y += tallest + 22;
  }
  return {cells, texts, height: Math.max(y, 40)};
}

const fitted = (text, wide) => (text.length * 6 <= wide ? text : `…${text.slice(-Math.max(Math.floor(wide / 6) - 1, 3))}`);

// -- the queue --------------------------------------------------------------------------------------------------------

function queue(answer, place) {
  if (!answer.queue.length) return nothing("No pods waiting for GPUs.");
  return table({caption: "Pods waiting for GPUs", maxRows: 30, columns: [
    {title: "workload", cell: (row) => [h("div", {}, link(place.to("/run", {workload: row.workload?.uid ?? row.pod_uid}), row.workload?.name ?? row.pod)), h("small", {}, [row.team, row.queue].filter(Boolean).join(" · "))]},
    {title: "GPUs", number: true, cell: (row) => number(row.gpus)},
    {title: "waiting", number: true, cell: (row) => duration(row.waited_ms)},
    {title: "reason", cell: (row) => h("small", {}, row.reason ?? "–")}], rows: answer.queue});
}
