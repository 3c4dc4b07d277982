"""Two teams on one cluster. Every name, word and sample of the one has `walrus` in it, of the other `quokka`."""

from __future__ import annotations

from typing import Any

from pyrometer.model.records import (
    Allocation,
    Batch,
    Event,
    Finding,
    GpuSample,
    Metric,
    Node,
    NodeSample,
    Owner,
    PipelineRun,
    PipelineStep,
    Pod,
    Price,
    Restatement,
    Run,
    Slot,
    Span,
    Sweep,
    Trial,
    Workload,
)
from pyrometer.model.units import SHARE_WHOLE
from tests.support.traced_run import RUN, START_MS, TrainingRecords

HOUR_MS = 3_600_000
OURS, THEIRS = "walrus", "quokka"
SHARED = "shared-node"  # each team uses it half of the time
SAME_RUN = "baseline"  # the name of a run of both teams
NAME_FIELDS = (
    "run",
    "pod_uid",
    "workload_uid",
    "node_uid",
    "namespace",
    "experiment",
    "team",
    "launch",
    "trace_id",
    "span_id",
    "parent_id",
    "queue",
    "user",
    "dataset",
    "message",
)


def training_of(whose: str) -> list[Any]:
    """The records of a training of one team, like those of the SDK."""
    return [_of(whose, record) for record in TrainingRecords(attempts=((0, 21), (10, 31)), ranks=2).records]


def _of(whose: str, record: Any) -> Any:
    changes = {name: f"{whose}-{value}" for name in NAME_FIELDS if (value := getattr(record, name, None)) is not None}
    if isinstance(record, Node | Pod | Workload):
        changes["name"] = f"{whose}-{record.name}"
    if isinstance(record, Pod):
        changes |= {"user": f"{whose}-user", "queue": f"{whose}-queue", "labels_json": f'{{"of": "{whose}"}}'}
    if isinstance(record, Span):
        changes["attributes_json"] = f'{{"note": "{whose}-note"}}'
    if isinstance(record, Batch):
        changes |= {"rows": None, "samples": tuple(f"{whose}-{one}" for one in record.rows or ())}
    if isinstance(record, Event):
        changes["reason"] = f"{whose}-{record.reason}" if record.reason else None
    return record._replace(**changes)


def other_records_of(whose: str, other: str, hour: int) -> list[Any]:
    """The other records of a team, including those that name the other team. It uses the shared node for one hour."""
    from_ms, to_ms = START_MS + hour * HOUR_MS, START_MS + (hour + 1) * HOUR_MS
    pod, workload = f"{whose}-late", f"{whose}-late-job"
    seen = range(from_ms, to_ms, 60_000)
    return [
        Owner(from_ms, "here", f"{whose}-owner", "apps", "ReplicaSet", f"{whose}-namespace", f"{whose}-owner"),
        Workload(from_ms, "here", workload, "Job", f"{whose}-namespace", workload, team=f"{whose}-speech"),
        Pod(
            from_ms,
            "here",
            pod,
            f"{whose}-namespace",
            pod,
            "Running",
            workload,
            node_uid=SHARED,
            ended_ms=to_ms,
            created_ms=from_ms,
            scheduled_ms=from_ms,
            started_ms=from_ms,
            user=f"{whose}-user",
            pipeline_run=f"{whose}-flow",
            pipeline_step=f"{whose}-train",
            trial_uid=f"{whose}-trial",
        ),
        PipelineRun(
            from_ms,
            "here",
            f"{whose}-flow",
            f"{whose}-wf",
            f"{whose}-namespace",
            f"{whose} nightly",
            f"{whose}-retrain",
            "running",
            from_ms,
        ),
        PipelineStep(from_ms, f"{whose}-flow", f"{whose}-train", 1, "running", from_ms),
        Sweep(from_ms, "here", f"{whose}-sweep", f"{whose}-namespace", f"{whose}-search", "running", "loss", "min"),
        Trial(from_ms, f"{whose}-trial", f"{whose}-sweep", f"{whose}-namespace", f"{whose}-trial-1", "running"),
        Allocation(from_ms, pod, SHARED, 0, from_ms, None, SHARE_WHOLE),
        Run(
            from_ms,
            SAME_RUN,
            1 + hour,
            0,
            from_ms,
            pod_uid=pod,
            workload_uid=workload,
            node_uid=SHARED,
            slot_index=0,
            experiment=f"{whose}-baseline",
        ),
        Metric(from_ms + 1000, SAME_RUN, 1 + hour, 0, f"{whose}_accuracy", 0.5, 3, "max"),
        Metric(from_ms + 1000, workload, 1, 0, "progress", 10.0 + hour),
        Event(
            from_ms + 2000,
            "exception",
            pod_uid=pod,
            run=SAME_RUN,
            attempt=1 + hour,
            rank=0,
            reason="ValueError",
            message=f"{whose} ran out of patience",
        ),
        Event(to_ms - 1000, "preempted", pod_uid=pod, message=f"Preempted by {other}-namespace/{other}-pod"),
        Event(from_ms + 3000, "oom_killed", node_uid=SHARED, message=f"victim process: {other}-python"),
        Event(from_ms + 4000, "admitted", workload_uid=workload, duration_ms=5000, reason=f"{whose}-quota"),
        Restatement(from_ms, SAME_RUN, 1 + hour, SHARED, 0, from_ms, to_ms, "hang", pod_uid=pod, reason=whose),
        Finding(to_ms, f"{whose}-found", "hang", workload, from_ms, to_ms, to_ms, culprit_json=f'{{"pod": "{pod}"}}'),
        Price(from_ms, 2_000_000, from_ms, pool=f"{whose}-pool"),
        Slot(from_ms, f"{whose}-node-a", 0, uuid=f"GPU-of-{whose}"),
        Slot(from_ms, f"{whose}-node", 0, uuid=f"GPU-{whose}", healthy=False, reason=f"XID 79 of {whose}"),
        Node(from_ms, "here", f"{whose}-node", f"{whose}-node", 1, "NVIDIA H100 80GB HBM3", pool=f"{whose}-pool"),
        *(GpuSample(time_ms, SHARED, 0, gpu_util_permille=900, power_w=100 + 100 * hour) for time_ms in seen),
        *(NodeSample(time_ms, SHARED, cpu_busy_permille=100 + hour) for time_ms in seen),
    ]


def shared_records() -> list[Any]:
    """The nodes that both teams use or that are idle."""
    seen = (START_MS, START_MS + 2 * HOUR_MS)
    return [
        Price(START_MS, 3_600_000, START_MS - HOUR_MS),
        *(Node(time_ms, "here", SHARED, SHARED, 1, "NVIDIA H100 80GB HBM3") for time_ms in seen),
        *(Node(time_ms, "here", "idle-node", "idle-node", 1, "NVIDIA H100 80GB HBM3") for time_ms in seen),
    ]


def all_records() -> list[Any]:
    """All records of both teams."""
    ours = [*training_of(OURS), *other_records_of(OURS, THEIRS, 0)]
    return [*shared_records(), *ours, *training_of(THEIRS), *other_records_of(THEIRS, OURS, 1)]


TEAM, OTHER_TEAM = f"{OURS}-speech", f"{THEIRS}-speech"
OUR_RUN, THEIR_RUN = f"{OURS}-{RUN}", f"{THEIRS}-{RUN}"
