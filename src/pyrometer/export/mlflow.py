"""Stamps as MLflow takes them: tags and metrics of a run, sent with the call that it has for both.

What is there already is not sent again: tags that are the same, and points up to the last one that the run has. MLflow
itself keeps a point once, however often it is logged. So nobody has to remember what was stamped.
"""

from __future__ import annotations

from typing import Any

from pyrometer.collect.trackers.mlflow import FoundRun, Mlflow
from pyrometer.export.tracker_summary import GPU_HOURS, USD, Stamp

AT_ONCE = 900  # metrics of one call: with the tags, a thousand at most

Metric = dict[str, Any]


async def stamp(mlflow: Mlflow, run_id: str, stamp: Stamp) -> int:
    """Tells a run what it cost; how many tags and points that were new."""
    found = await mlflow.run(run_id)
    tags = [{"key": key, "value": value} for key, value in stamp.tags.items() if found.tags.get(key) != value]
    metrics = metrics_of(stamp, found)
    for first in range(0, max(len(metrics), 1), AT_ONCE):
        body = {"run_id": run_id, "metrics": metrics[first : first + AT_ONCE], "tags": [] if first else tags}
        if body["metrics"] or body["tags"]:
            await mlflow.post("runs/log-batch", body)
    return len(tags) + len(metrics)


def metrics_of(stamp: Stamp, found: FoundRun) -> list[Metric]:
    """The points that a run does not have yet, in the order of time."""
    points = [
        _metric(name, value, spent.time_ms, spent.step)
        for spent in stamp.curve
        for name, value in ((GPU_HOURS, spent.gpu_hours), (USD, spent.usd))
        if value is not None and (name not in found.last or spent.time_ms > found.last[name][0])
    ]
    now = {**stamp.figures, **stamp.whole}
    return points + [
        _metric(name, value, max(stamp.at_ms, found.last.get(name, (0,))[0] + 1), stamp.step)  # the latest counts
        for name, value in now.items()
        if not _is_last(found, name, value)
    ]


def _is_last(found: FoundRun, name: str, value: float) -> bool:
    return name in found.last and found.last[name][2] == value


def _metric(name: str, value: float, time_ms: int, step: int) -> Metric:
    return {"key": name, "value": value, "timestamp": time_ms, "step": step}
