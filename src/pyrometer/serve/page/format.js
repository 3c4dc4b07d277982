// Formats numbers and times like the command line.

const whole = new Intl.NumberFormat("en-US", {maximumFractionDigits: 0});
const cents = new Intl.NumberFormat("en-US", {minimumFractionDigits: 2, maximumFractionDigits: 2});
const short = new Intl.NumberFormat("en-US", {notation: "compact", maximumFractionDigits: 1});

export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : short.format(value));

/** An amount in whole units, halves away from zero. The amount is a positive integer, so that nothing is lost. */
const rounded = (amount, unit) => (amount - (amount % unit)) / unit + (2 * (amount % unit) >= unit ? 1 : 0);

/** Money: cents below ten dollars, whole dollars from there on. `dollars` in model/human.py does the same: change both together. */
export function usdMicro(micro) {
  if (micro === null || micro === undefined) return "unpriced";
  const sign = micro < 0 ? "−" : "", amount = Math.abs(micro);
  if (amount > 0 && amount < 5_000) return `${sign}<$0.01`;
  const inCents = rounded(amount, 10_000);
  return `${sign}$${inCents < 1_000 ? cents.format(inCents / 100) : whole.format(rounded(amount, 1_000_000))}`;
}

/** Money to the cent, for a bill. */
export function exactUsd(micro) {
  if (micro === null || micro === undefined) return "unpriced";
  return `${micro < 0 ? "−" : ""}$${cents.format(rounded(Math.abs(micro), 10_000) / 100)}`;
}

export function hours(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? whole.format(value) : value >= 1 ? value.toFixed(1) : value === 0 ? "0" : value.toFixed(2);
}

/** A share: tenths of a percent below ten, whole percents from there on. `percent` in model/human.py does the same: change both together. */
export function share(part, all) {
  if (!all || part === null || part === undefined) return "–";
  const sign = part < 0 ? "−" : "", tenths = Math.round((1000 * Math.abs(part)) / all);
  if (part && !tenths) return `${sign}<0.1%`;
  return `${sign}${tenths < 100 ? tenths / 10 : whole.format(Math.round((100 * Math.abs(part)) / all))}%`;
}

export const ratio = (value) => (value === null || value === undefined ? "–" : share(Math.round(value * 1e9), 1e9));

/** A length of time in its two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms >= 100 ? Math.round(ms) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const least = units[Math.min(units.findIndex(([, size]) => ms / 1000 >= size) + 1, 3)][1]; // rounded like in the command line
  const s = Math.round(ms / 1000 / least) * least;
  const first = units.findIndex(([, size]) => s >= size), count = Math.floor(s / units[first][1]);
  const next = units[first + 1], left = next ? Math.floor((s - count * units[first][1]) / next[1]) : 0;
  return `${count} ${units[first][0]}${left ? ` ${left} ${next[0]}` : ""}`;
}

/** A value of a metric, in four significant digits. */
export function metric(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

let zone = "UTC";
const formats = new Map();

/** Sets the time zone, which is the one of the answers. */
export function useZone(name) {
  try {
    new Intl.DateTimeFormat("en-GB", {timeZone: name});
    zone = name;
  } catch {
    zone = "UTC";
  }
}

export const zoneName = () => zone;

function written(time, locale, options) {
  const key = `${zone} ${locale} ${Object.keys(options)}`;
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat(locale, {timeZone: zone, ...options}));
  return formats.get(key).format(typeof time === "number" ? time : new Date(time));
}

const CLOCK = {hour: "2-digit", minute: "2-digit"};
const DAY = {day: "numeric", month: "short"};
const DATE = {...DAY, year: "numeric"};
const SECONDS = {...CLOCK, second: "2-digit"};
const WALL = {year: "numeric", month: "2-digit", day: "2-digit", ...CLOCK, second: "2-digit", fractionalSecondDigits: 3};

export const clock = (time) => written(time, "en-GB", CLOCK);
/** A date: "Oct 8". `date` in model/human.py does the same, `date_time` what `when` does: change both together. */
export const day = (time) => written(time, "en-US", DAY);
export const when = (time) => (time === null || time === undefined ? "–" : `${day(time)}, ${clock(time)}`);
export const exactly = (time) => `${written(time, "en-US", DATE)}, ${written(time, "en-GB", SECONDS)}`;

/** The wall clock time for a chart, because charts ignore time zones. */
export const wall = (ms) => (zone === "UTC" ? new Date(ms).toISOString().slice(0, 23) : written(ms, "sv-SE", WALL).replace(",", "."));

/** The time of a chart's wall clock time. */
export function unwall(text) {
  const guess = Date.parse(`${String(text).replace(" ", "T").slice(0, 23)}Z`);
  return guess + (guess - Date.parse(`${wall(guess).replace(" ", "T")}Z`));
}

/** A time range with its length. */
export function span(window) {
  const from = Date.parse(window.from), to = Date.parse(window.to);
  const end = day(from) === day(to) ? clock(to) : when(to);
  return `${when(from)} – ${end}, ${duration(to - from)}`;
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
