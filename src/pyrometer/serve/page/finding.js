// A finding as a person reads it: how much, what, since when, how we know, what to do.

import {h, link} from "./dom.js";
import {duration, usd, when} from "./format.js";
import {STATE_OF_CAUSE} from "./states.js";

/** The class that colours a cause. */
export const classOf = (cause) => `s-${STATE_OF_CAUSE[cause] ?? cause}`;

export function finding(one, place, open = false) {
  const from = Date.parse(one.from), to = Date.parse(one.to);
  const culprit = Object.entries(one.culprit ?? {}).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name} ${value}`).join(", ");
  return h("details.finding", {class: classOf(one.cause), id: `finding-${one.id}`, open},
    h("summary", {},
      h("span.amount", {}, one.usd === null ? `${one.gpu_hours.toFixed(1)} h` : usd(one.usd)),
      h("span.title", {}, one.title, one.ongoing ? h("span.ongoing", {}, " · still going on") : null),
      h("span.meta", {}, [one.cause, one.team].filter(Boolean).join(" · "))),
    h("div.inside", {},
      h("p.soft", {}, `${when(from)} – ${when(to)}, ${duration(to - from)}`, culprit ? ` · culprit: ${culprit}` : "", ` · ${Math.round(100 * one.confidence)} % sure`),
      h("ul", {}, one.evidence.map((text) => h("li", {}, text))),
      one.what_if.sentence ? h("p", {}, one.what_if.sentence) : null,
      h("p", {}, h("b", {}, "Do: "), one.suggestion),
      h("p.go", {},
        one.workload ? link(place.to("/run", {workload: one.workload.uid}), "Its run") : null,
        one.experiment ? link(place.to("/worth", {experiment: one.experiment}), `Experiment ${one.experiment}`) : null,
        link(place.to("/cluster", {at: one.from}), "The cluster then"))));
}
