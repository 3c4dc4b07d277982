// Where one is: the page and everything chosen on it, all of it in the address, so that it can be sent to somebody.

const SUBJECT = ["run", "runs", "workload", "step", "sample", "checkpoint", "attempt", "offset", "metric", "target"];
const EVERYWHERE = ["last", "since", "until", "month", "all", "tz", "price", "team", "experiment"];

export class Place {
  constructor(url, signal = null, own = null) {
    this.url = new URL(url, location.origin);
    this.path = this.url.pathname;
    this.signal = signal;
    this.own = own; // the team of someone who sees no other
  }

  /** Whether answers are about a part of the cluster only. */
  get isLimited() {
    return Boolean(this.own || this.get("team") || this.get("experiment"));
  }

  get(name) {
    return this.url.searchParams.get(name);
  }

  /** The address of this place with something changed; null takes it away. */
  href(changes = {}) {
    const url = new URL(this.url);
    change(url, changes);
    return url.pathname + url.search;
  }

  /** The address of another page, in the same window and with the same filters. */
  to(path, changes = {}) {
    const url = new URL(path, location.origin);
    for (const name of EVERYWHERE) if (this.get(name)) url.searchParams.set(name, this.get(name));
    change(url, changes);
    return url.pathname + url.search;
  }
}

function change(url, changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
}

/** The window that is chosen, as the parameters say it; empty where none is. */
export const windowOf = (place) =>
  Object.fromEntries(["last", "since", "until", "month", "all"].map((name) => [name, place.get(name)]).filter(([, value]) => value));

/** No window but this one. */
export const withWindow = (window) => ({last: null, since: null, until: null, month: null, all: null, ...window});

/** No single run, workload or step: a team or an experiment that is chosen need not have it. Nor need a team have the experiment. */
export const withoutSubject = (chosen) => Object.fromEntries([...SUBJECT, ...(chosen === "team" ? ["experiment"] : [])].map((name) => [name, null]));

/** Goes to an address of this page. */
export function go(href, {replace = false} = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  dispatchEvent(new Event("placechange"));
}
