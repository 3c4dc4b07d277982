// One finding: cost, title, time, evidence and suggestion.

import {h, link} from "./dom.js";
import {isNow} from "./freshness.js";
import {duration, usdMicro, when} from "./format.js";
import {withWindow} from "./place.js";
import {STATE_OF_CAUSE} from "./states.js";

/** The CSS class with the color of a cause. */
export const classOf = (cause) => `s-${STATE_OF_CAUSE[cause] ?? cause}`;

export function finding(one, place, open = false) {
  const from = Date.parse(one.from), to = Date.parse(one.to);
  const culprit = Object.entries(one.culprit ?? {}).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name} ${value}`).join(", ");
  const workload = one.workload?.uid ?? (one.experiment ? one.owner_uid : null); // a pod without a workload is its own
  return h("details.finding", {class: classOf(one.cause), id: `finding-${one.id}`, open},
    h("summary", {},
      h("span.amount", {}, one.usd_micro === null ? `${one.gpu_hours.toFixed(1)} h` : usdMicro(one.usd_micro)),
      h("span.title", {}, one.title, one.ongoing ? h("span.ongoing", {}, ` · ongoing${isNow(one.to) ? "" : ` at ${when(one.to)}`}`) : null),
      h("span.meta", {}, [one.cause, one.team].filter(Boolean).join(" · "))),
    h("div.inside", {},
      h("p.soft", {}, `${when(from)} – ${when(to)}, ${duration(to - from)}`, culprit ? ` · culprit: ${culprit}` : "", ` · ${Math.round(100 * one.confidence)}% confidence`),
      h("ul", {}, one.evidence.map((text) => h("li", {}, text))),
      one.what_if.sentence ? h("p", {}, one.what_if.sentence) : null,
      h("p", {}, h("b", {}, "Suggestion: "), one.suggestion),
      h("p.go", {},
        workload ? link(place.to("/run", {workload}), "Open workload") : null,
        one.experiment ? link(place.to("/experiment", {experiment: one.experiment}), `Open experiment ${one.experiment}`) : null,
        link(place.to("/cluster", {...withWindow({}), at: one.from}), "Show the cluster at that time"))));
}
