"""The GPU pods of one cluster: their records, attempts and the devices that they hold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.gpu.device import DeviceUse
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject, ms
from pyrometer.identify.gpus import gpu_requests
from pyrometer.identify.gpus.devices import PodClaim
from pyrometer.identify.kubernetes import pipelines, sweeps
from pyrometer.identify.kubernetes.change_times import MAX_TEXT_CHARS
from pyrometer.identify.kubernetes.cluster_nodes import ClusterNodes, NodeState
from pyrometer.identify.kubernetes.cluster_workloads import ClusterWorkloads, WorkloadState
from pyrometer.identify.kubernetes.device_evidence import CLAIMED, COUNTED, LABELED, DeviceEvidence, Devices
from pyrometer.identify.kubernetes.pod_events import PodEvents
from pyrometer.identify.kubernetes.pod_lifecycle import PodLife, Restart, ended_by, life_of, restarts_of
from pyrometer.identify.kubernetes.translated_events import REASONS
from pyrometer.identify.kubernetes.workload_identity import Identity, identify, number
from pyrometer.identify.kubernetes.workload_kinds import WorkloadKinds
from pyrometer.model.records import Pod
from pyrometer.model.units import SHARE_WHOLE

Records = list[tuple[Any, ...]]


class PodState(NamedTuple):
    """A pod that requests GPUs, as it was last recorded."""

    record: Pod
    node_name: str
    request: gpu_requests.GpuRequest
    devices: Devices | None  # None: only their number is known
    source: str  # how its devices are known
    restarts: frozenset[Restart]
    digest: int = 0  # of its object: most changes of pods do not matter here
    gone: bool = False  # from the API; while it is listed it may be seen again


class ClusterPods:
    """The GPU pods of one cluster by UID."""

    def __init__(
        self,
        cluster: str,
        kinds: WorkloadKinds,
        nodes: ClusterNodes,
        workloads: ClusterWorkloads,
        events: PodEvents,
        followed_pipelines: pipelines.Pipelines,
        followed_sweeps: sweeps.Sweeps,
        settled_ms: int,
    ) -> None:
        self.cluster = cluster
        self.kinds = kinds
        self.settled_ms = settled_ms  # pods that ended before are recorded already, or were never watched
        self._nodes = nodes
        self._workloads = workloads
        self._events = events
        self._pipelines = followed_pipelines
        self._sweeps = followed_sweeps
        self._evidence = DeviceEvidence()
        self._pods: dict[str, PodState] = {}
        self._waiting: dict[str, set[str]] = defaultdict(set)  # pods on nodes that are not known yet, by node name

    def records(self) -> list[Pod]:
        """The last record of each pod that is not forgotten."""
        return [pod.record for pod in self._pods.values()]

    def resume(self, pods: Iterable[Pod], node_names: Mapping[str, str]) -> None:
        """Restores pods from their newest records."""
        for pod in pods:
            share = pod.gpu_share or 0
            request = gpu_requests.GpuRequest(max(-(-share // SHARE_WHOLE), 1), min(share, SHARE_WHOLE))
            name = node_names.get(pod.node_uid or "", "")
            self._pods[pod.pod_uid] = PodState(
                record=pod, node_name=name, request=request, devices=None, source=COUNTED, restarts=frozenset()
            )

    def forget(self, before_ms: int) -> None:
        """Forgets pods that are gone and ended before a time."""
        old = [u for u, pod in self._pods.items() if pod.gone and (pod.record.ended_ms or 0) < before_ms]
        for uid in old:
            record = self._pods.pop(uid).record
            self._leave(record)
            self._evidence.forget((record.namespace, record.name))
            self._events.forget(uid)

    # -- pods ---------------------------------------------------------------------------------------------------------

    def take(self, seen: ObservedObject) -> Records:
        """The records of a pod that has changed or is gone."""
        pod: objects.PodObject = seen.object
        uid = pod.metadata.uid
        before = self._pods.get(uid)
        pod.metadata.resource_version = ""
        digest = hash(msgspec.json.encode(pod))
        if before is not None and before.digest == digest and not seen.gone:  # no relevant change
            return []
        node = self._nodes.get(pod.spec.node_name)
        request, devices, source = self._request_of(pod, node)
        if request is None:
            return [] if before is None else self._end(before, seen) if seen.gone else []
        if before is None and (life_of(pod).ended_ms or seen.seen_ms) < self.settled_ms:
            return []
        identity = identify(self.cluster, pod, seen.chain, self.kinds)
        part = self._pipelines.part_of(pod, seen.chain)
        state = self._workloads.find(identity, pod, seen.chain, part.workflow if part else None)
        created_ms = ms(pod.metadata.creation_timestamp) or seen.seen_ms
        written = self._workloads.record(state, created_ms, seen.seen_ms)
        life = _life(pod, before, seen)
        written += self._join(pod, before, life, identity, state, seen)
        record = self._record(pod, before, life, identity, state, node, request, part, seen)
        written += self._workloads.record_chain(seen.chain, seen.seen_ms)
        if part is not None:
            written += self._pipelines.use(part, pod.metadata.namespace, seen.seen_ms)
        written += self._sweeps.use(seen.chain, seen.seen_ms)
        restarts = frozenset(restarts_of(pod))
        now = PodState(
            record=record,
            node_name=pod.spec.node_name,
            request=request,
            devices=devices,
            source=source,
            restarts=restarts,
            digest=digest,
            gone=seen.gone,
        )
        self._pods[uid] = now
        if before is None or record != before.record:
            written.append(record)
        if before is None or _hold_inputs(before) != _hold_inputs(now):
            written += self._hold(now, seen.seen_ms)
        written += self._events.of_changes(pod, record, restarts, before.restarts if before else frozenset())
        written += self._events.of_new_pod(record)
        return written

    def _request_of(
        self, pod: objects.PodObject, node: NodeState | None
    ) -> tuple[gpu_requests.GpuRequest | None, Devices | None, str]:
        """The GPUs that a pod requests, its devices if they are known, and their source."""
        devices, source = self._evidence.claimed(pod)
        request = gpu_requests.request_of(pod, node.gpus if node else None)
        if request is None and devices:
            request = gpu_requests.GpuRequest(len(devices), SHARE_WHOLE)
        if request is not None and not devices:
            name = (pod.metadata.namespace, pod.metadata.name)
            devices, source = self._evidence.labeled(name, node.record.node_uid if node else None, request.devices)
        return request, devices, source

    def _record(
        self,
        pod: objects.PodObject,
        before: PodState | None,
        life: PodLife,
        identity: Identity,
        state: WorkloadState,
        node: NodeState | None,
        request: gpu_requests.GpuRequest,
        part: pipelines.PipelinePart | None,
        seen: ObservedObject,
    ) -> Pod:
        meta, of_kind = pod.metadata, identity.of_kind
        step, trial = part.step if part else None, self._sweeps.trial_of(seen.chain)
        last = before.record if before else None
        record = Pod(
            time_ms=0,
            cluster=self.cluster,
            pod_uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            phase=life.phase,
            workload_uid=identity.uid,
            attempt=state.attempts.of(meta.uid),
            rank=number(of_kind.rank, pod) if of_kind else None,
            node_uid=node.record.node_uid if node else last.node_uid if last else None,
            user=state.record.user if state.record else None,
            queue=state.where.queue,
            created_ms=life.created_ms,
            scheduled_ms=life.scheduled_ms,
            started_ms=life.started_ms,
            ended_ms=life.ended_ms,
            reason=life.reason,
            gpu_share=request.total,
            labels_json=_labels(pod),
            pipeline_run=part.run_id if part else None,
            pipeline_step=step.name if step else None,
            pipeline_attempt=step.attempt if part and part.own and step else None,
            trial_uid=trial.metadata.uid if trial else None,
        )
        return _with_time(record, last, life, seen)

    def _end(self, before: PodState, seen: ObservedObject) -> Records:
        """The records of a pod of which nothing but its end is left to record."""
        if before.record.ended_ms is not None:
            self._pods[before.record.pod_uid] = before._replace(gone=True)
            return []
        record = before.record._replace(
            ended_ms=seen.seen_ms,
            time_ms=max(seen.seen_ms, before.record.time_ms + 1),
            reason="Vanished" if seen.vanished else "Deleted",
        )
        now = before._replace(record=record, gone=True)
        self._pods[record.pod_uid] = now
        written: Records = []
        state = self._workloads.get(record.workload_uid)
        if state is not None and record.pod_uid in state.attempts:
            written = self._renumber(state, state.attempts.end(record.pod_uid, seen.seen_ms), seen)
        return [record, *written, *self._hold(now, seen.seen_ms)]

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _join(
        self,
        pod: objects.PodObject,
        before: PodState | None,
        life: PodLife,
        identity: Identity,
        state: WorkloadState,
        seen: ObservedObject,
    ) -> Records:
        """Finds the attempt of a pod: the one that it names, else by its time. Returns pods whose attempt changes."""
        uid, attempts = pod.metadata.uid, state.attempts
        # A pod that was seen to have ended has ended, regardless of the clock of its node.
        ended_ms = None if life.ended_ms is None else min(life.ended_ms, seen.seen_ms)
        if uid in attempts:
            changed = attempts.end(uid, ended_ms) if ended_ms is not None else set()
        else:
            named = number(identity.of_kind.attempt, pod) if identity.of_kind else None
            known = None if named is None else named + 1
            if before is not None:  # the objects above it are not the same as before
                self._leave(before.record)
                known = before.record.attempt
            began_ms = life.created_ms or life.scheduled_ms or seen.seen_ms
            changed = attempts.add(uid, began_ms, ended_ms, known)
        return self._renumber(state, changed - {uid}, seen)

    def _leave(self, pod: Pod) -> None:
        """Removes a pod from its workload: it is forgotten, or turns out to belong to another workload."""
        state = self._workloads.get(pod.workload_uid)
        if state is not None and pod.pod_uid in state.attempts:
            state.attempts.forget(pod.pod_uid)

    def _renumber(self, state: WorkloadState, uids: set[str], seen: ObservedObject) -> Records:
        """The records of pods whose attempt has another number since an earlier one was seen."""
        written: Records = []
        for uid in sorted(uids & self._pods.keys()):
            pod = self._pods[uid]
            time_ms = max(seen.seen_ms, pod.record.time_ms + 1)
            record = pod.record._replace(attempt=state.attempts.of(uid), time_ms=time_ms)
            self._pods[uid] = pod._replace(record=record)
            written.append(record)
        return written

    # -- devices ------------------------------------------------------------------------------------------------------

    def _hold(self, pod: PodState, seen_ms: int) -> Records:
        """The holds of a pod on the devices of its node. If the node is not known yet, the pod waits for it."""
        record = pod.record
        if record.scheduled_ms is None or not pod.node_name:
            return []
        node = self._nodes.get(pod.node_name)
        if node is None:
            self._waiting[pod.node_name].add(record.pod_uid)
            return []
        node.book.claim(
            PodClaim(
                pod_uid=record.pod_uid,
                from_ms=record.scheduled_ms,
                to_ms=record.ended_ms,
                devices=pod.request.devices,
                share=pod.request.share,
                known=pod.devices,
                source=pod.source,
            )
        )
        return list(node.book.changes(seen_ms))

    def take_node(self, name: str, seen_ms: int) -> Records:
        """The records of pods that were seen before their node."""
        node = self._nodes.get(name)
        if node is None:
            return []
        written: Records = []
        for uid in sorted(self._waiting.pop(name, ())):
            if uid in self._pods:
                written += self._hold(self._pods[uid], seen_ms)
                pod = self._pods[uid]
                record = pod.record._replace(
                    node_uid=node.record.node_uid, time_ms=max(seen_ms, pod.record.time_ms + 1)
                )
                self._pods[uid] = pod._replace(record=record)
                written.append(record)
        return written

    def take_claim(self, seen: ObservedObject) -> Records:
        """The holds of pods whose devices the scheduler itself has allocated (DRA)."""
        claim: objects.ResourceClaim = seen.object
        devices = self._evidence.take_claim(claim, gone=seen.gone)
        if not devices:
            return []
        written: Records = []
        for consumer in claim.status.reserved_for or ():
            pod = self._pods.get(consumer.uid)
            if pod is not None and pod.devices != devices:
                now = pod._replace(devices=devices, source=CLAIMED)
                self._pods[consumer.uid] = now
                written += self._hold(now, seen.seen_ms)
        return written

    def take_uses(self, uses: Iterable[DeviceUse], at_ms: int) -> Records:
        """The holds of pods that exporters see on devices. Kubernetes reports when a pod is there: labels linger."""
        changed = self._evidence.take_uses(uses)
        if not changed:
            return []
        written: Records = []
        for uid, pod in list(self._pods.items()):
            name = (pod.record.namespace, pod.record.name)
            if name in changed and pod.source in (COUNTED, LABELED):
                node = self._nodes.get(pod.node_name)
                node_uid = node.record.node_uid if node else None
                devices, source = self._evidence.labeled(name, node_uid, pod.request.devices)
                if devices and devices != pod.devices:
                    self._pods[uid] = pod._replace(devices=devices, source=source)
                    written += self._hold(self._pods[uid], at_ms)
        return written

    def take_event(self, seen: ObservedObject) -> Records:
        """The records of an event of Kubernetes about a pod. If the pod is not known yet, the event waits for it."""
        event: objects.EventObject = seen.object
        if seen.gone or event.reason not in REASONS:
            return []
        pod = self._pods.get(event.involved_object.uid)
        if pod is not None:
            return self._events.of_pod(event, pod.record)
        self._events.keep(event)
        return []


def _life(pod: objects.PodObject, before: PodState | None, seen: ObservedObject) -> PodLife:
    """The times of a pod as far as they are known, from its object, its last record and its disappearance."""
    life, last = life_of(pod), before.record if before else None
    ended_ms, reason, started_ms = life.ended_ms, life.reason, life.started_ms
    if last is not None and last.ended_ms is not None:  # an end never changes
        ended_ms, reason = last.ended_ms, reason or last.reason
    elif seen.gone and ended_ms is None:
        ended_ms = ended_by(pod, seen.seen_ms)
        reason = "Vanished" if seen.vanished else reason or "Deleted"
    if last is not None and last.started_ms is not None:
        started_ms = min(last.started_ms, started_ms or last.started_ms)
    return life._replace(started_ms=started_ms, ended_ms=ended_ms, reason=reason)


def _hold_inputs(pod: PodState) -> tuple[object, ...]:
    """All that the holds of a pod depend on."""
    return (pod.record.scheduled_ms, pod.record.ended_ms, pod.node_name, pod.request, pod.devices)


def _labels(pod: objects.PodObject) -> str | None:
    labels = pod.metadata.labels
    return json.dumps(labels)[: 4 * MAX_TEXT_CHARS] if labels else None


def _with_time(record: Pod, last: Pod | None, life: PodLife, seen: ObservedObject) -> Pod:
    """A pod's record with the time of its last change. An unchanged pod keeps its last record."""
    if last is not None and record == last._replace(time_ms=0):
        return last
    own_ms = max(t or 0 for t in (life.created_ms, life.scheduled_ms, life.started_ms, life.ended_ms))
    own_ms = own_ms or seen.seen_ms
    if last is not None and own_ms <= last.time_ms:  # it changed, and Kubernetes does not report when
        own_ms = max(seen.seen_ms, last.time_ms + 1)
    return record._replace(time_ms=own_ms)
