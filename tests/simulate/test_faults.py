"""Faults: where and when they are planted, and that every cause occurs."""

from __future__ import annotations

from itertools import pairwise

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.faults import FAULTS
from pyrometer.simulate.jobs import Night
from pyrometer.simulate.scenarios import SCENARIOS

SEEDS = range(1, 13)


def nights() -> list[Night]:
    return [SCENARIOS["overnight"].make(seed) for seed in SEEDS]


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
