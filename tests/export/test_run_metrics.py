"""Training runs as gauges: the known values of each run, with a limited number of series."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.account.build.ledger import build
from pyrometer.answers.runs.progress import ENDED_MS, MAX_METRICS, SILENT_MS
from pyrometer.export.metrics_text import render_metrics
from pyrometer.export.run_metrics import RunCollector
from pyrometer.model.records import Metric, Node, Run
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, MINUTE, START_MS, all_ranks, at, cluster, event, job, run, steps

SPEED = {"step_p50_us": 590_000, "step_max_us": 700_000, "samples": 3_200, "tokens": 6_400, "memory_peak_mib": 40_000}
LENGTHS = (590_000, 98, 650_000, 1, 700_000, 1)  # of which the 99th percentile is between the last two
FLOPS = 60 * 250 * 10**12  # a minute at 250 TFLOP/s: more than an int64 has room for in all ranks together


def metric(name: str, minute: float, value: float, *, run: str = "run", **more: Any) -> Metric:
    return Metric(at(minute), run, 1, 0, name, value, round(minute * 100), **more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, create=True) as store:
        nodes = [row._replace(gpu_model="NVIDIA H100 80GB HBM3") for row in cluster(hours=4) if isinstance(row, Node)]
        store.append([*nodes, *job(), *run(framework="torch", experiment="sft")])
        store.append(all_ranks(0, 90, flops=FLOPS, step_lengths=LENGTHS, **SPEED))
        store.append([metric("loss", minute, 3 - minute / 100, goal="min") for minute in range(90)])
        store.append([event("checkpoint_saved", 60, 0, step=6_000, duration_ms=500)])
        yield store


class Shown:
    """The values that a scraper sees as time passes."""

    def __init__(self, store: Store, **more: int) -> None:
        self.store, self.runs = store, RunCollector(**more)

    def at(self, minute: float) -> dict[str, float]:
        """The figures of the run of this file, by their names and the labels that are not the run's own."""
        covered = build(self.store, Settings(), now_ms=at(minute))
        assert covered is not None
        self.runs.count(self.store, covered.end_ms)
        return self.figures("run")

    def figures(self, run: str) -> dict[str, float]:
        found = {}
        for family in text_string_to_metric_families(render_metrics([self.runs], "")[0].decode()):
            for sample in family.samples:
                if sample.labels.get("run", run) == run:
                    own = [value for name, value in sample.labels.items() if name not in ("run", "team", "experiment")]
                    found[" ".join([sample.name.removeprefix("pyrometer_run_"), *own])] = sample.value
        return found


def test_run_metrics_show_all_known_values(store: Store) -> None:
    values = Shown(store).at(90)
    expected = {
        "info torch ml/llama": 1,
        "outcome running": 1,
        "outcome failed": 0,
        "ranks": 4,
        "attempt": 1,
        "started_timestamp_seconds": START_MS / 1000,
        "step": 9_000,
        "last_step_timestamp_seconds": at(90) / 1000,
        "last_checkpoint_timestamp_seconds": at(60) / 1000,
        "metric loss": 3 - 0.89,
        "samples_per_second": pytest.approx(4 * 3_200 / 60, abs=0.001),
        "tokens_per_second": pytest.approx(4 * 6_400 / 60, abs=0.001),
        "flops_per_second": 4 * 250e12,
        "mfu_ratio": pytest.approx(250 / 989, abs=0.001),
        "step_seconds 50": 0.59,
        "step_seconds 99": pytest.approx(0.65, rel=0.001),
        "step_seconds 100": 0.7,
        "phase_ratio backward": 0.5,
        "memory_peak_bytes": 40_000 * 2**20,
        "stuck_ranks": 0,
        "nonfinite_loss": 0,
        "goodput_ratio": pytest.approx(1 - 0.3 / 60 - 1.5 / 60, abs=0.01),  # it waited for data and for peers
    }
    assert {name: values.get(name) for name in expected} == expected
    phases = [value for name, value in values.items() if name.startswith("phase_ratio")]
    assert sum(phases) == pytest.approx(1, abs=0.001)
    assert len(phases) == 11
    assert "ended_timestamp_seconds" not in values


@pytest.mark.heavy
def test_run_problems_are_shown_until_they_end(store: Store) -> None:
    shown = Shown(store)
    store.append([event("stuck", 88, rank, step=8_800) for rank in (1, 2)])
    store.append([event("nonfinite_loss", 88, 0, step=8_800), metric("loss", 89.5, math.nan)])
    values = shown.at(90)
    assert (values["stuck_ranks"], values["nonfinite_loss"]) == (2, 1)
    assert math.isnan(values["metric loss"])
    store.append([event("unstuck", 95, 2), event("finite_loss", 95, 3, step=8_900)])
    values = shown.at(96)
    assert (values["stuck_ranks"], values["nonfinite_loss"]) == (1, 0)
    store.append([event("unstuck", 200, 1)])
    assert shown.at(201)["stuck_ranks"] == 0, "it was remembered longer than its events were read"


