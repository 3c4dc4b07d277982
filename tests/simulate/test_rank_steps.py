"""Steps of ranks: windows fill their time, and every rank waits for the slowest one."""

from __future__ import annotations

import numpy as np
import pytest

from pyrometer.simulate.hardware import H100, Pool, machines_of
from pyrometer.simulate.jobs import Activity, Effect, Job, JobAttempt, PodPlacement
from pyrometer.simulate.rank_steps import inside, steps_of

MACHINES = machines_of((Pool("a", H100, 1, "x"),))
WINDOW_MS = 30_000


def steps(*effects: Effect, kind: str = "steps", from_ms: int = 0, to_ms: int = 600_000):
    job = Job("llama", "PyTorchJob", "a", "a", "sft", "ada", "q", pods=1, gpus=8, created_ms=0)
    attempt = JobAttempt(
        1, [PodPlacement(MACHINES[0], tuple(range(8)))], [0], [0], [Activity(kind, 0, 600_000)], effects=list(effects)
    )
    return steps_of(np.random.default_rng(1), job, attempt, np.ones(8), from_ms, to_ms, WINDOW_MS)


def test_phases_fill_each_window():
    made = steps()
    parts = (made.data, made.copy, made.forward, made.backward, made.wait, made.comm, made.optimizer)
    assert len(made.starts) == 20
    assert sum(parts) == pytest.approx(np.broadcast_to(made.ends - made.starts, (8, 20)))
    assert made.wait.min(axis=0) == pytest.approx(np.zeros(20))


def test_slow_rank_makes_the_other_ranks_wait():
    made = steps(Effect("slow", 300_000, 600_000, 0.5, (3,), "backward"))
    others = np.delete(made.wait, 3, axis=0)
    assert made.wait[3, 10:].max() < others[:, 10:].min()
    assert made.step_ms[10:].min() > made.step_ms[:10].max()


def test_slow_network_lengthens_communication():
    made = steps(Effect("comm", 300_000, 600_000, 4.0))
    assert (made.comm[0, 10:] / made.done[10:]).min() > 2 * (made.comm[0, :10] / made.done[:10]).max()


def test_windows_belong_to_the_hour_in_which_they_start():
    made = steps(from_ms=45_000, to_ms=100_000)
    assert made.starts.tolist() == [60_000, 90_000]
    assert made.ends.tolist() == [90_000, 120_000]


def test_attempt_without_steps_has_no_windows():
    assert steps(kind="busy") is None
    assert steps(from_ms=600_000, to_ms=700_000) is None


def test_inside_is_the_covered_part_of_each_window():
    starts, ends = np.array([0, 10, 20]), np.array([10, 20, 30])
    assert inside(starts, ends, 5, 20).tolist() == [0.5, 1.0, 0.0]
