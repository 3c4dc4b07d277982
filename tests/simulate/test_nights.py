"""Simulated nights: the laws that every night keeps, whatever its seed, and what it shares with real hardware."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from itertools import pairwise
from statistics import median

import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.api_objects import objects
from pyrometer.simulate.faults import FAULTS
from pyrometer.simulate.hardware import H200, SIGNATURES
from pyrometer.simulate.jobs import Night
from pyrometer.simulate.measurements import Meter
from pyrometer.simulate.scenarios import SCENARIOS
from pyrometer.simulate.truth import truth

SEEDS = range(1, 13)


def nights() -> list[Night]:
    return [SCENARIOS["overnight"].make(seed) for seed in SEEDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_truth_books_every_millisecond_of_every_slot_once(seed: int) -> None:
    """The truth keeps the law that it is used to judge: each hour holds capacity times its length, not more or less."""
    night = SCENARIOS["overnight" if seed % 3 else "quiet"].make(seed, 80 if seed % 2 else None, 5)
    meter = Meter(night)
    for _ in meter.hours():
        pass
    slots = sum(machine.pool.gpus for machine in night.machines)
    by_hour: dict[int, float] = defaultdict(float)
    for (_, hour_ms), states in meter.true_time.cells.items():
        assert min(states.values()) > -1e-3
        by_hour[hour_ms] += sum(states.values())
    hours = range(night.from_ms, night.to_ms, MS_PER_HOUR)
    assert {hour_ms: round(ms) for hour_ms, ms in by_hour.items()} == dict.fromkeys(hours, slots * MS_PER_HOUR)
    expected = truth(night, meter, "sdk")
    assert sum(cell["gpu_ms"] for cell in expected["cells"]) == expected["total"]["gpu_ms"] == slots * 5 * MS_PER_HOUR
    assert sum(row["gpu_ms"] for row in expected["states"]) == expected["total"]["gpu_ms"]


def test_slots_are_held_once_and_attempts_have_no_gaps() -> None:
    for night in nights():
        held = defaultdict(list)
        for job in night.jobs:
            for attempt in job.attempts:
                over_ms = attempt.ended_ms or night.to_ms
                for before, after in pairwise(attempt.activities):
                    assert before.to_ms == after.from_ms, (job.name, before, after)
                assert attempt.activities[-1].to_ms == over_ms <= night.to_ms, job.name
                for pod, place in enumerate(attempt.places):
                    for gpu in place.gpus:
                        held[place.machine.uid, gpu].append((attempt.scheduled_ms[pod], over_ms, job.name))
        for holds in held.values():
            for before, after in pairwise(sorted(holds)):
                assert before[1] <= after[0], (before, after)


def test_faults_are_at_odd_times_within_the_night_and_vary_with_the_seed() -> None:
    made = nights()
    for night in made:
        assert 6 <= len(night.planted) <= 16
        assert len({planted.cause for planted in night.planted}) >= 5
        for planted in night.planted:
            assert night.from_ms <= planted.from_ms < planted.to_ms <= night.to_ms
            assert planted.from_ms % MS_PER_HOUR != 0 or planted.from_ms == night.from_ms
            assert planted.claims
        same = sorted((p.cause, p.job.uid, p.from_ms, p.to_ms) for p in night.planted if p.job)
        for before, after in pairwise(same):
            assert before[:2] != after[:2] or before[3] <= after[2]  # nothing is planted twice at once
    assert len({tuple(sorted(p.cause for p in night.planted)) for night in made}) > len(made) / 2
    lengths = [p.to_ms - p.from_ms for night in made for p in night.planted]
    assert min(lengths) < 20 * 60_000  # some last minutes,
    assert max(lengths) > 4 * MS_PER_HOUR  # some hours


def test_few_seeds_plant_every_cause() -> None:
    seen = {planted.cause for seed in range(1, 31) for planted in SCENARIOS["overnight"].make(seed).planted}
    assert seen == set(FAULTS)


@pytest.mark.parametrize("cause", FAULTS)
def test_every_cause_has_a_scenario(cause: str) -> None:
    night = SCENARIOS[cause].make(1)
    assert cause in {planted.cause for planted in night.planted}


def test_quiet_night_has_no_planted_finding_and_the_same_cluster() -> None:
    quiet, overnight = SCENARIOS["quiet"].make(3), SCENARIOS["overnight"].make(3)
    assert quiet.planted == []
    assert quiet.machines == overnight.machines


@pytest.mark.heavy
def test_scenario_is_deterministic_for_its_seed() -> None:
    def rows(seed: int) -> list[tuple[object, ...]]:
        night = SCENARIOS["hang"].make(seed, None, 4)
        meter = Meter(night)
        hours = list(meter.hours())
        return [*objects(night, meter.counters.resumed_step), *(row for hour in hours for row in hour.records)]

    def measured(seed: int) -> list[object]:
        meter = Meter(SCENARIOS["hang"].make(seed, None, 4))
        tables = [table for hour in meter.hours() for table in hour.tables.values()]
        return [*(table.to_pydict() for table in tables), truth(meter.night, meter, "sdk")]

    assert rows(1) == rows(1)
    assert measured(1) == measured(1)
    assert rows(1) != rows(2)


@pytest.mark.heavy
def test_cluster_has_the_requested_number_of_gpus() -> None:
    for gpus in (80, 128, 304, 1000, 2000):
        night = SCENARIOS["overnight"].make(1, gpus)
        assert 0 <= sum(machine.pool.gpus for machine in night.machines) - gpus < 8
    assert sum(machine.pool.gpus for machine in SCENARIOS["scale"].make(1, None, 4).machines) == 10_000


def test_night_has_gangs_of_many_sizes_and_kinds() -> None:
    night = SCENARIOS["overnight"].make(1)
    assert {job.kind for job in night.jobs} >= {"PyTorchJob", "TrainJob", "RayJob", "Job", "Notebook", "Deployment"}
    assert {1, 8, 16, 24, 48, 64} <= {job.ranks for job in night.jobs}
    chain = {row.kind: row for row in objects(night, {}) if type(row).__name__ == "Owner" and "moe" in row.name}
    assert list(chain) == ["Job", "JobSet", "TrainJob"]
    assert chain["Job"].controller_uid == chain["JobSet"].object_uid
    assert chain["TrainJob"].controller_uid is None


@pytest.mark.parametrize(
    ("state", "looks"),
    [("free", "free"), ("train", "train"), ("idle_held", "idle"), ("evaluate", "evaluate"), ("diverged", "nan")],
)
def test_simulated_telemetry_resembles_the_recorded_gpu(h200, state: str, looks: str) -> None:
    """Signatures are those of the H200 that was recorded doing each of these things."""
    intervals = json.loads((h200 / "a-truth.json").read_text())["intervals"]
    spans = [(i["start"] + 4, i["end"] - 1) for i in intervals if i["state"] == state]
    with (h200 / "a-gpu.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if any(a <= float(row["time"]) <= b for a, b in spans)]
    assert len(rows) > 5
    signature = SIGNATURES[looks]
    power_w = H200.idle_w + signature.power / 1000 * (H200.busy_w - H200.idle_w)
    for recorded, simulated, tolerance in (
        (median(float(row["gpu_util"]) for row in rows), signature.util / 10, 6),
        (median(float(row["sm_active"]) for row in rows), signature.sm / 10, 6),
        (median(float(row["tensor_active"]) for row in rows), signature.tensor / 10, 4),
        (median(float(row["dram_active"]) for row in rows), signature.dram / 10, 5),
        (median(float(row["power_w"]) for row in rows), power_w, max(18, 0.08 * power_w)),
    ):
        scaled = recorded * 100 if recorded <= 1 and simulated > 1.5 else recorded
        assert scaled == pytest.approx(simulated, abs=tolerance)


def test_planted_findings_claim_the_time_that_was_spent() -> None:
    """Claims of whole states, against the same time taken from the plan."""
    for cause, state in (
        ("hang", "hang"),
        ("stranded", "free"),
        ("idle_held", "idle_held"),
        ("gang_wait", "gang_wait"),
    ):
        night = SCENARIOS[cause].make(2)
        meter = Meter(night)
        for _ in meter.hours():
            pass
        for planted in night.planted:
            if planted.cause == cause:
                gpus = {"gang_wait": 8, "stranded": 8}.get(cause, planted.job.ranks if planted.job else 0)
                assert state in planted.claims[0].states
                assert planted.gpu_ms == pytest.approx(gpus * (planted.to_ms - planted.from_ms), rel=0.01)
                assert planted.usd == pytest.approx(planted.gpu_ms / MS_PER_HOUR * 3.49, rel=1e-6)
