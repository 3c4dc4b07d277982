"""What people are told of a finding: who, since when, how much so far, how we know, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from pyrometer.account.sums import PLATFORM, iso
from pyrometer.act.lives import ms_of
from pyrometer.explain.text import head
from pyrometer.explain.words import clock, counted, dollars, duration, hours, listed
from pyrometer.model.units import MS_PER_DAY, usd

MOST_LISTED = 10  # findings of a message about several
MOST_OF_A_NIGHT = 3
MOST_EVIDENCE = 6
LONGEST = 600  # characters of a line
MOST_TO_BLAME = 100  # pods, GPUs
ENDED_BY_THEMSELVES = ("idle_held", "gang_wait", "crash_loop", "unused_device")  # what was to be done has been done
Facts = dict[str, Any]  # of one finding, as they are kept until they are told


class Message(NamedTuple):
    """Something to tell, in no particular form."""

    kind: str  # opened, grown, over, found, again, several, report
    head: str
    lines: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    ending: str = ""
    link: str = ""
    fields: Facts | None = None  # for programs


class Place(NamedTuple):
    """Where messages come from: the server's address, and the time zone of those who read them."""

    url: str
    zone: tzinfo

    def link(self, from_ms: int, to_ms: int | None = None, finding_id: str = "") -> str:
        """The page of that time; empty where nobody knows the server's address."""
        if not self.url:
            return ""
        minute_ms = from_ms - from_ms % 60_000
        window = {"since": iso(minute_ms, self.zone)}
        if to_ms is not None:
            window["until"] = iso(to_ms - to_ms % 60_000 + 60_000, self.zone)
        place = f"#finding-{quote(finding_id)}" if finding_id else ""
        return f"{self.url}/?{urlencode(window)}{place}"


def facts_of(finding: Facts) -> Facts:
    """What is kept of a finding of `why` to tell it later; nothing of it is longer than a message may be."""
    kept = ("id", "cause", "title", "team", "experiment", "workload", "culprit", "confidence", "suggestion")
    facts = {name: finding[name] for name in kept}
    facts["evidence"] = [_cut(text) for text in finding["evidence"][:MOST_EVIDENCE]]
    culprit = finding["culprit"] or {}
    facts["culprit"] = {
        name: value[:MOST_TO_BLAME] if isinstance(value, list) else value for name, value in culprit.items()
    } or None
    return facts | {name: _cut(facts[name]) for name in ("title", "suggestion")}


def of_finding(kind: str, facts: Facts, place: Place, before_usd_micro: int = 0) -> Message:
    """The message that a finding has opened, has grown, is over; or was there, when it is told only then."""
    spent = _spent(facts)
    before = f" ({dollars(before_usd_micro)} when it was told last)" if before_usd_micro else ""
    said = {
        "opened": f"{spent} so far",
        "grown": f"{spent} so far{before}",
        "again": f"There again, {spent} so far",
        "over": f"Over, {spent} in all",
        "found": spent,
    }[kind]
    over = kind in ("over", "found")
    to_ms = facts["to_ms"] if over else None
    return Message(
        kind, f"{said}: {facts['title']}", (_when(facts, place.zone, over=over), *_who(facts)),
        () if kind == "over" else tuple(facts["evidence"]),
        "" if kind == "over" and facts["cause"] in ENDED_BY_THEMSELVES else facts["suggestion"],
        place.link(facts["from_ms"], to_ms, facts["id"]), _fields(facts, place.zone, over=over),
    )  # fmt: skip


def of_several(facts: Sequence[tuple[str, Facts]], place: Place) -> Message:
    """One message about what would be too many."""
    rows = [one for _, one in facts]
    prices = [one["usd_micro"] for one in rows]
    total = {"gpu_ms": sum(one["gpu_ms"] for one in rows), "usd_micro": None if None in prices else sum(prices)}
    points = [f"{_spent(one)}{', over' if kind == 'over' else ''}: {one['title']}" for kind, one in facts[:MOST_LISTED]]
    left = len(facts) - len(points)
    return Message(
        "several", f"{len(facts)} more findings, {_spent(total)} together", (), tuple(points),
        f"And {left} more." if left else "", place.link(min(one["from_ms"] for one in rows)),
        {"findings": [_fields(one, place.zone, over=kind in ("over", "found")) for kind, one in facts]},
    )  # fmt: skip