def test_new_attempt_starts_without_the_problems_of_the_previous_one(store: Store) -> None:
    shown = Shown(store)
    store.append([event("stuck", 88, 1), *run(attempt=2, started_min=92, resumed_step=6_000)])
    store.append([window for rank in range(4) for window in steps(rank, 93, 96, attempt=2, first_step=6_000)])
    values = shown.at(96)
    assert values["attempt"] == 2
    assert values["stuck_ranks"] == 0
    assert values["step"] == 6_300
    assert values["last_checkpoint_timestamp_seconds"] == at(60) / 1000


def test_silent_run_has_no_speed_instead_of_zero(store: Store) -> None:
    shown = Shown(store)
    assert "tokens_per_second" in shown.at(90)
    store.append([event("watched", 100, 0)])
    values = shown.at(101)
    assert "tokens_per_second" not in values
    assert values["step"] == 9_000


@pytest.mark.parametrize(
    "outcome", ["succeeded", *(pytest.param(outcome, marks=pytest.mark.heavy) for outcome in ("failed", "killed"))]
)
def test_ended_run_is_retired(store: Store, outcome: str) -> None:
    shown = Shown(store)
    store.append([one._replace(time_ms=at(90), ended_ms=at(90), outcome=outcome) for one in run(experiment="sft")])
    values = shown.at(91)
    assert [name for name, value in values.items() if name.startswith("outcome") and value] == [f"outcome {outcome}"]
    assert values["ended_timestamp_seconds"] == at(90) / 1000
    store.append([event("watched", 90 + ENDED_MS / MINUTE + 2, 0)])
    assert set(shown.at(90 + ENDED_MS / MINUTE + 3)) == {"pyrometer_runs_left_out"}


def test_silent_run_is_retired(store: Store) -> None:
    shown = Shown(store)
    assert shown.at(90)
    shown.runs.count(store, at(89) + SILENT_MS)
    assert shown.figures("run")["step"] == 9_000
    shown.runs.count(store, at(91) + SILENT_MS)
    assert "step" not in shown.figures("run")


@pytest.mark.heavy
def test_largest_runs_get_and_keep_series(store: Store) -> None:
    def small(number: int, ranks: int) -> list[Run]:
        return [Run(at(80), f"small-{number}", 1, rank, at(80), ranks=ranks) for rank in range(ranks)]

    store.append([one for number in range(5) for one in small(number, 2)])
    shown = Shown(store, max_runs=2)
    assert shown.at(90)["pyrometer_runs_left_out"] == 4
    assert shown.figures("run")["ranks"] == 4
    store.append(small(9, 64))
    assert shown.at(90)["pyrometer_runs_left_out"] == 5
    assert "ranks" not in shown.figures("small-9")  # whoever has series keeps them
    store.append([one._replace(time_ms=at(91), ended_ms=at(91), outcome="failed") for one in run()])
    shown.runs.count(store, at(92) + ENDED_MS)
    assert shown.figures("small-9")["ranks"] == 64


def test_run_has_a_limited_number_of_metrics_goals_first(store: Store) -> None:
    names = [f"aaa/{number:03}" for number in range(100)]
    store.append([metric(name, 89, 1.0) for name in names])
    shown = Shown(store)
    values = shown.at(90)
    assert values["metrics_left_out"] == 101 - MAX_METRICS
    assert len([name for name in values if name.startswith("metric ")]) == MAX_METRICS
    assert "metric loss" in values
    store.append([metric(names[3], 90, 2.0), metric("new", 90, 1.0)])
    values = shown.at(91)
    assert values[f"metric {names[3]}"] == 2
    assert "metric new" not in values


def test_only_recent_records_are_read(store: Store) -> None:
    """Old partitions of measurements are not read, so their files may contain anything."""
    store.append([event("watched", 200, 0)])
    store.append(all_ranks(200, 210, **SPEED))
    store.append([metric("loss", 205, 1.5)])
    covered = build(store, Settings(), now_ms=START_MS + 4 * HOUR)
    assert covered is not None
    store.seal(before_ms=START_MS + 2 * HOUR)
    old = [part for part in store.parts() if part.kind in ("step_window", "metric") and part.to_ms <= at(120)]
    assert len(old) >= 4
    for part in old:
        (store.folder / part.path).write_bytes(b"not Parquet")
    runs = RunCollector()
    runs.count(store, covered.end_ms)
    assert b"pyrometer_run_step" in render_metrics([runs], "")[0]


def test_run_metrics_pass_promtool(store: Store) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    shown = Shown(store)
    shown.at(90)
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=render_metrics([shown.runs], "")[0], capture_output=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
