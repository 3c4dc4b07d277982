"""Scenarios: properties of every simulated night, whatever its seed."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from pyrometer.simulate.api_objects import objects
from pyrometer.simulate.faults import FAULTS
from pyrometer.simulate.jobs import Night
from pyrometer.simulate.measurements import Meter
from pyrometer.simulate.scenarios import SCENARIOS
from pyrometer.simulate.truth import truth

SEEDS = range(1, 13)


def nights() -> list[Night]:
    return [SCENARIOS["overnight"].make(seed) for seed in SEEDS]


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
