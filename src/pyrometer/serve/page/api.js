// Questions to the server that this page came from.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const WINDOW = ["last", "since", "until", "month", "all", "tz", "price", "team", "experiment"];

/** What is asked at a place: its window and filters, and more; what is null there is not asked. */
function asked(at, more) {
  const parameters = new URLSearchParams();
  for (const [name, value] of [...WINDOW.map((name) => [name, at.get(name)]), ...Object.entries(more)]) {
    if (value === null || value === undefined || value === "") parameters.delete(name);
    else parameters.set(name, value);
  }
  return parameters;
}

/** The answer to a question, in the window and with the filters of this place. */
export async function ask(what, at, more = {}) {
  return fetched(`/api/v1/${what}?${asked(at, {...more, stale: "ok"})}`, {signal: at.signal});
}

/** Where the file of a question can be had. */
export const fileOf = (format, at, more = {}) => `/api/v1/export/${format}?${asked(at, more)}`;

/** JSON from a path; what the server refuses is its own sentence. A server that is busy is asked again. */
export async function fetched(path, options = {}, tries = 4) {
  let answer;
  try {
    answer = await fetch(path, {credentials: "same-origin", ...options});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. Is it still running?");
  }
  if (answer.status === 429 && tries > 1) {
    await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
    return fetched(path, options, tries - 1);
  }
  const body = answer.status === 204 ? null : await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error; // the page was left: that is no answer
    return null;
  });
  if (!answer.ok) throw new Refused(answer.status, body?.error ?? `The server answered ${answer.status}.`);
  return body;
}

export const session = {
  who: () => fetched("/api/v1/session"),
  begin: (token) => fetched("/api/v1/session", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({token})}),
  end: () => fetched("/api/v1/session", {method: "DELETE", headers: {"Content-Type": "application/json"}}),
};

/** Calls back when the ledger has changed, a slow answer is there, or the connection has come or gone. */
export function listen({ledger, answer, connected}) {
  const source = new EventSource("/api/v1/live");
  source.addEventListener("ledger", (event) => ledger(JSON.parse(event.data)));
  source.addEventListener("answer", () => answer());
  source.onopen = () => connected(true);
  source.onerror = () => connected(false);
  return () => source.close();
}
