"""Records made of what ranks report."""

from __future__ import annotations

from typing import Any

from pyrometer.collect.otlp.messages import (
    BatchMessage,
    EventMessage,
    Message,
    MetricMessage,
    SpanMessage,
    WindowMessage,
)
from pyrometer.identify.runs.launches import Launch, RankState
from pyrometer.identify.runs.rank_locations import CPU, LOCAL, SOURCE
from pyrometer.model.records import Allocation, Batch, Event, Metric, Pod, Run, Slot, Span, StepWindow, Workload
from pyrometer.model.units import SHARE_WHOLE

RUN_KIND = "Run"  # of workloads that stand for a run outside of Kubernetes
_PHASES = {"succeeded": "Succeeded", "failed": "Failed", "killed": "Failed"}

Records = list[tuple[Any, ...]]


def message_records(launch: Launch, rank: RankState, messages: list[Message]) -> Records:
    """The messages of a rank as records, with its run and its location."""
    run, attempt, number, location = launch.run, launch.attempt, rank.who.rank, rank.location
    assert run is not None  # noqa: S101 - it has its number
    records: Records = []
    for message in messages:
        if isinstance(message, WindowMessage):
            records.append(
                # Positional, as are the kinds below: keywords take three times as long, for every window.
                StepWindow(
                    message.time_ms,
                    message.to_ms,
                    run,
                    attempt,
                    number,
                    location.node_uid,
                    location.slot_index or 0,
                    location.pod_uid,
                    *message[2:],
                )
            )
        elif isinstance(message, SpanMessage):
            records.append(
                Span(
                    message.time_ms,
                    message.trace_id,
                    message.span_id,
                    message.name,
                    message.duration_us,
                    run,
                    attempt,
                    number,
                    message.step,
                    message.parent_id,
                    message.attributes_json,
                    message.after_us,
                )
            )
        elif isinstance(message, MetricMessage):
            records.append(Metric(message.time_ms, run, attempt, number, *message[1:]))
        elif isinstance(message, BatchMessage):
            records.append(Batch(message.time_ms, run, attempt, number, *message[1:]))
        elif isinstance(message, EventMessage):
            records.append(
                Event(
                    time_ms=message.time_ms,
                    kind=message.kind,
                    duration_ms=message.duration_ms,
                    run=run,
                    attempt=attempt,
                    rank=number,
                    step=message.step,
                    reason=message.reason,
                    message=message.message,
                )
            )
    return records


def own_device_records(launch: Launch, rank: RankState, run: Run) -> Records:
    """The device, holder and workload of a rank that holds its device itself."""
    assert run.pod_uid is not None  # noqa: S101 - it has a pod of its own
    assert rank.location.slot_index is not None  # noqa: S101 - and a device
    unnamed = run.run in (launch.launch, rank.who.restart_of)
    name = run.run if not unnamed else rank.who.experiment or run.run[:8]
    workload = Workload(
        time_ms=run.time_ms,
        cluster=LOCAL,
        workload_uid=run.run,
        kind=RUN_KIND,
        namespace=LOCAL,
        name=name,
        experiment=run.experiment or name,
        experiment_rule=SOURCE,
        team=LOCAL,
        team_rule=SOURCE,
    )
    records: Records = []
    if launch.workload is None or launch.workload[1:] != workload[1:]:
        launch.workload = workload
        records.append(workload)
    records += _own_slot(rank, rank.location.slot_index, run)
    records.append(
        Pod(
            time_ms=run.time_ms,
            cluster=LOCAL,
            pod_uid=run.pod_uid,
            namespace=LOCAL,
            name=f"{name}-{run.attempt}-{run.rank}",
            phase=_PHASES.get(run.outcome or "", "Running"),
            workload_uid=run.run,
            attempt=run.attempt,
            rank=run.rank,
            node_uid=rank.location.node_uid,
            created_ms=run.started_ms,
            scheduled_ms=run.started_ms,
            started_ms=run.started_ms,
            ended_ms=run.ended_ms,
            gpu_share=SHARE_WHOLE,
        )
    )
    records.append(
        Allocation(
            time_ms=run.time_ms,
            pod_uid=run.pod_uid,
            node_uid=rank.location.node_uid,
            slot_index=rank.location.slot_index,
            from_ms=run.started_ms,
            to_ms=run.ended_ms,
            share=SHARE_WHOLE,
            source=SOURCE,
        )
    )
    return records


def _own_slot(rank: RankState, slot_index: int, run: Run) -> list[Slot]:
    """The device itself: a CPU, or a GPU that no source has described."""
    node_uid = rank.location.node_uid
    if node_uid.startswith(CPU):
        return [
            Slot(
                time_ms=run.time_ms,
                node_uid=node_uid,
                slot_index=slot_index,
                gpu_model="CPU",
                from_ms=run.started_ms,
                to_ms=run.ended_ms,
            )
        ]
    if rank.location.unseen:
        return [
            Slot(
                time_ms=run.started_ms,
                node_uid=node_uid,
                slot_index=slot_index,
                uuid=rank.who.gpu_uuid,
                gpu_model=rank.who.gpu_model,
            )
        ]
    return []
