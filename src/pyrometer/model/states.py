"""States of a GPU-millisecond, and the causes that explain them: how they are named, shown and described.

The order of `STATES` is the order in which people read them. The order of `INTERVAL_STATES` is the filling order:
where two intervals overlap, the earlier state gets the millisecond.
"""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """What a GPU-millisecond was spent on."""

    name: str
    family: str
    title: str  # how it is shown
    meaning: str


STATES = (
    State("train", "useful", "Training", "forward, backward, optimizer, copies to the device"),
    State("evaluate", "useful", "Evaluation", "the same without gradients"),
    State("infer", "useful", "Serving", "busy, and the workload serves a model"),
    State("active", "useful", "Busy (purpose unknown)", "busy, purpose not reported"),
    State(
        "startup",
        "overhead",
        "Starting",
        "image pull, container start, imports, rendezvous, restore, compile, first step",
    ),
    State("checkpoint", "overhead", "Checkpointing", "blocking save"),
    State("gang_wait", "waste", "Waiting for pods", "holds GPUs while peers of the gang are missing"),
    State("data_stall", "waste", "Waiting for data", "waits for the next batch"),
    State("straggler_wait", "waste", "Waiting for slow ranks", "waits for the slowest rank"),
    State("comm_stall", "waste", "Communication", "exposed communication that every rank has"),
    State("starved", "waste", "Starved", "no activity for a while inside a live workload, reason not observable"),
    State("hang", "waste", "Hung", "processes alive, no progress"),
    State("lost_work", "waste", "Lost work", "steps that a later attempt had to repeat"),
    State("diverged", "waste", "Diverged", "training on after the loss became non-finite"),
    State("idle_held", "waste", "Reserved but idle", "allocated, nothing running"),
    State("unused_device", "waste", "Unused GPU", "one of several devices of an active workload never used"),
    State("free", "platform", "Free", "healthy, unallocated"),
    State("unhealthy", "platform", "Broken", "cordoned, lost, fatal XID"),
    State("unobserved", "unknown", "Not observed", "allocated, the evidence is missing"),
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


class Cause(NamedTuple):
    """Why milliseconds were spent in the states that it claims."""

    name: str
    title: str  # how it is shown
    meaning: str
    claims: tuple[str, ...]
    colored_as: str  # the state whose color it has


# In the order in which they claim: a millisecond that an earlier cause has claimed is not available to a later one.
_CAUSES = (
    Cause(
        "hardware_failure", "Hardware failure", "a GPU or a node broke", ("unhealthy", "hang", "lost_work"), "unhealthy"
    ),
    Cause(
        "out_of_memory",
        "Out of memory",
        "the attempt ran out of memory",
        ("lost_work", "startup", "unobserved"),
        "lost_work",
    ),
    Cause(
        "crash_loop",
        "Crash loop",
        "attempt after attempt fails without progress",
        ("startup", "lost_work", "unobserved"),
        "startup",
    ),
    Cause("hang", "Hang", "processes are alive and make no progress", ("hang",), "hang"),
    Cause(
        "preempted",
        "Preempted",
        "pods were evicted, and their work had to be repeated",
        ("lost_work", "startup"),
        "lost_work",
    ),
    Cause("lost_work", "Lost work", "an attempt ended before its last steps were saved", ("lost_work",), "lost_work"),
    Cause("diverged", "Diverged", "training continued after the loss became non-finite", ("diverged",), "diverged"),
    Cause(
        "diverged_suspected",
        "Suspected divergence",
        "GPUs are busy and draw much less power, as when training on NaN",
        ("active",),
        "diverged",
    ),
    Cause(
        "gang_wait",
        "Waiting for pods",
        "pods hold GPUs while others of their gang are missing",
        ("gang_wait",),
        "gang_wait",
    ),
    Cause("slow_start", "Slow start", "the start took longer than usual", ("startup",), "startup"),
    Cause(
        "straggler",
        "Straggler",
        "the other ranks wait for a slow rank in every step",
        ("straggler_wait",),
        "straggler_wait",
    ),
    Cause("data_stall", "Waiting for data", "steps wait for the next batch", ("data_stall",), "data_stall"),
    Cause(
        "comm_stall",
        "Slow communication",
        "all ranks wait for communication longer than usual",
        ("comm_stall",),
        "comm_stall",
    ),
    Cause("slow_checkpoint", "Slow checkpoints", "saving blocks longer than usual", ("checkpoint",), "checkpoint"),
    Cause("unused_device", "Unused GPU", "a workload uses only some of its GPUs", ("unused_device",), "unused_device"),
    Cause("idle_held", "Reserved but idle", "GPUs are allocated and nothing runs on them", ("idle_held",), "idle_held"),
    Cause("starved", "Starved", "GPUs run out of work again and again", ("starved",), "starved"),
    Cause(
        "throttled", "Throttled", "GPUs ran at a lower clock because of heat or power", ("train", "active"), "active"
    ),
    Cause("plateau", "Plateau", "the loss stopped falling and training continued", ("train",), "train"),
    Cause("duplicate_run", "Duplicate run", "a run repeats another one", ("train",), "train"),
    Cause("stranded", "Stranded GPUs", "GPUs were free while pods waited for GPUs", ("free",), "free"),
    Cause("telemetry_lost", "Telemetry lost", "a source of evidence went silent", ("unobserved",), "unobserved"),
)
CAUSE = {cause.name: cause for cause in _CAUSES}
CAUSES = tuple(CAUSE)
CLAIMS = {cause.name: cause.claims for cause in _CAUSES}
# Causes that do not end without an action of a user. Their alerts are critical.
CRITICAL_CAUSES = ("hang", "diverged", "hardware_failure", "crash_loop")
# Critical causes (and states) that waste all time of their holder from the first minute on. They are reported at once,
# however little they have cost. The other causes are reported when they have cost enough.
IMMEDIATE_CAUSES = ("hang", "diverged")


def state_title(name: str) -> str:
    """How a state is shown. A state of a newer version keeps its code name."""
    return STATE[name].title if name in STATE else name


def cause_title(name: str) -> str:
    """How a cause is shown. A cause of a newer version keeps its code name."""
    return CAUSE[name].title if name in CAUSE else name
