"""States and causes: what a GPU-millisecond was spent on, and what explains it.

`STATES` is in display order. `INTERVAL_STATES` is in filling order: where two intervals overlap, the earlier state gets
the millisecond.
"""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """What a GPU-millisecond was spent on."""

    name: str
    family: str
    meaning: str


STATES = (
    State("train", "useful", "forward, backward, optimizer, copies to the device"),
    State("evaluate", "useful", "the same without gradients"),
    State("infer", "useful", "busy, and the workload serves a model"),
    State("active", "useful", "busy, purpose not observed"),
    State(
        "startup",
        "overhead",
        "image pull, container start, imports, rendezvous, restore, compile, first step",
    ),
    State("checkpoint", "overhead", "blocking save"),
    State("gang_wait", "waste", "holds GPUs while peers of the gang are missing"),
    State("data_stall", "waste", "waits for the next batch"),
    State("straggler_wait", "waste", "waits for the slowest rank"),
    State("comm_stall", "waste", "exposed communication that every rank has"),
    State("starved", "waste", "no activity for a while inside a live workload, reason not observable"),
    State("hang", "waste", "processes alive, no progress"),
    State("lost_work", "waste", "steps that a later attempt had to do again"),
    State("diverged", "waste", "training on after the loss became non-finite"),
    State("idle_held", "waste", "allocated, nothing running"),
    State("unused_device", "waste", "one of several devices of an active workload never used"),
    State("free", "platform", "healthy, unallocated"),
    State("unhealthy", "platform", "cordoned, lost, fatal XID"),
    State("unobserved", "unknown", "allocated, the evidence needed is missing"),
)
STATE = {state.name: state for state in STATES}
FAMILIES = ("useful", "overhead", "waste", "platform", "unknown")

INTERVAL_STATES = (
    "unhealthy",
    "free",
    "gang_wait",
    "startup",
    "hang",
    "idle_held",
    "unused_device",
    "diverged",
    "lost_work",
)

# Kinds of evidence, as bits in a ledger row.
KUBERNETES, GPU, SDK = 1, 2, 4
EVIDENCE = {"kubernetes": KUBERNETES, "gpu": GPU, "sdk": SDK}

# The states that each cause claims, in claiming order: a millisecond is claimed by the first cause only.
CLAIMS: dict[str, tuple[str, ...]] = {
    "hardware_failure": ("unhealthy", "hang", "lost_work"),
    "out_of_memory": ("lost_work", "startup", "unobserved"),
    "crash_loop": ("startup", "lost_work", "unobserved"),
    "hang": ("hang",),
    "preempted": ("lost_work", "startup"),
    "lost_work": ("lost_work",),
    "diverged": ("diverged",),
    "diverged_suspected": ("active",),
    "gang_wait": ("gang_wait",),
    "slow_start": ("startup",),
    "straggler": ("straggler_wait",),
    "data_stall": ("data_stall",),
    "comm_stall": ("comm_stall",),
    "slow_checkpoint": ("checkpoint",),
    "unused_device": ("unused_device",),
    "idle_held": ("idle_held",),
    "starved": ("starved",),
    "throttled": ("train", "active"),
    "plateau": ("train",),
    "duplicate_run": ("train",),
    "stranded": ("free",),
    "telemetry_lost": ("unobserved",),
}
CAUSES = tuple(CLAIMS)

# Causes that do not end by themselves: somebody has to act. Their alerts are critical.
CRITICAL_CAUSES = ("hang", "diverged", "hardware_failure", "crash_loop")
# Those of them that waste all that their holder has from the first minute on, states as well as causes: they are reported
# at once, however little they have cost. The others are reported when they have cost enough, like all other causes.
IMMEDIATE_CAUSES = ("hang", "diverged")
