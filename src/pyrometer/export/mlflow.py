"""Writes run summaries to MLflow: the tags and metrics of a run, in one `log-batch` call.

Equal tags and earlier points are not sent again. MLflow stores a point once, however often it is logged, so this module
keeps no state.
"""

from __future__ import annotations

from typing import Any

from pyrometer.collect.trackers.mlflow import FoundRun, Mlflow
from pyrometer.export.tracker_summary import GPU_HOURS, USD, RunSummary

METRICS_PER_CALL = 900  # with the tags, a call has at most 1,000 entries

Metric = dict[str, Any]


async def write_summary(mlflow: Mlflow, run_id: str, summary: RunSummary) -> int:
    """Writes the summary of a run and returns the number of new tags and points."""
    found = await mlflow.run(run_id)
    tags = [{"key": key, "value": value} for key, value in summary.tags.items() if found.tags.get(key) != value]
    metrics = new_metrics(summary, found)
    for first in range(0, max(len(metrics), 1), METRICS_PER_CALL):
        body = {"run_id": run_id, "metrics": metrics[first : first + METRICS_PER_CALL], "tags": [] if first else tags}
        if body["metrics"] or body["tags"]:
            await mlflow.post("runs/log-batch", body)
    return len(tags) + len(metrics)


def new_metrics(summary: RunSummary, found: FoundRun) -> list[Metric]:
    """The points that the MLflow run does not have yet, in the order of time."""
    points = [
        _metric(name, value, cost.time_ms, cost.step)
        for cost in summary.cost_curve
        for name, value in ((GPU_HOURS, cost.gpu_hours), (USD, cost.usd))
        if value is not None and (name not in found.last or cost.time_ms > found.last[name][0])
    ]
    now = {**summary.metrics, **summary.totals}
    return points + [
        _metric(
            name, value, max(summary.at_ms, found.last.get(name, (0,))[0] + 1), summary.step
        )  # MLflow shows the latest
        for name, value in now.items()
        if not _is_last(found, name, value)
    ]


def _is_last(found: FoundRun, name: str, value: float) -> bool:
    return name in found.last and found.last[name][2] == value


def _metric(name: str, value: float, time_ms: int, step: int) -> Metric:
    return {"key": name, "value": value, "timestamp": time_ms, "step": step}
