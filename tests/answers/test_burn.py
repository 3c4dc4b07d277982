"""What burned, without causes: the same as `why` says, over time, by experiment, and how fast."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.burn import burn
from pyrometer.answers.why import why
from pyrometer.model.records import Node, Price
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, MINUTE, PRICE_USD_MICRO, START_MS, all_ranks, at, cluster, job, minutes, run

NIGHT = [*cluster(), *job(to_min=90), *run(ended_ms=at(90)), *all_ranks(0, 80)]
TWO_HOURS = TimeRange(START_MS, START_MS + 2 * HOUR)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("night"), create=True) as store:
        store.append(NIGHT)
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        yield store


def test_burn_equals_why_for_the_same_time(store: Store) -> None:
    burned, explained = (ask(store, TWO_HOURS, Settings(), zone=UTC) for ask in (burn, why))
    shared = ("window", "timezone", "origin", "total", "prices_assumed", "states", "evidence", "teams")
    assert {name: burned[name] for name in shared} == {name: explained[name] for name in shared}


def test_unallocated_time_is_of_the_platform_and_no_experiment(store: Store) -> None:
    answer = burn(store, TWO_HOURS, Settings(), zone=UTC)
    held, free = answer["experiments"]
    assert (held["team"], held["experiment"], held["held_gpu_ms"]) == ("nlp", "llama-sft", 4 * 90 * MINUTE)
    assert (free["team"], free["experiment"], free["held_gpu_ms"]) == ("platform", None, 0)
    assert held["train_gpu_ms"] == next(row["gpu_ms"] for row in answer["states"] if row["state"] == "train")
    assert held["waste_gpu_ms"] == sum(row["gpu_ms"] for row in answer["states"] if row["family"] == "waste")


def test_burn_rate_covers_the_newest_minutes(store: Store) -> None:
    rate = burn(store, TWO_HOURS, Settings(), zone=UTC)["rate"]
    assert (rate["gpus"], rate["held_gpus"]) == (4, 0)
    assert (rate["usd_micro_per_hour"], rate["wasted_usd_per_hour"]) == (4 * PRICE_USD_MICRO, 0)
    earlier = burn(store, TimeRange(START_MS, at(60)), Settings(), zone=UTC)["rate"]
    assert (earlier["held_gpus"], (earlier["from"], earlier["to"])) == (4, minutes(55, 60))
    assert 0 < earlier["wasted_usd_per_hour"] < earlier["usd_per_hour"]


def test_time_range_after_all_data_burns_nothing(store: Store) -> None:
    answer = burn(store, TimeRange(at(500), at(600)), Settings(), zone=UTC)
    assert (answer["total"]["gpu_ms"], answer["timeline"]["rows"], answer["rate"]["gpus"]) == (0, [], 0)
    assert answer["rate"]["usd_micro_per_hour"] is None


@pytest.mark.parametrize(
    ("hours", "bucket_minutes"), [(1, 1), (4, 1), (12, 5), (24, 10), (7 * 24, 60), (30 * 24, 180), (365 * 24, 2880)]
)
def test_buckets_are_round_and_few(hours: int, bucket_minutes: int, store: Store) -> None:
    window = TimeRange(START_MS + 2 * HOUR - hours * HOUR, START_MS + 2 * HOUR)
    timeline = burn(store, window, Settings(), zone=UTC)["timeline"]
    assert timeline["bucket_ms"] == bucket_minutes * MINUTE
    assert all(row["from_ms"] % timeline["bucket_ms"] == 0 for row in timeline["rows"])


def test_daily_buckets_begin_at_midnight_of_the_time_zone(store: Store) -> None:
    window = TimeRange(START_MS - 200 * 24 * HOUR, START_MS + 2 * HOUR)
    (row,) = burn(store, window, Settings(), zone=ZoneInfo("Asia/Kolkata"))["timeline"]["rows"]
    assert row["from"].endswith("T00:00:00+05:30")


def test_unpriced_time_has_no_dollars(tmp_path: Path) -> None:
    records: list[Any] = [record for record in NIGHT if not isinstance(record, Price)]
    records += [Node(t, "test", "n9", "node-9", 2, "Other GPU", pool="priced") for t in (START_MS, at(120) - 1)]
    with Store(tmp_path, create=True) as store:
        store.append([*records, Price(START_MS, PRICE_USD_MICRO, START_MS - HOUR, pool="priced")])
        build(store, Settings(), now_ms=at(120))
        answer = burn(store, TimeRange(START_MS, at(120)), Settings(), zone=UTC)
    assert {row["experiment"]: row["usd_micro"] is None for row in answer["experiments"]} == {
        "llama-sft": True,
        None: False,
    }
    for row in answer["timeline"]["rows"]:
        assert set(row["usd_micro"]) == {"free"}
