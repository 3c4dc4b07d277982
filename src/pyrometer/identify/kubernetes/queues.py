"""Kueue: when a job was queued, admitted and evicted. While it waits it has no pods, so its demand is recorded as
pods that wait: one way to see who waits for free GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject, ms
from pyrometer.identify.gpus import gpu_requests
from pyrometer.identify.kubernetes.workload_identity import Identity
from pyrometer.model import events
from pyrometer.model.records import Event, Pod

MAX_PODS_PER_JOB = 4_096  # of one job
MAX_MESSAGE_CHARS = 1_000
QUEUED_POD = "queued/"  # how the UIDs of such pods begin
_RECORDED_CONDITIONS = ((events.ADMITTED, "Admitted"), (events.EVICTED, "Evicted"))

Conditions = dict[str, objects.Condition]


class Queues:
    """The jobs in a cluster's queues, with their last records."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._pods: dict[str, dict[str, Pod]] = defaultdict(dict)  # of each job
        self._recorded: dict[str, dict[str, int]] = defaultdict(dict)

    def resume(self, pod: Pod) -> None:
        """A pod of a job that waited when it was last recorded."""
        self._pods[pod.pod_uid.split("/")[1]][pod.pod_uid] = pod

    def waiting(self) -> list[str]:
        """The jobs of which pods wait."""
        return list(self._pods)

    def forget(self, queued_uid: str, at_ms: int) -> list[Pod]:
        """Ends the wait of a removed job."""
        self._recorded.pop(queued_uid, None)
        waited = [pod for pod in self._pods.pop(queued_uid, {}).values() if pod.ended_ms is None]
        return [_over(pod, at_ms) for pod in waited]

    def take(self, queued: objects.QueuedWorkload, identity: Identity, seen: ObservedObject) -> list[Event | Pod]:
        """The records of a job that is queued or runs."""
        conditions = {condition.type: condition for condition in queued.status.conditions or ()}
        created_ms = ms(queued.metadata.creation_timestamp) or seen.seen_ms
        return [
            *self._events(queued, identity, conditions, created_ms),
            *self._demand(queued, identity, conditions, created_ms, seen),
        ]

    def _events(
        self, queued: objects.QueuedWorkload, identity: Identity, conditions: Conditions, created_ms: int
    ) -> Iterator[Event]:
        evicted = conditions.get("Evicted")  # it changes again when the job is admitted again, at that moment
        evicted = None if evicted is None or evicted.status == "True" else evicted
        for kind, name in _RECORDED_CONDITIONS:
            condition = conditions.get(name)
            at_ms = ms(condition.last_transition_time) if condition and condition.status == "True" else None
            recorded = self._recorded[queued.metadata.uid]
            if condition is None or at_ms is None or recorded.get(kind) == at_ms:
                continue
            recorded[kind] = at_ms
            since_ms = max(created_ms, ms(evicted.last_transition_time) or 0) if evicted else created_ms
            yield Event(
                time_ms=at_ms,
                kind=kind,
                duration_ms=max(at_ms - since_ms, 0) if kind == events.ADMITTED else None,
                cluster=self.cluster,
                workload_uid=identity.uid,
                reason=condition.reason,
                message=condition.message[:MAX_MESSAGE_CHARS] or None,
            )

    def _demand(
        self,
        queued: objects.QueuedWorkload,
        identity: Identity,
        conditions: Conditions,
        created_ms: int,
        seen: ObservedObject,
    ) -> Iterator[Pod]:
        reserved, over = conditions.get("QuotaReserved"), conditions.get("Finished")
        has_quota = reserved is not None and reserved.status == "True"
        waits = not (has_quota or (over and over.status == "True"))
        changed_ms = ms(reserved.last_transition_time) if reserved else None
        pods = self._pods[queued.metadata.uid]
        for uid, name, share in _wanted(queued):
            before = pods.get(uid)
            waited = before is not None and before.ended_ms is None
            if waits == waited:
                continue
            if before is not None and waited:
                record = _over(before, (changed_ms if has_quota else None) or seen.seen_ms)
            else:
                again_ms = max(changed_ms or 0, (before.ended_ms or 0) + 1) if before is not None else created_ms
                record = Pod(
                    time_ms=again_ms,
                    cluster=self.cluster,
                    pod_uid=uid,
                    namespace=identity.namespace,
                    name=f"{identity.name}-{name}",
                    phase="Pending",
                    workload_uid=identity.uid,
                    queue=queued.spec.queue_name or None,
                    created_ms=again_ms,
                    gpu_share=share,
                )
            pods[uid] = record
            yield record


def _over(pod: Pod, at_ms: int) -> Pod:
    at_ms = max(at_ms, pod.time_ms + 1)
    return pod._replace(time_ms=at_ms, ended_ms=at_ms, phase="Succeeded")


def _wanted(queued: objects.QueuedWorkload) -> Iterator[tuple[str, str, int]]:
    """The pods that a job would have: identity, name, and what each asks for."""
    count = 0
    for pod_set in queued.spec.pod_sets or ():
        share = _share(pod_set.template)
        for index in range(pod_set.count if share else 0):
            count += 1
            if count > MAX_PODS_PER_JOB:
                return
            yield f"{QUEUED_POD}{queued.metadata.uid}/{pod_set.name}/{index}", f"{pod_set.name}-{index}", share


def _share(template: Any) -> int:
    """The GPUs that a pod of a template requests, in parts of a whole slot."""
    try:
        spec = msgspec.convert((template or {}).get("spec") or {}, objects.PodSpec)
    except (msgspec.ValidationError, AttributeError):
        return 0
    request = gpu_requests.request_of(objects.PodObject(objects.Meta(), spec))
    return request.total if request else 0
