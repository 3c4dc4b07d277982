"""The detectors, in the order in which their causes claim.

A new cause is a file with a `detect` function, an entry in `_BY_CAUSE`, and its claims in `model/states.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import wraps

from pyrometer.causes import (
    comm_stall,
    crash_loop,
    data_stall,
    diverged,
    diverged_suspected,
    duplicate_run,
    gang_wait,
    hang,
    hardware_failure,
    idle_held,
    lost_work,
    out_of_memory,
    plateau,
    preempted,
    slow_checkpoint,
    slow_start,
    starved,
    straggler,
    stranded,
    telemetry_lost,
    throttled,
    unused_device,
)
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Detector, Proposal
from pyrometer.model.states import CLAIMS

_BY_CAUSE: dict[str, Detector] = {
    "hardware_failure": hardware_failure.detect,
    "out_of_memory": out_of_memory.detect,
    "crash_loop": crash_loop.detect,
    "hang": hang.detect,
    "preempted": preempted.detect,
    "lost_work": lost_work.detect,
    "diverged": diverged.detect,
    "diverged_suspected": diverged_suspected.detect,
    "gang_wait": gang_wait.detect,
    "slow_start": slow_start.detect,
    "straggler": straggler.detect,
    "data_stall": data_stall.detect,
    "comm_stall": comm_stall.detect,
    "slow_checkpoint": slow_checkpoint.detect,
    "unused_device": unused_device.detect,
    "idle_held": idle_held.detect,
    "starved": starved.detect,
    "throttled": throttled.detect,
    "plateau": plateau.detect,
    "duplicate_run": duplicate_run.detect,
    "stranded": stranded.detect,
    "telemetry_lost": telemetry_lost.detect,
}


def _only_if_claimable(detect: Detector, claims: tuple[str, ...]) -> Detector:
    """A detector that is skipped if the time range has no time in a state that it claims."""

    @wraps(detect)
    def looking(evidence: Evidence) -> Iterable[Proposal]:
        return () if evidence.states.isdisjoint(claims) else detect(evidence)

    return looking


def detectors_of(by_cause: Mapping[str, Detector]) -> tuple[Detector, ...]:
    """The detectors of all causes, in the order of claims."""
    if by_cause.keys() != CLAIMS.keys():
        differing = ", ".join(sorted(by_cause.keys() ^ CLAIMS.keys()))
        raise ValueError(f"Causes need a detector and an entry in CLAIMS; one of them is missing for: {differing}.")
    return tuple(_only_if_claimable(by_cause[cause], claims) for cause, claims in CLAIMS.items())


DETECTORS = detectors_of(_BY_CAUSE)
