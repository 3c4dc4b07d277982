"""Runs that only a controller reports, such as a TrainJob without the SDK."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.worth import worth
from pyrometer.answers.runs.overview import runs, show
from pyrometer.model.records import Metric
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, PRICE_USD_MICRO, START_MS, all_ranks, at, cluster, job, run

WINDOW = TimeRange(START_MS, START_MS + 2 * HOUR)
USD_AN_HOUR = PRICE_USD_MICRO  # of one GPU


def stored(folder: Path, records: list[Any]) -> Store:
    store = Store(folder, create=True)
    store.append(records)
    build(store, Settings(), now_ms=WINDOW.to_ms)
    return store


def of_trainer(*, sdk: bool) -> list[Any]:
    reports = [
        Metric(at(minute), "llama", 1, 0, name, value)
        for minute in range(10, 100, 10)
        for name, value in (
            ("progress", minute / 2),
            ("remaining_seconds", 6_000.0 - minute),
            ("loss", 3 - minute / 50),
        )
    ]
    return [*cluster(), *job(), *(run() + all_ranks(0, 100) if sdk else []), *reports]


def test_trainjob_without_the_sdk_is_a_run_with_progress_and_curves(tmp_path: Path) -> None:
    with stored(tmp_path, of_trainer(sdk=False)) as store:
        (row,) = runs(store, WINDOW, zone=UTC)["rows"]
        about = show(store, "llama", WINDOW, Settings(), zone=UTC, without=["findings"])
        (judged,) = worth(store, "llama-sft", WINDOW, zone=UTC)["runs"]
    assert (row["run"], row["ranks"], row["attempts"], row["outcome"]) == ("llama", 4, 1, "running")
    assert row["usd_micro"] == 4 * 2 * USD_AN_HOUR
    assert row["goodput"] is None  # its steps were not reported
    assert row["progress"] == {
        "share": 0.45,
        "eta_ms": 5_910_000 - 30 * 60_000,
        "told_ms": at(90),
        "source": "trainjob",
    }
    assert [point[2] for point in about["metrics"]["loss"]] == pytest.approx(
        [3 - minute / 50 for minute in range(10, 100, 10)]
    )
    assert about["metrics"]["loss"][-1][4] == pytest.approx(4 * 1.5 * USD_AN_HOUR, rel=0.01)
    assert (judged["best"], judged["goodput"]) == (pytest.approx(1.2), None)


def test_run_with_the_sdk_has_the_progress_of_its_controller(tmp_path: Path) -> None:
    with stored(tmp_path, of_trainer(sdk=True)) as store:
        (row,) = runs(store, WINDOW, zone=UTC)["rows"]
    assert (row["run"], row["steps"], row["progress"]["share"]) == ("run", 10_000, 0.45)
    assert row["goodput"] > 0.5
