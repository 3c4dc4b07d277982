"""The summary of a run for an experiment tracker: owner, cost, time by state, and findings.

It is built from the answers of `show` and `why`, so that a data folder and a server produce the same summary. Texts are
tags, and numbers are metrics. Every name starts with `pyrometer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from pyrometer.model.human import dollars
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

Answer = Mapping[str, Any]
MAX_TAG_CHARS = 2_000  # characters; MLflow takes 8,000, older ones 5,000
MAX_FINDINGS = 10
SETTLED_MS = 2 * MS_PER_MINUTE  # the cost of the last minutes of a running run is still being counted
USD, GPU_HOURS = "pyrometer/usd", "pyrometer/gpu_hours"


class CostPoint(NamedTuple):
    """The cost of a run up to a time, and its step at that time."""

    time_ms: int
    step: int
    gpu_hours: float
    usd: float | None  # None: without a price


class RunSummary(NamedTuple):
    """Tags and metrics of one run."""

    tags: dict[str, str]
    metrics: dict[str, float]  # at the end of the run, or now
    totals: dict[str, float]  # the total cost; empty while the run is running
    cost_curve: list[CostPoint]  # one point per minute
    at_ms: int
    step: int


def summarize_run(shown: Answer, findings: Iterable[Answer], *, at_ms: int, public_url: str = "") -> RunSummary:
    """Builds the summary from the answer of `show` and the findings of the workload, known up to `at_ms`."""
    at_ms = _ms(shown["ended"]) if shown["ended"] else at_ms
    settled_ms = at_ms if shown["ended"] else at_ms - SETTLED_MS
    curve = [point for point in _by_minute(shown["metrics"]) if point.time_ms <= settled_ms]
    cost = {GPU_HOURS: shown["gpu_ms"] / MS_PER_HOUR, USD: _usd(shown["usd_micro"])} if shown["ended"] else {}
    totals = {name: value for name, value in cost.items() if value is not None}
    tags = _tags(shown, list(findings), public_url)
    return RunSummary(
        tags=tags, metrics=_metrics(shown), totals=totals, cost_curve=curve, at_ms=at_ms, step=_last_step(shown)
    )


def _tags(shown: Answer, findings: list[Answer], public_url: str) -> dict[str, str]:
    workload = shown["workload"]
    found = sorted(findings, key=lambda finding: -(finding["usd_micro"] or 0))
    lines = [f"{dollars(one['usd_micro'])} {one['cause']}: {one['title']}" for one in found[:MAX_FINDINGS]]
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
    return {f"pyrometer.{name}": text[:MAX_TAG_CHARS] for name, text in tags.items() if text}


def _metrics(shown: Answer) -> dict[str, float]:
    wasted = [state["usd_micro"] or 0 for state in shown["states"] if state["family"] == "waste"]
    priced = shown["usd_micro"] is not None
    values: dict[str, float | None] = {
        "wasted_usd": _usd(sum(wasted)) if priced else None,
        "goodput": shown["goodput"],
        "attempts": shown["attempts"],
        **{
            f"share/{state['state']}": state["gpu_ms"] / shown["gpu_ms"] for state in shown["states"] if shown["gpu_ms"]
        },
    }
    return {f"pyrometer/{name}": float(value) for name, value in values.items() if value is not None}


def _by_minute(metrics: Mapping[str, Any]) -> list[CostPoint]:
    """The cost at the first value per minute of the metric with the most values."""
    points: list[list[Any]] = max(metrics.values(), key=len, default=[])
    first: dict[int, CostPoint] = {}
    for step, time_ms, _, gpu_ms, usd_micro in points:
        cost = CostPoint(time_ms, step or 0, gpu_ms / MS_PER_HOUR, _usd(usd_micro))
        first.setdefault(time_ms // MS_PER_MINUTE, cost)
    return [first[minute] for minute in sorted(first)]


def _last_step(shown: Answer) -> int:
    steps = [point[0] for points in shown["metrics"].values() for point in points[-1:] if point[0] is not None]
    return int(max([shown["steps"], *steps]))


def _usd(usd_micro: int | None) -> float | None:
    return None if usd_micro is None else usd_micro / 1_000_000


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
