// The address of the page with all of its filters, so that a link shows the same.

const SUBJECT = ["run", "runs", "workload", "step", "sample", "checkpoint", "attempt", "offset", "metric", "target"];
const EVERYWHERE = ["last", "since", "until", "month", "all", "tz", "price", "team", "experiment"];

export class PageAddress {
  constructor(url, signal = null, own = null) {
    this.url = new URL(url, location.origin);
    this.path = this.url.pathname;
    this.signal = signal;
    this.own = own; // the team of a user who sees only that team
  }

  /** Whether answers cover only a part of the cluster. */
  get isLimited() {
    return Boolean(this.own || this.get("team") || this.get("experiment"));
  }

  get(name) {
    return this.url.searchParams.get(name);
  }

  /** This address with changed parameters. Null removes one. */
  href(changes = {}) {
    const url = new URL(this.url);
    change(url, changes);
    return url.pathname + url.search;
  }

  /** The address of another page, with the same time range and filters. */
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

/** The parameters of the chosen time range. Empty for the default. */
export const windowOf = (place) =>
  Object.fromEntries(["last", "since", "until", "month", "all"].map((name) => [name, place.get(name)]).filter(([, value]) => value));

/** Replaces the time range. */
export const withWindow = (window) => ({last: null, since: null, until: null, month: null, all: null, ...window});

/** Clears the run, workload or step when a team or an experiment is chosen, which may not have it. A chosen team also clears the experiment. */
export const withoutSubject = (chosen) => Object.fromEntries([...SUBJECT, ...(chosen === "team" ? ["experiment"] : [])].map((name) => [name, null]));

/** Navigates within the page. */
export function go(href, {replace = false} = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  dispatchEvent(new Event("placechange"));
}
