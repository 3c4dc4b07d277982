"""A sweep by its trials: the best one and the cost of the others."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.fleet.sweep import SweepNotFoundError, show_sweep
from pyrometer.model.records import Sweep, Trial, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, PRICE_USD_MICRO, START_MS, at, cluster, pod

WINDOW = TimeRange(START_MS, START_MS + 2 * HOUR)
USD_AN_HOUR = PRICE_USD_MICRO  # of one GPU


def stored(folder: Path, records: list[Any]) -> Store:
    store = Store(folder, create=True)
    store.append(records)
    build(store, Settings(), now_ms=WINDOW.to_ms)
    return store


def trial(number: int, state: str, value: float | None, from_min: float, to_min: float | None) -> list[Any]:
    uid, ended_ms = f"trial-{number}", None if to_min is None else at(to_min)
    record = Trial(
        at(to_min or from_min),
        uid,
        "sweep",
        "ml",
        f"t{number}",
        state,
        json.dumps({"lr": str(number)}),
        value,
        started_ms=at(from_min),
        ended_ms=ended_ms,
    )
    workload = Workload(START_MS, "test", f"w{number}", "Job", "ml", f"t{number}", team="nlp")
    held = pod(f"p{number}", f"w{number}", f"n{number % 2}", from_min=from_min, to_min=to_min, trial_uid=uid)
    return [record, workload, *held]


SWEEP = Sweep(at(0), "test", "sweep", "ml", "search", "running", "loss", "min", 0.1, "random", "t2", at(0))
TRIALS = [
    *cluster(),
    SWEEP,
    *trial(1, "succeeded", 0.5, 0, 30),
    *trial(2, "succeeded", 0.3, 0, 60),
    *trial(3, "early_stopped", 0.9, 30, 40),
    *trial(4, "failed", None, 60, 65),
    *trial(5, "running", None, 100, None),
]


def test_show_sweep_has_the_best_trial_and_the_cost_of_the_others(tmp_path: Path) -> None:
    with stored(tmp_path, TRIALS) as store:
        answer = show_sweep(store, "search", WINDOW, zone=UTC)["sweep"]
        with pytest.raises(SweepNotFoundError):
            show_sweep(store, "other", WINDOW, zone=UTC)
    minute = 2 * USD_AN_HOUR // 60
    assert (answer["best_trial"], answer["metric"], answer["goal"], answer["target"]) == ("t2", "loss", "min", 0.1)
    assert [(row["trial"], row["usd_micro"]) for row in answer["trials"]] == [
        ("t2", 60 * minute),
        ("t1", 30 * minute),
        ("t5", 20 * minute),
        ("t3", 10 * minute),
        ("t4", 5 * minute),
    ]
    assert (answer["best_usd_micro"], answer["losers_usd_micro"], answer["going_on_usd_micro"]) == (
        60 * minute,
        45 * minute,
        20 * minute,
    )
    assert answer["total"]["usd_micro"] == 125 * minute
    assert (answer["early_stopped"], answer["early_stopped_usd_micro"]) == (1, 10 * minute)
    assert answer["early_stopped_saved_usd_micro"] == 35 * minute  # the median of those that ran to their end is 45
    assert {row["trial"] for row in answer["trials"] if row["pareto"]} == {"t1", "t2", "t3"}
    assert answer["trials"][0]["parameters"] == {"lr": "2"}
    assert answer["trials"][0]["workload"]["name"] == "t2"


@pytest.mark.parametrize(("goal", "best"), [("min", "t2"), ("max", "t3"), (None, None)])
def test_best_trial_is_computed_if_katib_does_not_report_it(tmp_path: Path, goal: str | None, best: str | None) -> None:
    silent = SWEEP._replace(best_trial=None, goal=goal)
    with stored(tmp_path, [silent if row is SWEEP else row for row in TRIALS]) as store:
        assert show_sweep(store, "search", WINDOW, zone=UTC)["sweep"]["best_trial"] == best
