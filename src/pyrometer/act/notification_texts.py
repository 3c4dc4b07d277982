"""The texts of notifications about findings: owner, start, cost so far, evidence and suggestion."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.groupings import PLATFORM
from pyrometer.act.finding_lifecycle import ms_of
from pyrometer.model.human import clock, counted, dollars, duration, hours, listed
from pyrometer.model.units import MS_PER_DAY, usd
from pyrometer.render.why_text import head

MAX_LISTED_FINDINGS = 10  # in a message about several findings
MAX_REPORT_FINDINGS = 3
MAX_EVIDENCE_LINES = 6
MAX_LINE_CHARS = 600
MAX_CULPRITS = 100  # pods or GPUs
ENDED_BY_THEMSELVES = (
    "idle_held",
    "gang_wait",
    "crash_loop",
    "unused_device",
)  # their suggestion is obsolete at the end
Facts = dict[str, Any]  # the fields of one finding that notifications need


class Message(NamedTuple):
    """A notification, independent of the receiver's format."""

    kind: str  # opened, grown, over, found, again, several, report
    head: str
    lines: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    ending: str = ""
    link: str = ""
    fields: Facts | None = None  # for programs


class MessageContext(NamedTuple):
    """The server's public address for links, and the time zone of the readers."""

    url: str
    zone: tzinfo

    def link(self, from_ms: int, to_ms: int | None = None, finding_id: str = "") -> str:
        """The URL of the page for a time range. Empty if `public_url` is not set."""
        if not self.url:
            return ""
        minute_ms = from_ms - from_ms % 60_000
        window = {"since": iso(minute_ms, self.zone)}
        if to_ms is not None:
            window["until"] = iso(to_ms - to_ms % 60_000 + 60_000, self.zone)
        anchor = f"#finding-{quote(finding_id)}" if finding_id else ""
        return f"{self.url}/?{urlencode(window)}{anchor}"


def facts_of(finding: Facts) -> Facts:
    """The fields of a finding that notifications need, cut to the limits of a message."""
    kept = ("id", "cause", "title", "team", "experiment", "workload", "culprit", "confidence", "suggestion")
    facts = {name: finding[name] for name in kept}
    facts["evidence"] = [_cut(text) for text in finding["evidence"][:MAX_EVIDENCE_LINES]]
    culprit = finding["culprit"] or {}
    facts["culprit"] = {
        name: value[:MAX_CULPRITS] if isinstance(value, list) else value for name, value in culprit.items()
    } or None
    return facts | {name: _cut(facts[name]) for name in ("title", "suggestion")}


def of_finding(kind: str, facts: Facts, context: MessageContext, before_usd_micro: int = 0) -> Message:
    """The message about a finding that opened, grew, ended, or was noticed only after its end."""
    spent = _spent(facts)
    before = f" ({dollars(before_usd_micro)} at the last notification)" if before_usd_micro else ""
    summary = {
        "opened": f"{spent} so far",
        "grown": f"{spent} so far{before}",
        "again": f"Reopened, {spent} so far",
        "over": f"Ended, {spent} in total",
        "found": spent,
    }[kind]
    over = kind in ("over", "found")
    to_ms = facts["to_ms"] if over else None
    return Message(
        kind=kind,
        head=f"{summary}: {facts['title']}",
        lines=(_when(facts, context.zone, over=over), *_who(facts)),
        points=() if kind == "over" else tuple(facts["evidence"]),
        ending="" if kind == "over" and facts["cause"] in ENDED_BY_THEMSELVES else facts["suggestion"],
        link=context.link(facts["from_ms"], to_ms, facts["id"]),
        fields=_fields(facts, context.zone, over=over),
    )


