"""The current state of runs: steps, speed, metrics and problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.answers.runs.progress import Progress, RunActivity
from pyrometer.model.records import Metric
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import all_ranks, at, cluster, event, job, run


def test_begin_drops_the_problems_of_the_previous_attempt() -> None:
    activity = RunActivity("r", attempt=1, saved_ms=5, metrics={"loss": 1.0}, stuck={3}, nonfinite=True)
    activity.begin(2)
    assert (activity.attempt, activity.stuck, activity.nonfinite) == (2, set(), False)
    assert (activity.saved_ms, activity.metrics) == (5, {"loss": 1.0})


def test_begin_ignores_an_earlier_attempt() -> None:
    activity = RunActivity("r", attempt=2, stuck={3})
    activity.begin(1)
    assert (activity.attempt, activity.stuck) == (2, {3})


@pytest.mark.parametrize(("rank", "first", "is_curve"), [(0, 0, True), (1, 0, False), (2, 2, True)])
def test_tells_accepts_the_first_rank_that_reported_a_metric(rank: int, first: int, is_curve: bool) -> None:
    assert RunActivity("r", reported_by={"accuracy": first}).tells("accuracy", rank) is is_curve


def test_read_has_steps_metrics_and_stuck_ranks(tmp_path: Path) -> None:
    progress = Progress()
    with Store(tmp_path, create=True) as store:
        loss = [Metric(at(minute), "run", 1, 0, "loss", 2.0 - minute / 100, minute) for minute in range(60)]
        store.append([*cluster(), *job(), *run(), *all_ranks(0, 60), *loss, event("stuck", 59, 2, step=5999)])
        build(store, Settings(), now_ms=at(60))
        progress.read(store, at(60), at(50))
    activity = progress.runs["run"]
    assert (activity.ranks, activity.outcome, activity.stuck) == (4, "running", {2})
    assert activity.step == 6000
    assert activity.metrics == {"loss": pytest.approx(1.41)}


def test_read_forgets_a_run_an_hour_after_its_end(tmp_path: Path) -> None:
    progress = Progress()
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job(), *run(ended_ms=at(30), outcome="succeeded"), *all_ranks(0, 30)])
        build(store, Settings(), now_ms=at(120))
        progress.read(store, at(60), at(50))
        assert progress.runs["run"].outcome == "succeeded"
        progress.read(store, at(100), at(90))
        assert progress.runs == {}
