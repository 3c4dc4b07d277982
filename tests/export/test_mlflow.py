"""Run summaries in MLflow: only new tags and points are sent."""

from __future__ import annotations

from pyrometer.collect.trackers.common import TrackedRun
from pyrometer.collect.trackers.mlflow import FoundRun
from pyrometer.export.mlflow import new_metrics
from pyrometer.export.tracker_summary import RunSummary, summarize_run
from tests.support.clusters import at
from tests.support.run_summaries import FINDING, shown


def run(run_summary: RunSummary | None = None) -> FoundRun:
    """A run in MLflow, with or without an earlier summary."""
    tracked = TrackedRun("mlflow", "abc", "carp", None, at(0), None, None)
    points = new_metrics(run_summary, FoundRun(tracked, {}, {})) if run_summary else []
    last = {}
    for point in points:  # as MLflow has it: the last step, then the last time
        last[point["key"]] = max(
            last.get(point["key"], (0, -1, 0.0)), (point["timestamp"], point["step"], point["value"])
        )
    return FoundRun(tracked, run_summary.tags if run_summary else {}, last)


def test_mlflow_gets_only_new_tags_and_points():
    run_summary = summarize_run(shown(), [FINDING], at_ms=at(90))
    assert len(new_metrics(run_summary, run())) == 2 * 60 + 5 + 2
    assert new_metrics(run_summary, run(run_summary)) == []
    early = summarize_run(shown(ended_min=None), [], at_ms=at(30))
    later = [point for point in new_metrics(run_summary, run(early)) if point["key"] == "pyrometer/usd"]
    assert [point["timestamp"] for point in later] == [at(minute) for minute in range(29, 61)]


def test_mlflow_changed_total_becomes_the_latest_point():
    run_summary = summarize_run(shown(), [], at_ms=at(90))
    dearer = summarize_run(shown(usd_micro=7_000_000), [], at_ms=at(90))
    (point,) = new_metrics(dearer, run(run_summary))
    assert point == {"key": "pyrometer/usd", "value": 7.0, "timestamp": at(60) + 1, "step": 119}
