"""The list of experiments with their cost and their best runs."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.experiment_list import experiments
from pyrometer.answers.runs.overview import runs
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, cluster, minutes
from tests.support.sweep_runs import run_records


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        yield store


def accounted(store: Store, records: list[Any]) -> TimeRange:
    store.append([*cluster(), *records])
    build(store, Settings(), now_ms=START_MS + 2 * HOUR)
    return TimeRange(START_MS, START_MS + 2 * HOUR)


def test_experiments_are_sorted_by_cost_and_add_up(store):
    records = [
        *run_records("a", 0, 60, [3.0, 2.0, 1.0], from_min=0),
        *run_records("b", 1, 50, [9.0 - n for n in range(6)], from_min=7, team="vision"),
        *run_records("c", 2, 33, [0.1, 0.9], experiment="rl", metric="reward", goal=None),
        *run_records("d", 3, 10, [], experiment="quiet"),
    ]
    answer = experiments(store, accounted(store, records), zone=UTC)
    rows = {row["experiment"]: row for row in answer["rows"]}
    assert list(rows) == ["sweep", "rl", "quiet"]
    sweep = rows["sweep"]
    assert (sweep["team"], sweep["teams"], sweep["runs"], sweep["running"]) == ("nlp", ["nlp", "vision"], 2, 0)
    assert (sweep["best"], sweep["best_run"], sweep["final"]) == (1.0, "a", 4.0)  # the last run's last value
    assert (sweep["trend"], sweep["improving"]) == ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0], True)
    assert (sweep["started"], sweep["last_seen"]) == minutes(0, 60)
    assert (rows["rl"]["goal"], rows["rl"]["goal_guessed"], rows["rl"]["best"]) == ("max", True, 0.9)
    assert (rows["quiet"]["metric"], rows["quiet"]["trend"], rows["quiet"]["improving"]) == (None, [], None)
    assert answer["total"]["usd_micro"] == sum(row["usd_micro"] for row in rows.values())
    assert answer["total"]["gpu_ms"] == sum(row["gpu_ms"] for row in rows.values())
    listed = {row["run"]: row for row in runs(store, TimeRange(START_MS, START_MS + 2 * HOUR), zone=UTC)["rows"]}
    assert sweep["gpu_ms"] == listed["a"]["gpu_ms"] + listed["b"]["gpu_ms"]
