"""A pod's times and how it ended, read from its object in Kubernetes."""

from __future__ import annotations

from typing import NamedTuple

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ms
from pyrometer.identify.gpus import gpu_requests

OVER = ("Succeeded", "Failed")


class PodLife(NamedTuple):
    """The times of a pod."""

    created_ms: int | None
    scheduled_ms: int | None
    started_ms: int | None  # the last of its containers started, for the first time
    ended_ms: int | None  # the last of its containers ended
    phase: str
    reason: str | None  # of its end


class Restart(NamedTuple):
    """A container that ended and was started again in its pod."""

    container: str
    at_ms: int
    reason: str
    exit_code: int
    again_ms: int | None  # when it ran again; None while it is waited for


def life_of(pod: objects.PodObject) -> PodLife:
    """The times and the phase of a pod, according to its object."""
    status = pod.status
    created_ms = ms(pod.metadata.creation_timestamp)
    scheduled_ms = _transition(status, "PodScheduled")
    if scheduled_ms is None and pod.spec.node_name:  # placed manually, or by a scheduler without this condition
        scheduled_ms = ms(status.start_time) or created_ms
    over = status.phase in OVER
    ended_ms = _ended_ms(pod) if over else None
    return PodLife(
        created_ms=created_ms,
        scheduled_ms=scheduled_ms,
        started_ms=_started_ms(pod),
        ended_ms=ended_ms,
        phase=status.phase,
        reason=_reason(pod) if over else None,
    )


def ended_by(pod: objects.PodObject, gone_ms: int) -> int:
    """The end of a removed pod: that of its containers if it is known, else the time of its removal."""
    statuses = pod.status.container_statuses or ()
    if statuses and all(status.state.terminated for status in statuses):
        return min(_finished_ms(pod) or gone_ms, gone_ms)
    return gone_ms


def restarts_of(pod: objects.PodObject) -> list[Restart]:
    """The last restart of each container that requests GPUs; of any if none does so by itself (claims)."""
    requesting = {
        container.name for container in pod.spec.containers or () if gpu_requests.container_requests_gpus(container)
    }
    found = []
    for status in pod.status.container_statuses or ():
        if requesting and status.name not in requesting:
            continue
        before, state = status.last_state.terminated, status.state
        if before is not None and (status.restart_count or state.waiting):
            at_ms = ms(before.finished_at)
            if at_ms is not None and at_ms > 0:
                again = state.running or state.terminated
                again_ms = ms(again.started_at) if again else None
                found.append(Restart(status.name, at_ms, before.reason or "Error", before.exit_code, again_ms))
    return found


def disruption_of(pod: objects.PodObject) -> objects.Condition | None:
    """Why Kubernetes itself is about to end the pod, if it is."""
    return next((c for c in pod.status.conditions or () if c.type == "DisruptionTarget" and c.status == "True"), None)


def _transition(status: objects.PodStatus, kind: str) -> int | None:
    return next(
        (ms(c.last_transition_time) for c in status.conditions or () if c.type == kind and c.status == "True"), None
    )


def _started_ms(pod: objects.PodObject) -> int | None:
    starts = []
    for status in pod.status.container_statuses or ():
        ever = [
            began
            for state in (status.state, status.last_state)
            for one in (state.running, state.terminated)
            if one is not None and (began := ms(one.started_at)) is not None and began > 0
        ]
        if not ever:
            return None
        starts.append(min(ever))
    return max(starts, default=None)


def _finished_ms(pod: objects.PodObject) -> int | None:
    ends = [
        ended
        for status in pod.status.container_statuses or ()
        if status.state.terminated is not None
        and (ended := ms(status.state.terminated.finished_at)) is not None
        and ended > 0
    ]
    return max(ends, default=None)


def _ended_ms(pod: objects.PodObject) -> int | None:
    """The end of its last container; for a pod that never ran, the time when Kubernetes gave up."""
    finished_ms = _finished_ms(pod)
    if finished_ms is not None:
        return finished_ms
    changes = [
        ms(c.last_transition_time) for c in pod.status.conditions or () if c.type in ("Ready", "ContainersReady")
    ]
    known = [at_ms for at_ms in (*changes, ms(pod.status.start_time), ms(pod.metadata.creation_timestamp)) if at_ms]
    return max(known, default=None)


def _reason(pod: objects.PodObject) -> str | None:
    """The reason of its end: of the pod (Evicted), of Kubernetes (PreemptionByScheduler), else of its containers."""
    if pod.status.reason:
        return pod.status.reason
    disruption = disruption_of(pod)
    if disruption is not None and disruption.reason:
        return disruption.reason
    ends = [status.state.terminated for status in pod.status.container_statuses or () if status.state.terminated]
    bad = [end for end in ends if end.exit_code or end.signal]
    killed = next((end for end in bad if end.reason == "OOMKilled"), None)
    return (killed or bad[0]).reason or "Error" if bad else None
