"""Steps of all ranks of an attempt, in windows of about half a minute.

Each rank has its own time for data and computation. All ranks wait for the slowest one, then exchange gradients. The
slowest rank causes the part of a rank's wait that exceeds the exchange itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrometer.simulate.jobs import Job, JobAttempt

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

# The phases as parts of the computation, and the optimizer as a part of the step.
COPY, FORWARD, BACKWARD, OPTIMIZER = 0.02, 0.33, 0.58, 0.07


class Steps(NamedTuple):
    """Step windows: their times, and milliseconds of each rank (row) in each window (column)."""

    starts: Integers
    ends: Integers
    step_ms: Numbers
    done: Numbers  # steps, with fractions
    data: Numbers
    copy: Numbers
    forward: Numbers
    backward: Numbers
    wait: Numbers  # for the slowest
    comm: Numbers
    optimizer: Numbers

    @property
    def train(self) -> Numbers:
        """The time that is left without any waiting."""
        return (self.ends - self.starts) - self.data - self.wait - self.comm


def inside(starts: Integers, ends: Integers, from_ms: int, to_ms: int) -> Numbers:
    """The part of each window between two times."""
    length = np.maximum(ends - starts, 1)
    part: Numbers = np.clip((np.minimum(ends, to_ms) - np.maximum(starts, from_ms)) / length, 0, 1)
    return part


def steps_of(
    rng: np.random.Generator, job: Job, attempt: JobAttempt, slowness: Numbers, from_ms: int, to_ms: int, window_ms: int
) -> Steps | None:
    """Returns the windows that start between two times on devices of this slowness, or None if there are none."""
    pieces = []
    for activity in attempt.activities:
        if activity.kind == "steps" and activity.from_ms < to_ms and activity.to_ms > from_ms:
            skipped = max(0, -(-(from_ms - activity.from_ms) // window_ms))
            begin = np.arange(activity.from_ms + skipped * window_ms, min(activity.to_ms, to_ms), window_ms)
            pieces.append((begin, np.minimum(begin + window_ms, activity.to_ms)))
    starts = np.concatenate([begin for begin, _ in pieces]) if pieces else np.zeros(0, np.int64)
    if not len(starts):
        return None
    return _draw_steps(rng, job, attempt, slowness, starts, np.concatenate([over for _, over in pieces]))


def _network_load(times: Integers, size: float) -> Numbers:
    """The network load over the day, relative to the average."""
    load: Numbers = 1 + size * np.sin(times / 9.1e6)
    return load


def _add_delays(rng: np.random.Generator, job: Job, phases: dict[str, Numbers]) -> None:
    """Adds small delays of healthy jobs: a late batch for all ranks, or one slow rank for a minute."""
    late = rng.random(phases["data"].shape[1]) < 0.004
    phases["data"][:, late] += job.step_ms * rng.uniform(0.05, 0.5)
    if rng.random() < 0.12 and job.ranks > 1:
        rank, at = rng.integers(job.ranks), rng.integers(phases["data"].shape[1])
        phases["backward"][rank, at : at + 3] *= rng.uniform(1.1, 1.4)


def _draw_steps(
    rng: np.random.Generator, job: Job, attempt: JobAttempt, slowness: Numbers, starts: Integers, ends: Integers
) -> Steps:
    shape = (job.ranks, len(starts))
    compute_ms = job.step_ms * (1 - job.comm_share - OPTIMIZER)
    compute = compute_ms * slowness[:, None] * rng.normal(1.0, 0.003, shape)
    phases = {
        "data": compute_ms * job.data_share * rng.lognormal(-0.05, 0.3, shape),
        "copy": compute * COPY,
        "forward": compute * FORWARD,
        "backward": compute * BACKWARD,
    }
    for phase in ("copy", "forward", "backward"):
        phases[phase] /= COPY + FORWARD + BACKWARD
    comm = job.step_ms * job.comm_share * _network_load(starts, 0.1) * rng.normal(1.0, 0.05, len(starts))
    _add_delays(rng, job, phases)
    for effect in attempt.effects:
        part = inside(starts, ends, effect.from_ms, effect.to_ms)
        ranks = slice(None) if effect.ranks is None else list(effect.ranks)
        if effect.kind == "data":
            phases["data"][ranks] += job.step_ms * effect.size * part * rng.lognormal(-0.02, 0.2, shape)[ranks]
        elif effect.kind == "slow":
            phases[effect.phase][ranks] += job.step_ms * effect.size * part
        elif effect.kind == "work":
            for phase in ("copy", "forward", "backward"):
                phases[phase] *= 1 + (effect.size - 1) * part
        elif effect.kind == "comm":
            comm *= 1 + (effect.size - 1) * part
    ready = phases["data"] + phases["copy"] + phases["forward"] + phases["backward"]
    slowest = ready.max(axis=0)
    optimizer = job.step_ms * OPTIMIZER
    step_ms = slowest + comm + optimizer
    done = (ends - starts) / step_ms
    return Steps(
        starts,
        ends,
        step_ms,
        done,
        phases["data"] * done,
        phases["copy"] * done,
        phases["forward"] * done,
        phases["backward"] * done,
        (slowest - ready) * done,
        np.broadcast_to(comm * done, shape),
        np.broadcast_to(optimizer * done, shape),
    )
