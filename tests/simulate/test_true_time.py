"""The true use of time: states of activities, outages, claims, and time without a holder."""

from __future__ import annotations

import numpy as np
import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.hardware import H100, Pool, machines_of
from pyrometer.simulate.jobs import (
    Activity,
    Effect,
    Job,
    JobAttempt,
    Night,
    Outage,
    PlantedClaim,
    PlantedFinding,
    PodPlacement,
)
from pyrometer.simulate.true_time import TrueTime

MACHINES = machines_of((Pool("a", H100, 2, "x"),))
SLOTS = np.arange(8)


def attempt(*activities: Activity, effects: tuple[Effect, ...] = ()) -> JobAttempt:
    place = PodPlacement(MACHINES[0], tuple(range(8)))
    return JobAttempt(1, [place], [0], [0], list(activities), effects=list(effects))


def job(instrumented: bool = True) -> Job:
    return Job("llama", "Job", "a", "a", "sft", "ada", "q", 1, 8, 0, instrumented=instrumented)


def states(night: Night, one: JobAttempt, instrumented: bool = True) -> dict[str, float]:
    time = TrueTime(night)
    time.add_attempt(job(instrumented), one, None, SLOTS, 0, MS_PER_HOUR)
    return {state: ms / 8 for cell in time.cells.values() for state, ms in cell.items() if ms}


def test_activities_are_booked_in_their_states():
    one = attempt(Activity("startup", 0, 100), Activity("hang", 100, 300), Activity("idle", 300, 350))
    assert states(Night("test", 1, 0, MS_PER_HOUR, MACHINES), one) == {"startup": 100, "hang": 200, "idle_held": 50}


def test_telemetry_outage_hides_only_uninstrumented_jobs():
    night = Night("test", 1, 0, MS_PER_HOUR, MACHINES, outages=[Outage("telemetry", MACHINES[0], 0, 40)])
    one = attempt(Activity("busy", 0, 100))
    assert states(night, one, instrumented=False) == pytest.approx({"unobserved": 40, "active": 60})
    assert states(night, one) == {"active": 100}


def test_time_of_a_broken_device_belongs_to_the_platform():
    night = Night("test", 1, 0, MS_PER_HOUR, MACHINES, outages=[Outage("device", MACHINES[0], 0, 100, gpu=0)])
    assert states(night, attempt(Activity("hang", 0, 100))) == pytest.approx({"hang": 7 / 8 * 100})


def test_unused_device_is_booked_separately():
    one = attempt(Activity("busy", 0, 80), effects=(Effect("unused", 0, 100, ranks=(3,)),))
    found = states(Night("test", 1, 0, MS_PER_HOUR, MACHINES), one, instrumented=False)
    assert found == pytest.approx({"active": 70, "unused_device": 10})


def test_claim_is_credited_within_its_interval_and_ranks():
    planted = PlantedFinding("hang", job(), 50, 150, [PlantedClaim(("hang",), 50, 150, ranks=(0, 1))])
    night = Night("test", 1, 0, MS_PER_HOUR, MACHINES, planted=[planted])
    TrueTime(night).add_attempt(job(), attempt(Activity("hang", 0, 200)), None, SLOTS, 0, MS_PER_HOUR)
    assert planted.gpu_ms == 200
    assert planted.usd == pytest.approx(200 / MS_PER_HOUR * H100.usd_micro_per_hour / 1e6)


def test_unheld_time_is_free_or_unhealthy():
    outage = Outage("cordon", MACHINES[1], 0, MS_PER_HOUR // 2)
    time = TrueTime(Night("test", 1, 0, MS_PER_HOUR, MACHINES, outages=[outage]))
    time.add_platform(np.repeat([float(MS_PER_HOUR), 0.0], 8), 0, MS_PER_HOUR)
    assert dict(time.cells[None, 0]) == {"unhealthy": 4 * MS_PER_HOUR, "free": 4 * MS_PER_HOUR}