def of_night(answer: Facts, place: Place, called: str = "Last night") -> Message:
    """What burned, in short: the total, what was wasted, the most expensive findings."""
    when, spent, *_ = head(answer)
    findings = answer["findings"]
    shown = findings[:MOST_OF_A_NIGHT]
    points = tuple(f"{dollars(one['usd_micro'])}: {_cut(one['title'])}" for one in shown)
    left = findings[MOST_OF_A_NIGHT:]
    ending = ""
    if left:
        rest = sum(one["usd_micro"] or 0 for one in left)
        ending = f"And {counted(len(left), 'more finding')}, {dollars(rest)} together."
    from_ms, to_ms = (ms_of(answer["window"][edge]) for edge in ("from", "to"))
    names = ("id", "cause", "title", "team", "experiment", "from", "to", "gpu_ms", "usd_micro", "usd")
    fields = {
        "window": answer["window"], "total": answer["total"], "states": answer["states"],
        "findings": [{name: one[name] for name in names} for one in shown],
    }  # fmt: skip
    lines = [when] if findings else [when, "Nothing was found that is worth telling."]
    lines += ["Prices are public list prices, assumed."] if answer["prices_assumed"] else []
    return Message(
        "report", f"{called}: {spent}", tuple(lines), points, ending, place.link(from_ms, to_ms - 60_000), fields
    )


def _spent(facts: Facts) -> str:
    return hours(facts["gpu_ms"]) if facts["usd_micro"] is None else dollars(facts["usd_micro"])


def _when(facts: Facts, zone: tzinfo, *, over: bool) -> str:
    from_ms, to_ms = facts["from_ms"], facts["to_ms"]
    began = clock(from_ms, zone, beside_ms=from_ms + MS_PER_DAY)  # with its date: who knows when it is read
    length = duration(to_ms - from_ms)
    if over:
        return f"{began} – {clock(to_ms, zone, beside_ms=from_ms)} {zone}, {length}, {hours(facts['gpu_ms'])}"
    return f"Since {began} {zone}, {length} so far, {hours(facts['gpu_ms'])}"


def _who(facts: Facts) -> list[str]:
    workload = facts["workload"]
    job = f"{workload['kind']} {workload['namespace']}/{workload['name']}" if workload else ""
    told = {"team": facts["team"] if job or facts["team"] != PLATFORM else None, "experiment": facts["experiment"]}
    if workload and told["experiment"] == workload["name"]:  # nobody has given it another name
        told["experiment"] = None
    whose = [f"{name} {value}" for name, value in told.items() if value]
    culprit = [(name, value) for name, value in (facts["culprit"] or {}).items() if value not in (None, "", [])]
    blamed = [
        f"{name} {listed(list(map(str, value))) if isinstance(value, list) else value}" for name, value in culprit
    ]
    lines = [", ".join([*whose, job] if job else whose), f"Culprit: {', '.join(blamed)}" if blamed else ""]
    return [_cut(line[0].upper() + line[1:]) for line in lines if line]


def _fields(facts: Facts, zone: tzinfo, *, over: bool) -> Facts:
    """The finding as `why` has it, as far as it is known here."""
    named = {name: value for name, value in facts.items() if name not in ("from_ms", "to_ms", "seen_ms")}
    micro = facts["usd_micro"]
    return named | {
        "usd": None if micro is None else usd(micro), "from": iso(facts["from_ms"], zone),
        "to": iso(facts["to_ms"], zone), "seen": iso(facts["seen_ms"], zone), "ongoing": not over,
    }  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
