// How far the data is behind the clock. Only fresh data is labeled "now".

import {clock, duration, when} from "./format.js";

const LIVE_UP_TO_MS = 3 * 60_000;
const HOUR = 3_600_000;

let ledger = {to: null, origin: null};

/** Takes the end and the origin of the server's ledger. */
export function learn(news) {
  if (news) ledger = {to: news.to, origin: news.origin ?? null};
}

/**
 * The freshness of data that ends at `to`: {kind, text}. Kinds: none, live, behind, recorded.
 * `origin` is null for data of a running cluster. Simulated data may also end in the future.
 */
export function freshness({to, origin}, now) {
  if (!to) return {kind: "none", text: "Waiting for data"};
  const behind = now - Date.parse(to);
  if (behind < LIVE_UP_TO_MS && !(origin && behind < -LIVE_UP_TO_MS)) return {kind: "live", text: "Live"};
  return origin ? {kind: "recorded", text: origin === "simulated" ? "Simulated" : "Recorded"} : {kind: "behind", text: `${length(behind)} behind`};
}

function length(ms) {
  const [size, unit] = ms < HOUR ? [60_000, "min"] : ms < 48 * HOUR ? [HOUR, "h"] : [24 * HOUR, "d"];
  return `${Math.floor(ms / size)} ${unit}`;
}

/** The freshness of the server's data. */
export const ofLedger = (now = Date.now()) => freshness(ledger, now);

/** The end of the server's data. Null when there is none. */
export const ledgerEnd = () => ledger.to;

/** Whether a time of an answer counts as now. */
export const isNow = (to, now = Date.now()) => Boolean(to) && freshness({to, origin: ledger.origin}, now).kind === "live";

/** "Now" or the time, with a date if the answer spans more than a day. */
export function momentOf(to, window, now = Date.now()) {
  if (isNow(to, now)) return "Now";
  return `At ${Date.parse(window.to) - Date.parse(window.from) > 24 * HOUR ? when(to) : clock(to)}`;
}

/** The label of an average over the last minutes. */
export function minutesOf(rate, now = Date.now()) {
  const length = duration(Date.parse(rate.to) - Date.parse(rate.from));
  return isNow(rate.to, now) ? `average of the last ${length}` : `average of the ${length} before ${clock(rate.to)}`;
}

/** "3 running now", or the time for which that is known. */
export function stillRunning(count = null) {
  const {kind} = ofLedger();
  return `${count === null ? "" : `${count} `}running${kind === "live" ? " now" : kind === "none" ? "" : ` at ${when(ledger.to)}`}`;
}
