"""The cost of runs, according to the pods that they share."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.experiment_list import experiments
from pyrometer.answers.experiments.worth import worth
from pyrometer.answers.runs.overview import runs, show
from pyrometer.model.records import Run
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, at, cluster
from tests.support.sweep_runs import run_records


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        yield store


def accounted(store: Store, records: list[Any]) -> TimeRange:
    store.append([*cluster(), *records])
    build(store, Settings(), now_ms=START_MS + 2 * HOUR)
    return TimeRange(START_MS, START_MS + 2 * HOUR)


def test_runs_in_one_pod_divide_its_time_in_every_answer(store):
    """A notebook that trains twice: as a whole and minute by minute, each run has the same."""
    first = run_records("first", 0, 60, [3.0, 2.0])
    again = Run(
        at(60),
        "second",
        1,
        0,
        at(40),
        pod_uid="pod-first",
        node_uid="n0",
        slot_index=0,
        first_step_ms=at(41),
        ended_ms=at(60),
        outcome="succeeded",
        experiment="sweep",
    )
    window = accounted(store, [*first, again])
    (whole,) = experiments(store, window, zone=UTC)["rows"]
    parts = {row["run"]: row for row in worth(store, "sweep", window, zone=UTC)["runs"]}
    assert {run: row["gpu_ms"] for run, row in parts.items()} == {"first": 40 * 60_000, "second": 20 * 60_000}
    assert whole["gpu_ms"] == 60 * 60_000
    assert {row["run"]: row["gpu_ms"] for row in runs(store, window, zone=UTC)["rows"]} == {
        run: row["gpu_ms"] for run, row in parts.items()
    }
    shown = show(store, "first", window, Settings(), zone=UTC)["metrics"]["val/loss"]
    assert shown == parts["first"]["curve"]
