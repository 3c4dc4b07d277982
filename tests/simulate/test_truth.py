"""The truth of a simulated night: every millisecond is booked once, and planted findings claim their time."""

from __future__ import annotations

from collections import defaultdict

import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.measurements import Meter
from pyrometer.simulate.scenarios import SCENARIOS
from pyrometer.simulate.truth import truth

SEEDS = range(1, 13)


@pytest.mark.parametrize("seed", SEEDS)
def test_truth_books_every_millisecond_of_every_slot_once(seed: int) -> None:
    """Each hour adds up to the capacity times its length."""
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


def test_planted_findings_claim_the_time_that_was_spent() -> None:
    """Compares claims of whole states with the planned time."""
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
