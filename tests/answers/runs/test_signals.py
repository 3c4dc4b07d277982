"""A run on one axis of time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs import signals as signals_module
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.answers.runs.overview import RunNotFoundError, run_names, runs, show
from pyrometer.answers.runs.signals import MAX_CELLS, signals
from pyrometer.model.records import Run, Slot
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, NORMAL_STEP_MS, START_MS, at, cluster, event, job, run, samples, steps

NIGHT = TimeRange(START_MS, START_MS + 2 * HOUR)
FIRST = {"samples": 6_000, "tokens": 600_000, "memory_peak_mib": 40_000}
RECORDS: list[Any] = [
    *cluster(),
    *job(),
    *run(ended_ms=at(30), outcome="failed"),
    *run(attempt=2, started_min=60, resumed_step=2_000),
    *(window for rank in range(4) for window in steps(rank, 0, 30, **NORMAL_STEP_MS, **FIRST)),
    *(window for rank in range(3) for window in steps(rank, 60, 90, attempt=2, first_step=2_000, **NORMAL_STEP_MS)),
    *steps(3, 60, 90, attempt=2, first_step=2_000, **(NORMAL_STEP_MS | {"comm_ms": 15_000})),
    *samples("n0", 0, 0, 120, gpu_util_permille=900, power_w=400),
    *samples("n0", 1, 0, 120, gpu_util_permille=700),
    Slot(START_MS, "n0", 0, "GPU-1"),
    event("checkpoint_saved", 10, 0, step=1_000, duration_ms=4_000),
    event("checkpoint_saved", 20, 0, step=2_000),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("night"), create=True) as store:
        store.append(RECORDS)
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        yield store


@pytest.fixture(scope="module")
def answer(store: Store) -> dict[str, Any]:
    return signals(store, "run", NIGHT, zone=UTC)


def columns(answer: Any) -> Iterator[list[Any]]:
    """Every list of one value a bucket."""
    for name in ("series", "memory"):
        yield from (column for figures in answer[name].values() for column in figures.values())
    yield from (row for rows in answer["heat"].values() for row in rows)
    yield from (phase["ms_per_step"] for phase in answer["phases"])
    yield from answer["throughput"].values()


def place(answer: dict[str, Any], minute: float) -> int:
    """The bucket of a minute."""
    return (at(minute) - answer["times_ms"][0]) // answer["bucket_ms"]


def test_signals_share_one_time_axis(answer: dict[str, Any]) -> None:
    times = answer["times_ms"]
    assert (answer["bucket_ms"], times[0], len(times)) == (30_000, START_MS, 240)
    assert all(len(column) == len(times) for column in columns(answer))
    assert [row["rank"] for row in answer["ranks"]] == [0, 1, 2, 3]
    assert answer["ranks"][0] == {"rank": 0, "node": "node-0", "slot_index": 0, "gpu": "GPU-1"}
    assert answer["ranks_total"] == 4
    assert all(len(rows) == 4 for rows in answer["heat"].values())


def test_signals_show_gpus_while_the_run_held_them(answer: dict[str, Any]) -> None:
    util = answer["series"]["gpu_util"]
    assert [util[figure][place(answer, 10)] for figure in ("mean", "min", "max")] == [0.8, 0.7, 0.9]
    assert answer["series"]["power_w"]["mean"][place(answer, 10)] == 400
    assert util["mean"][place(answer, 45)] is None  # between its attempts they were not
    assert util["mean"][place(answer, 119)] == 0.8
    assert answer["heat"]["gpu_util"][1][place(answer, 10)] == 0.7
    assert answer["heat"]["gpu_util"][2][place(answer, 10)] is None
    assert set(answer["series"]["temperature_c"]["mean"]) == {None}


def test_signals_have_steps_phases_and_rates(answer: dict[str, Any]) -> None:
    early, late = place(answer, 10), place(answer, 70)
    assert answer["heat"]["step_ms"][0][early] == 600  # a hundred a minute
    assert answer["heat"]["step_ms"][0][place(answer, 45)] is None
    assert [row[late] for row in answer["heat"]["wait_ms_share"]] == [0.025, 0.025, 0.025, 0.25]
    phases = {phase["name"]: phase["ms_per_step"] for phase in answer["phases"]}
    assert (phases["data"][early], phases["forward"][early], phases["sync"][early]) == (3, 200, 15)
    assert phases["sync"][late] == (3 * 15 + 150) / 4
    assert sum(column[early] for column in phases.values()) == 600
    assert answer["throughput"]["samples_per_s"][early] == 4 * 100
    assert answer["throughput"]["tokens_per_s"][early] == 4 * 10_000
    assert answer["throughput"]["samples_per_s"][late] is None  # it did not say
    assert answer["memory"]["allocated_mib"]["max"][early] == 40_000


def test_signals_have_the_events_of_the_trace(answer: dict[str, Any], store: Store) -> None:
    assert answer["checkpoints"] == [
        {"at_ms": at(10), "step": 1_000, "duration_ms": 4_000, "attempt": 1},
        {"at_ms": at(20), "step": 2_000, "duration_ms": None, "attempt": 1},
    ]
    assert answer["attempts"] == [
        {"attempt": 1, "from_ms": at(0), "to_ms": at(30), "outcome": "failed", "resumed_step": None},
        {"attempt": 2, "from_ms": at(60), "to_ms": at(120), "outcome": "running", "resumed_step": 2_000},
    ]
    traced = trace_run(store, "run", NIGHT, zone=UTC)["attempts"]
    assert [(one["phase"], one["from_ms"], one["to_ms"], one["attempt"]) for one in answer["lifecycle"]] == [
        (piece["name"], piece["start_ms"], piece["start_ms"] + piece["duration_ms"], attempt["attempt"])
        for attempt in traced
        for piece in attempt["pieces"]
    ]


def test_signals_are_cut_at_the_time_range(store: Store) -> None:
    answer = signals(store, "run", TimeRange(at(20), at(80)), zone=UTC)
    assert (answer["times_ms"][0], answer["bucket_ms"], len(answer["times_ms"])) == (at(20), 15_000, 240)
    assert [(one["from_ms"], one["to_ms"]) for one in answer["attempts"]] == [(at(20), at(30)), (at(60), at(80))]
    assert answer["heat"]["step_ms"][0][0] == 600


@given(st.integers(0, 400 * 24 * HOUR), st.integers(1, 400 * 24 * HOUR), st.integers(1, 1_024))
def test_axis_has_few_buckets_and_covers_the_time_range(from_ms: int, length_ms: int, ranks: int) -> None:
    most = min(240, MAX_CELLS // ranks)
    axis = signals_module._Axis.of(from_ms, from_ms + length_ms, most)
    assert 0 < axis.buckets <= most
    assert axis.from_ms % axis.bucket_ms == 0
    assert axis.from_ms <= from_ms < axis.from_ms + axis.bucket_ms
    assert axis.from_ms + axis.buckets * axis.bucket_ms >= from_ms + length_ms


@given(st.integers(1, 5_000), st.integers(2, 1_024))
def test_signals_choose_ranks_evenly(count: int, most: int) -> None:
    rows = [{"rank": rank} for rank in range(count)]
    chosen = [row["rank"] for row in signals_module._evenly(rows, most)]
    assert len(chosen) == min(count, most)
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (0, count - 1)


def test_signals_of_an_unknown_run_are_rejected(store: Store) -> None:
    with pytest.raises(RunNotFoundError):
        signals(store, "ruin", NIGHT, zone=UTC)


def test_run_without_steps_and_gpus_has_an_empty_axis(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), Run(at(5), "bare", 1, 0, at(5))])
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        answer = signals(store, "bare", NIGHT, zone=UTC)
    assert {value for column in columns(answer) for value in column} == {None}
    assert answer["ranks"] == [{"rank": 0, "node": None, "slot_index": None, "gpu": None}]


def test_show_of_a_run_equals_its_row_in_the_list(store: Store) -> None:
    (listed,) = runs(store, NIGHT, zone=UTC)["rows"]
    shown = show(store, "run", NIGHT, Settings(), zone=UTC)
    assert {name: shown[name] for name in listed} == listed
    assert len(shown["windows"]) == 4 * 60
    quick = show(store, "run", NIGHT, Settings(), zone=UTC, without=("windows", "findings"))
    assert shown["findings"]
    assert quick == {**shown, "findings": [], "windows": []}
    assert run_names(store, NIGHT) == ["run"]