def of_several(facts: Sequence[tuple[str, Facts]], context: MessageContext) -> Message:
    """One message about several findings, instead of one each."""
    rows = [one for _, one in facts]
    prices = [one["usd_micro"] for one in rows]
    total = {"gpu_ms": sum(one["gpu_ms"] for one in rows), "usd_micro": None if None in prices else sum(prices)}
    points = [
        f"{_spent(one)}{', ended' if kind == 'over' else ''}: {one['title']}"
        for kind, one in facts[:MAX_LISTED_FINDINGS]
    ]
    left = len(facts) - len(points)
    return Message(
        kind="several",
        head=f"{len(facts)} more findings, {_spent(total)} together",
        lines=(),
        points=tuple(points),
        ending=f"And {left} more." if left else "",
        link=context.link(min(one["from_ms"] for one in rows)),
        fields={"findings": [_fields(one, context.zone, over=kind in ("over", "found")) for kind, one in facts]},
    )


def of_night(answer: Facts, context: MessageContext, called: str = "Last night") -> Message:
    """The summary of a night: total cost, waste, and the most expensive findings."""
    when, spent, *_ = head(answer)
    findings = answer["findings"]
    shown = findings[:MAX_REPORT_FINDINGS]
    points = tuple(f"{dollars(one['usd_micro'])}: {_cut(one['title'])}" for one in shown)
    left = findings[MAX_REPORT_FINDINGS:]
    ending = ""
    if left:
        rest = sum(one["usd_micro"] or 0 for one in left)
        ending = f"And {counted(len(left), 'more finding')}, {dollars(rest)} together."
    from_ms, to_ms = (ms_of(answer["window"][edge]) for edge in ("from", "to"))
    names = ("id", "cause", "title", "team", "experiment", "from", "to", "gpu_ms", "usd_micro", "usd")
    fields = {
        "window": answer["window"],
        "total": answer["total"],
        "states": answer["states"],
        "findings": [{name: one[name] for name in names} for one in shown],
    }
    lines = [when] if findings else [when, "No findings above the notification limit."]
    lines += ["Costs use public list prices."] if answer["prices_assumed"] else []
    return Message(
        kind="report",
        head=f"{called}: {spent}",
        lines=tuple(lines),
        points=points,
        ending=ending,
        link=context.link(from_ms, to_ms - 60_000),
        fields=fields,
    )


def _spent(facts: Facts) -> str:
    return hours(facts["gpu_ms"]) if facts["usd_micro"] is None else dollars(facts["usd_micro"])


def _when(facts: Facts, zone: tzinfo, *, over: bool) -> str:
    from_ms, to_ms = facts["from_ms"], facts["to_ms"]
    began = clock(
        from_ms, zone, beside_ms=from_ms + MS_PER_DAY
    )  # always with its date, because it may be read much later
    length = duration(to_ms - from_ms)
    if over:
        return f"{began} – {clock(to_ms, zone, beside_ms=from_ms)} {zone}, {length}, {hours(facts['gpu_ms'])}"
    return f"Since {began} {zone}, {length} so far, {hours(facts['gpu_ms'])}"


def _who(facts: Facts) -> list[str]:
    workload = facts["workload"]
    job = f"{workload['kind']} {workload['namespace']}/{workload['name']}" if workload else ""
    owner = {"team": facts["team"] if job or facts["team"] != PLATFORM else None, "experiment": facts["experiment"]}
    if workload and owner["experiment"] == workload["name"]:  # it is not a name that a user chose
        owner["experiment"] = None
    labels = [f"{name} {value}" for name, value in owner.items() if value]
    culprit = [(name, value) for name, value in (facts["culprit"] or {}).items() if value not in (None, "", [])]
    culprits = [
        f"{name} {listed(list(map(str, value))) if isinstance(value, list) else value}" for name, value in culprit
    ]
    lines = [", ".join([*labels, job] if job else labels), f"Culprit: {', '.join(culprits)}" if culprits else ""]
    return [_cut(line[0].upper() + line[1:]) for line in lines if line]


def _fields(facts: Facts, zone: tzinfo, *, over: bool) -> Facts:
    """The finding in the format of `why`, as far as its fields are known here."""
    named = {name: value for name, value in facts.items() if name not in ("from_ms", "to_ms", "seen_ms")}
    micro = facts["usd_micro"]
    return named | {
        "usd": None if micro is None else usd(micro),
        "from": iso(facts["from_ms"], zone),
        "to": iso(facts["to_ms"], zone),
        "seen": iso(facts["seen_ms"], zone),
        "ongoing": not over,
    }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"
