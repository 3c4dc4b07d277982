// How far the data is behind the clock, and the words for it. A page says "now" only about data that is new.

import {clock, duration, when} from "./format.js";

const LIVE_UP_TO_MS = 3 * 60_000;
const HOUR = 3_600_000;

let ledger = {to: null, origin: null};

/** What the server says of its ledger: until when it accounts, and whether it was simulated or recorded. */
export function learn(news) {
  if (news) ledger = {to: news.to, origin: news.origin ?? null};
}

/**
 * What data up to a time is at this moment: {kind, text}, kind one of none, live, behind and recorded.
 * `origin` is null for data of a running cluster. Data of a simulation may end after this moment, too.
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

/** The freshness of everything the server has. */
export const ofLedger = (now = Date.now()) => freshness(ledger, now);

/** Until when the server's data reaches; null before it has any. */
export const ledgerEnd = () => ledger.to;

/** Whether a time that an answer is about is this moment, as far as the data allows. */
export const isNow = (to, now = Date.now()) => Boolean(to) && freshness({to, origin: ledger.origin}, now).kind === "live";

/** "Now", or the time that is meant: with its date if the answer spans more than a day. */
export function momentOf(to, window, now = Date.now()) {
  if (isNow(to, now)) return "Now";
  return `At ${Date.parse(window.to) - Date.parse(window.from) > 24 * HOUR ? when(to) : clock(to)}`;
}

/** What an average of the last minutes is about. */
export function minutesOf(rate, now = Date.now()) {
  const length = duration(Date.parse(rate.to) - Date.parse(rate.from));
  return isNow(rate.to, now) ? `average of the last ${length}` : `average of the ${length} before ${clock(rate.to)}`;
}

/** That a run, or how many of them, have not ended, and as of when. */
export function stillRunning(count = null) {
  const {kind} = ofLedger();
  return `${count === null ? "" : `${count} `}running${kind === "live" ? " now" : kind === "none" ? "" : ` at ${when(ledger.to)}`}`;
}
