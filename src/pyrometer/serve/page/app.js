// The frame of every page: navigation, time range, filters, user, and freshness of the data.

import {fetched, listen, Refused, session} from "./api.js";
import {forget} from "./chart.js";
import {h} from "./dom.js";
import {clock, day, exactly, when, zoneName} from "./format.js";
import {learn, ledgerEnd, ofLedger} from "./freshness.js";
import {begin, settle} from "./parts.js";
import {go, PageAddress, windowOf, withWindow, withoutSubject} from "./place.js";

const PAGES = [
  {path: "/", name: "Burn", module: "burn", usual: "Last 12 hours"},
  {path: "/experiments", name: "Experiments", module: "experiments", usual: "Everything"},
  {path: "/worth", name: "Worth", module: "worth", usual: "Everything"},
  {path: "/run", name: "Runs", module: "run", usual: "Everything", },
  {path: "/cluster", name: "Cluster", module: "cluster", usual: "Last 12 hours"},
  {path: "/chargeback", name: "Chargeback", module: "chargeback", usual: "Last 31 days"},
  {path: "/pipelines", name: "Pipelines", module: "pipelines", usual: "Everything"},
  {path: "/experiment", name: "Experiment", module: "entity", usual: "Last 31 days", hidden: true, within: "/experiments", single: true},
  {path: "/workload", name: "Workload", module: "entity", usual: "Last 31 days", hidden: true, within: "/cluster", single: true},
  {path: "/step", name: "Step", module: "step", usual: "Everything", hidden: true, within: "/run"},
  {path: "/lineage", name: "Lineage", module: "lineage", usual: "Everything", hidden: true, within: "/run"},
];
const CHECK_EVERY_MS = 10_000;
const RANGES = [["1h", "Last hour"], ["6h", "Last 6 hours"], ["12h", "Last 12 hours"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["30d", "Last 30 days"]];

const top = document.getElementById("top"), main = document.getElementById("main");
let controller = new AbortController();
let who = null;
let live = {on: true, connected: false, revision: null};
let drawnFor = null; // the freshness of the data when the page was drawn

// -- the current page ----------------------------------------------------------------------------------------------------

async function show({refresh = false} = {}) {
  controller.abort();
  controller = new AbortController();
  const place = new PageAddress(location.href, controller.signal, who?.team);
  const page = PAGES.find((one) => one.path === place.path);
  if (!page) return failed(new Refused(404, `Page ${place.path} not found.`));
  if (!refresh) {
    delete main.dataset.shown;
    frame(place, page);
    document.title = `${page.name} · Pyrometer`;
  }
  const shown = controller;
  const waiting = () => shown.signal.aborted || main.replaceChildren(h("p.loading", {role: "status"}, "Loading…"));
  const slow = refresh ? null : setTimeout(waiting, 200);
  begin();
  drawnFor = ofLedger().kind;
  try {
    const module = await import(`./pages/${page.module}.js`);
    const nodes = await module.show(place);
    if (shown.signal.aborted) return;
    const focused = refresh ? document.activeElement?.id : null;
    main.replaceChildren(...nodes.flat(Infinity).filter(Boolean));
    if (focused) document.getElementById(focused)?.focus({preventScroll: true});
    const title = main.querySelector("h1");
    if (title) document.title = `${title.dataset.short ?? title.textContent} · Pyrometer`;
    forget();
    settle();
    arrived();
  } catch (error) {
    if (error.name !== "AbortError" && !shown.signal.aborted) failed(error, refresh);
  } finally {
    clearTimeout(slow);
  }
}

/** Marks the current address as shown. Slow parts may still be loading. */
function arrived() {
  main.dataset.shown = location.pathname + location.search;
}

const TITLES = {0: "Server not reachable", 400: "Invalid request", 403: "Access denied", 404: "Not found"};
const titleOf = (error) => TITLES[error.status] ?? "Page not available";

function failed(error, refresh = false) {
  if (error.status === 401) return signIn(error.message);
  if (refresh && error.status === 0) return frameLive();
  if (!(error instanceof Refused)) console.error(error);
  const empty = error.status === 409;
  main.replaceChildren(h("div.trouble", {role: "alert"},
    h("h1", {}, empty ? "No data yet" : titleOf(error)),
    h("p", {}, error.message),
    empty ? h("p.soft", {}, "This page updates automatically when a cluster, a GPU exporter or a training run reports data.") : null,
    h("button", {type: "button", onclick: () => show()}, "Try again")));
  arrived();
}

function signIn(reason) {
  const token = h("input", {type: "password", id: "token", name: "token", autocomplete: "current-password", required: true, spellcheck: "false"});
  const problem = h("p.alarm", {role: "alert"});
  main.replaceChildren(h("form.sign-in", {onsubmit: async (event) => {
    event.preventDefault();
    try {
      await session.begin(token.value);
      await start();
    } catch (error) {
      problem.textContent = error.message;
      token.select();
    }
  }}, h("h1", {}, "Sign in"),
    h("p.soft", {}, "Create a token on the server: ", h("code", {}, "pyrometer token create NAME --role viewer")),
    h("label", {for: "token"}, "Token"), token, problem, h("button.primary", {type: "submit"}, "Sign in")));
  top.replaceChildren(h("div.bar", {}, brand()));
  token.focus();
  arrived();
}

// -- the frame --------------------------------------------------------------------------------------------------------

const brand = () => h("a.brand", {href: "/"}, h("span.mark", {"aria-hidden": "true"}), "Pyrometer");

function frame(place, page) {
  const nav = h("nav", {"aria-label": "Pages"}, PAGES.filter((one) => !one.hidden).map((one) =>
    h("a", {href: place.to(one.path), "aria-current": one.path === place.path || one.path === page.within ? "page" : null}, one.name)));
  top.replaceChildren(h("div.bar", {}, brand(), nav, h("div.tools", {}, h("span", {id: "live"}), themeButton(), person())),
    h("div.bar.choices", {role: "group", "aria-label": "Filters"}, range(place, page), page.single ? null : filters(place)));
  frameLive();
}

function range(place, page) {
  const chosen = windowOf(place);
  const own = chosen.since || chosen.until ? "own" : chosen.all ? "all" : chosen.month ? "month" : chosen.last ?? "";
  const options = [["", `${page.usual} (default)`], ...RANGES, ["all", "Everything"], ["own", chosen.since ? rangeText(chosen) : "Custom range"]];
  if (chosen.month) options.push(["month", chosen.month]);
  if (chosen.last && !RANGES.some(([value]) => value === chosen.last)) options.push([chosen.last, `Last ${chosen.last}`]);
  const fields = h("form.own", {hidden: own !== "own", onsubmit: (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    go(place.href(inWindow({since: given.get("since").replace("T", " "), until: given.get("until").replace("T", " ")})));
  }}, h("input", {type: "datetime-local", name: "since", "aria-label": "From", value: localised(chosen.since)}),
    h("input", {type: "datetime-local", name: "until", "aria-label": "To", value: localised(chosen.until)}), h("button", {type: "submit"}, "Show"));
  return h("div.choice", {}, h("label", {for: "range"}, "Time"), h("select", {id: "range", onchange: (event) => {
    const value = event.target.value;
    if (value === "own") fields.hidden = false;
    else go(place.href(inWindow(value === "all" ? {all: "1"} : value === "month" ? {month: chosen.month} : {last: value || null})));
  }}, options.map(([value, text]) => h("option", {value, selected: value === own}, text))), fields);
}

/** Changes the time range, and drops the shown minute, which the new range may not contain. */
const inWindow = (window) => ({...withWindow(window), at: null});
const localised = (text) => (text ?? "").replace(" ", "T").replace(/(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?$/, (all, ...groups) => (groups[0] && (text.match(/:/g) ?? []).length < 2 ? groups[0] : ""));
const moment = (text) => (/T.*Z$/.test(text) ? when(text) : text); // reformats times from charts, and keeps typed ones
const rangeText = ({since, until}) => `${since ? moment(since) : "the beginning"} – ${until ? moment(until) : "the latest data"}`;

function filters(place) {
  return ["team", "experiment"].map((name) => {
    const chosen = place.get(name);
    const fixed = name === "team" && who?.team;
    const select = h("select", {id: name, disabled: Boolean(fixed), onchange: (event) => go(place.href({...withoutSubject(name), [name]: event.target.value || null}))},
      h("option", {value: ""}, fixed ? who.team : `All ${name}s`), chosen ? h("option", {value: chosen, selected: true}, chosen) : null);
    const fill = async () => {
      const answer = await fetched(`/api/v1/cost?by=${name}&${new URLSearchParams(name === "experiment" && place.get("team") ? {...windowOf(place), team: place.get("team")} : windowOf(place))}`).catch(() => ({rows: []}));
      const names = [...new Set(answer.rows.map((row) => row[name]))].filter((value) => value && value !== chosen).sort();
      select.append(...names.map((value) => h("option", {value}, value)));
    };
    if (!fixed) select.addEventListener("focus", fill, {once: true});
    return h("div.choice", {}, h("label", {for: name}, name[0].toUpperCase() + name.slice(1)), select);
  });
}

function themeButton() {
  const now = () => document.documentElement.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  return h("button.plain", {type: "button", id: "theme", title: "Switch theme", "aria-label": "Switch theme", onclick: () => {
    const next = now() === "dark" ? "light" : "dark";
    document.documentElement.style.colorScheme = next;
    localStorage.setItem("theme", next);
    show({refresh: true});
  }}, "◐");
}

function person() {
  if (!who || who.sign_in === "open") return null;
  const out = who.sign_in === "token" ? h("button.plain", {type: "button", onclick: async () => {
    await session.end().catch(() => null);
    who = null;
    signIn();
  }}, "Sign out") : null;
  return h("span.person", {title: who.role}, who.name, who.team ? ` · ${who.team}` : "", out);
}

// -- freshness -----------------------------------------------------------------------------------------------------

/** The chip: how far the data is behind the clock, unless the page is paused or disconnected. */
function frameLive() {
  const frame = document.getElementById("live"), to = ledgerEnd();
  if (!frame) return;
  const {kind, text} = !live.on ? {kind: "paused", text: "Paused"} : live.connected ? ofLedger() : {kind: "lost", text: "Disconnected"};
  const end = to ? ` ${kind === "recorded" ? "until " : ""}${(day(to) === day(Date.now()) ? clock : when)(to)} ${zoneName()}` : "";
  if (frame.dataset.shown === text + end) return;
  frame.dataset.shown = text + end;
  const button = frame.firstChild ?? frame.appendChild(h("button.plain", {type: "button", id: "pause", onclick: () => {
    live.on = !live.on;
    frameLive();
    if (live.on) show({refresh: true});
  }}));
  button.className = `plain is-${kind}`;
  button.setAttribute("aria-pressed", String(!live.on));
  button.title = to ? `The newest data is from ${exactly(to)} ${zoneName()}` : "";
  button.replaceChildren(h("span.dot", {"aria-hidden": "true"}), text, h("small", {}, end));
}

/** Updates the chip when time passes without new data, and the page when "now" becomes wrong. */
function tick() {
  frameLive();
  if (live.on && drawnFor !== null && drawnFor !== ofLedger().kind) later();
}

let stopListening = null;
let due = null;

function follow() {
  stopListening?.();
  stopListening = listen({
    ledger: (news) => {
      const changed = live.revision !== null && live.revision !== news.revision;
      live.revision = news.revision;
      learn(news);
      tick();
      if (changed && live.on) later();
    },
    answer: () => live.on && later(),
    connected: (is) => {
      live.connected = is;
      frameLive();
    },
  });
}

/** Draws the page again soon. Waits while it is hidden or the user types. */
function later() {
  if (due) return;
  due = setTimeout(async () => {
    due = null;
    const typing = ["INPUT", "SELECT"].includes(document.activeElement?.tagName);
    if (document.hidden || typing) return later();
    await show({refresh: true});
  }, 500);
}

// -- navigation -----------------------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (anchor.target || anchor.hasAttribute("download") || anchor.origin !== location.origin) return;
  if (anchor.hash && anchor.pathname === location.pathname && anchor.search === location.search) return;
  if (!PAGES.some((one) => one.path === anchor.pathname)) return;
  event.preventDefault();
  go(anchor.href);
});

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const page = PAGES.filter((one) => !one.hidden)[Number(event.key) - 1];
  if (page) go(new PageAddress(location.href).to(page.path));
});

let path = null;
async function moved() {
  const before = path;
  path = location.pathname;
  await show();
  if (before !== path) {
    scrollTo(0, 0);
    main.focus({preventScroll: true});
  }
}
addEventListener("popstate", moved);
addEventListener("placechange", moved);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show({refresh: true}));

async function start() {
  try {
    who = await session.who();
    learn(who.ledger);
  } catch (error) {
    if (error.status === 401) return signIn(error.message);
  }
  path = location.pathname;
  await show();
  follow();
}

start();
setInterval(tick, CHECK_EVERY_MS);
