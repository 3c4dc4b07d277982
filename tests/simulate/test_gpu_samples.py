"""Simulated GPU samples: telemetry follows activities and effects, and counters never fall."""

from __future__ import annotations

import numpy as np
import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.gpu_samples import THERMAL_SLOWDOWN, Gpus, SimulatedTelemetry, memory_share
from pyrometer.simulate.hardware import H100, Pool, machines_of
from pyrometer.simulate.jobs import Activity, Effect, Job, JobAttempt, Night, Outage, PodPlacement

MACHINES = machines_of((Pool("a", H100, 2, "x"),))


def samples(kind: str = "busy", *effects: Effect, outages: tuple[Outage, ...] = ()) -> list[dict]:
    night = Night("test", 1, 0, MS_PER_HOUR, MACHINES, outages=list(outages))
    job = Job("llama", "Job", "a", "a", "sft", "ada", "q", pods=1, gpus=8, created_ms=0, instrumented=False)
    attempt = JobAttempt(1, [PodPlacement(MACHINES[0], tuple(range(8)))], [0], [0], [Activity(kind, 0, MS_PER_HOUR)])
    attempt.effects += effects
    gpus = Gpus(night, np.random.default_rng(1))
    telemetry = SimulatedTelemetry(night, gpus, np.random.default_rng(2), 0, MS_PER_HOUR)
    telemetry.add_attempt(job, attempt, None, np.arange(8), MS_PER_HOUR)
    rows, _ = telemetry.samples()
    return rows.to_pylist()


def on(rows: list[dict], machine: int, column: str) -> list[int]:
    return [row[column] for row in rows if row["node_uid"] == MACHINES[machine].uid]


def test_busy_gpus_differ_from_free_gpus():
    rows = samples()
    assert min(on(rows, 0, "sm_active_permille")) > 500
    assert max(on(rows, 1, "sm_active_permille")) == 0
    assert min(on(rows, 0, "power_w")) > max(on(rows, 1, "power_w"))
    assert max(on(rows, 1, "memory_used_mib")) == 0


def test_energy_counters_never_fall():
    rows = sorted((row for row in samples() if row["slot_index"] == 3), key=lambda row: row["time_ms"])
    counted = on(rows, 0, "energy_j")
    assert counted == sorted(counted)


@pytest.mark.parametrize(("kind", "low", "high"), [("idle", 0, 50), ("spin", 950, 1000)])
def test_utilization_follows_the_activity(kind, low, high):
    values = on(samples(kind), 0, "gpu_util_permille")
    assert low <= min(values) <= max(values) <= high


def test_hot_gpu_reports_throttling_and_a_lower_clock():
    rows = samples("busy", Effect("clock", 0, MS_PER_HOUR, 0.5, (2,)))
    hot = [row for row in rows if row["throttle_reasons"] == THERMAL_SLOWDOWN]
    assert {(row["node_uid"], row["slot_index"]) for row in hot} == {(MACHINES[0].uid, 2)}
    assert max(row["sm_clock_mhz"] for row in hot) < 0.6 * H100.clock_mhz


def test_outage_removes_the_samples_of_its_machine():
    rows = samples(outages=(Outage("telemetry", MACHINES[0], 0, MS_PER_HOUR),))
    assert {row["node_uid"] for row in rows} == {MACHINES[1].uid}


def test_memory_share_grows_until_the_memory_is_full():
    attempt = JobAttempt(1, [], [0], [0], [], effects=[Effect("memory", 0, 100, ranks=(1,))])
    share = memory_share(attempt, np.arange(2), np.array([[0, 50, 100]]))
    assert share[0].tolist() == pytest.approx([0.72] * 3)
    assert share[1].tolist() == pytest.approx([0.72, 0.85, 0.98])
