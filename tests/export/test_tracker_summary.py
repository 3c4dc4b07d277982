"""The summary of a run for a tracker: tags, metrics, totals and the cost curve."""

from __future__ import annotations

import pytest

from pyrometer.collect.trackers.common import TrackedRun
from pyrometer.collect.trackers.mlflow import FoundRun
from pyrometer.export.mlflow import new_metrics
from pyrometer.export.tracker_summary import MAX_TAG_CHARS, summarize_run
from tests.support.clusters import at
from tests.support.run_summaries import FINDING, shown


def test_summary_has_owner_cost_and_findings():
    run_summary = summarize_run(shown(), [FINDING], at_ms=at(90), public_url="https://p.example.com/")
    assert run_summary.tags == {
        "pyrometer.run": "carp",
        "pyrometer.workload": "PyTorchJob ml/llama",
        "pyrometer.experiment": "sft",
        "pyrometer.team": "nlp",
        "pyrometer.attempts": "2",
        "pyrometer.outcome": "succeeded",
        "pyrometer.causes": "hang",
        "pyrometer.findings": "$2.00 hang: llama hung for 4 min.",
        "pyrometer.url": "https://p.example.com/run?run=carp",
    }
    assert run_summary.metrics == {
        "pyrometer/wasted_usd": 1.5,
        "pyrometer/goodput": 0.75,
        "pyrometer/attempts": 2.0,
        "pyrometer/share/train": 0.75,
        "pyrometer/share/hang": 0.25,
    }
    assert run_summary.totals == {"pyrometer/gpu_hours": 2.0, "pyrometer/usd": 6.000001}
    assert (run_summary.at_ms, run_summary.step) == (at(60), 119)


def test_summary_has_one_cost_point_per_minute():
    run_summary = summarize_run(shown(), [], at_ms=at(90))
    assert [(cost.time_ms, cost.step) for cost in run_summary.cost_curve] == [
        (at(minute), 2 * minute) for minute in range(60)
    ]
    assert [cost.usd for cost in run_summary.cost_curve] == pytest.approx([0.1 * minute for minute in range(60)])


def test_summary_of_a_running_run_omits_the_last_minutes():
    run_summary = summarize_run(shown(ended_min=None, outcome="running"), [], at_ms=at(30))
    assert max(cost.time_ms for cost in run_summary.cost_curve) == at(28)
    assert run_summary.totals == {}


def test_summary_without_a_price_has_no_dollars():
    unpriced = [[step, time_ms, value, gpu_ms, None] for step, time_ms, value, gpu_ms, _ in shown()["metrics"]["loss"]]
    states = [{**state, "usd_micro": None} for state in shown()["states"]]
    run_summary = summarize_run(
        shown(usd_micro=None, usd=None, metrics={"loss": unpriced}, states=states), [], at_ms=at(90)
    )
    tracked = TrackedRun("mlflow", "abc", "carp", None, at(0), None, None)
    assert not any("usd" in point["key"] for point in new_metrics(run_summary, FoundRun(tracked, {}, {})))


def test_many_findings_fit_into_one_tag():
    many = [{**FINDING, "title": "x" * 1_000, "usd_micro": number} for number in range(100)]
    tag = summarize_run(shown(), many, at_ms=at(90)).tags["pyrometer.findings"]
    assert len(tag) <= MAX_TAG_CHARS
