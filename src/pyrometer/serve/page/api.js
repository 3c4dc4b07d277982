// Questions to the server that this page came from.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const WINDOW = ["last", "since", "until", "month", "all", "tz", "price", "team", "experiment"];

/** The parameters of a request: the time range and filters of the address, and more. Null removes one. */
function parametersOf(at, more) {
  const parameters = new URLSearchParams();
  for (const [name, value] of [...WINDOW.map((name) => [name, at.get(name)]), ...Object.entries(more)]) {
    if (value === null || value === undefined || value === "") parameters.delete(name);
    else parameters.set(name, value);
  }
  return parameters;
}

/** The answer to a question, with the time range and filters of the address. */
export async function ask(what, at, more = {}) {
  return fetched(`/api/v1/${what}?${parametersOf(at, {...more, stale: "ok"})}`, {signal: at.signal});
}

/** The URL of an answer as a file. */
export const fileOf = (format, at, more = {}) => `/api/v1/export/${format}?${parametersOf(at, more)}`;

/** JSON from a path. Errors have the server's text. Retries while the server is busy. */
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
    if (error.name === "AbortError") throw error; // the page was left
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

/** Calls back when the ledger changes, a slow answer is ready, or the connection opens or closes. */
export function listen({ledger, answer, connected}) {
  const source = new EventSource("/api/v1/live");
  source.addEventListener("ledger", (event) => ledger(JSON.parse(event.data)));
  source.addEventListener("answer", () => answer());
  source.onopen = () => connected(true);
  source.onerror = () => connected(false);
  return () => source.close();
}
