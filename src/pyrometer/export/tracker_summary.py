"""What a tracker's run is told of itself: whose it is, what it cost, where its time went, what was found.

Made of the answers of `show` and `why`, so that a folder and a server say the same. Words are tags, numbers are
metrics; every name begins with `pyrometer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from pyrometer.model.human import dollars
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

Answer = Mapping[str, Any]
LONGEST_TAG = 2_000  # characters; MLflow takes 8,000, older ones 5,000
MOST_FINDINGS = 10
SETTLED_MS = 2 * MS_PER_MINUTE  # what the last minutes cost is still being counted while a run goes on
USD, GPU_HOURS = "pyrometer/usd", "pyrometer/gpu_hours"


class Spent(NamedTuple):
    """What a run had cost by a moment, and which step it was at."""

    time_ms: int
    step: int
    gpu_hours: float
    usd: float | None  # None: nothing is priced


class Stamp(NamedTuple):
    """All that a tracker's run is told."""

    tags: dict[str, str]
    figures: dict[str, float]  # as they are at its end, or now
    whole: dict[str, float]  # all that it cost, once it is over
    curve: list[Spent]  # what it had cost, once a minute
    at_ms: int
    step: int


def stamp_of(shown: Answer, findings: Iterable[Answer], *, at_ms: int, public_url: str = "") -> Stamp:
    """Of what `show` says of a run, and what was found of its workload; `at_ms` is until when that is known."""
    at_ms = _ms(shown["ended"]) if shown["ended"] else at_ms
    settled_ms = at_ms if shown["ended"] else at_ms - SETTLED_MS
    curve = [spent for spent in _by_minute(shown["metrics"]) if spent.time_ms <= settled_ms]
    cost = {GPU_HOURS: shown["gpu_ms"] / MS_PER_HOUR, USD: _usd(shown["usd_micro"])} if shown["ended"] else {}
    whole = {name: value for name, value in cost.items() if value is not None}
    tags = _tags(shown, list(findings), public_url)
    return Stamp(tags, _figures(shown), whole, curve, at_ms, _last_step(shown))


def _tags(shown: Answer, findings: list[Answer], public_url: str) -> dict[str, str]:
    workload = shown["workload"]
    found = sorted(findings, key=lambda finding: -(finding["usd_micro"] or 0))
    lines = [f"{dollars(one['usd_micro'])} {one['cause']}: {one['title']}" for one in found[:MOST_FINDINGS]]
    tags = {
        "run": shown["run"],
        "workload": f"{workload['kind']} {workload['namespace']}/{workload['name']}" if workload else None,
        "experiment": shown["experiment"],
        "team": shown["team"],
        "attempts": str(shown["attempts"]),
        "outcome": shown["outcome"],
        "causes": ",".join(dict.fromkeys(one["cause"] for one in found)) or "none",
        "findings": "\n".join(lines) or "none",
        "url": f"{public_url.rstrip('/')}/run?{urlencode({'run': shown['run']})}" if public_url else None,
    }
    return {f"pyrometer.{name}": text[:LONGEST_TAG] for name, text in tags.items() if text}


def _figures(shown: Answer) -> dict[str, float]:
    wasted = [state["usd_micro"] or 0 for state in shown["states"] if state["family"] == "waste"]
    priced = shown["usd_micro"] is not None
    figures: dict[str, float | None] = {
        "wasted_usd": _usd(sum(wasted)) if priced else None,
        "goodput": shown["goodput"],
        "attempts": shown["attempts"],
        **{
            f"share/{state['state']}": state["gpu_ms"] / shown["gpu_ms"] for state in shown["states"] if shown["gpu_ms"]
        },
    }
    return {f"pyrometer/{name}": float(value) for name, value in figures.items() if value is not None}


def _by_minute(metrics: Mapping[str, Any]) -> list[Spent]:
    """The first value of every minute of the metric that was told most often, with what the run had cost by then."""
    points: list[list[Any]] = max(metrics.values(), key=len, default=[])
    first: dict[int, Spent] = {}
    for step, time_ms, _, gpu_ms, usd_micro in points:
        spent = Spent(time_ms, step or 0, gpu_ms / MS_PER_HOUR, _usd(usd_micro))
        first.setdefault(time_ms // MS_PER_MINUTE, spent)
    return [first[minute] for minute in sorted(first)]


def _last_step(shown: Answer) -> int:
    told = [point[0] for points in shown["metrics"].values() for point in points[-1:] if point[0] is not None]
    return int(max([shown["steps"], *told]))


def _usd(usd_micro: int | None) -> float | None:
    return None if usd_micro is None else usd_micro / 1_000_000


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
