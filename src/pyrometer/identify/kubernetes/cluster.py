"""One cluster: takes its objects as a watch sees them and returns the records to store.

Nothing is recorded twice: an object that has not changed returns no record. Times come from Kubernetes' own clock, so
that reading the same objects again, after a restart or a lost connection, gives the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyrometer.collect.gpu.device import DeviceUse
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject, ms
from pyrometer.identify.gpus import gpu_requests
from pyrometer.identify.kubernetes import pipelines, sweeps
from pyrometer.identify.kubernetes.cluster_nodes import ClusterNodes
from pyrometer.identify.kubernetes.cluster_pods import ClusterPods
from pyrometer.identify.kubernetes.cluster_workloads import QUEUE_PLACES, ClusterWorkloads
from pyrometer.identify.kubernetes.gangs import gang_pods
from pyrometer.identify.kubernetes.pod_events import PodEvents
from pyrometer.identify.kubernetes.queues import QUEUED_POD, Queues
from pyrometer.identify.kubernetes.translated_events import PROGRESS_OF
from pyrometer.identify.kubernetes.workload_identity import identify
from pyrometer.identify.kubernetes.workload_kinds import known_kinds
from pyrometer.model.records import Allocation, Node, Owner, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR

Records = list[tuple[Any, ...]]

SETTLED_MS = MS_PER_HOUR  # the devices of a pod that ended this long ago cannot change any more
STATUS_READERS = {  # the part of the status to keep, for objects that are made of jobs
    pipelines.WORKFLOW: pipelines.read_workflow_status,
    sweeps.EXPERIMENT: sweeps.read_sweep_status,
    sweeps.TRIAL: sweeps.read_sweep_status,
}


class Cluster:
    """The objects of one cluster that are related to GPUs."""

    def __init__(self, name: str, settings: Settings, *, since_ms: int = 0, settled_ms: int = 0) -> None:
        """Nodes older than `since_ms` begin when they are first seen: before that, nothing was watched. Pods that ended
        before `settled_ms` are recorded already, or were never watched."""
        self.name = name
        self.settings = settings
        self.kinds = known_kinds(settings.workload_rules)
        self._workloads = ClusterWorkloads(name, settings)
        self._nodes = ClusterNodes(name, since_ms)
        self._queues = Queues(name)
        self._pipelines = pipelines.Pipelines(name)
        self._sweeps = sweeps.Sweeps(name)
        self._pods = ClusterPods(
            name, self.kinds, self._nodes, self._workloads, PodEvents(name), self._pipelines, self._sweeps, settled_ms
        )
        self._handlers: dict[type, Callable[[ObservedObject], Records]] = {
            objects.NodeObject: self._take_node,
            objects.PodObject: self._pods.take,
            objects.Namespace: self._workloads.take_namespace,
            objects.EventObject: self._pods.take_event,
            objects.ResourceClaim: self._pods.take_claim,
            objects.QueuedWorkload: self._take_queued,
            objects.OwnerObject: self._take_owner,
        }

    def take(self, seen: ObservedObject) -> Records:
        """The records of an object that was seen, or is gone."""
        return self._handlers[type(seen.object)](seen)

    def learn(self, uses: Iterable[DeviceUse], at_ms: int) -> Records:
        """The records of pods that exporters see on devices."""
        return self._pods.take_uses(uses, at_ms)

    def node_uid_of(self, name: str) -> str | None:
        """The UID of a node by its name. Machines may report a longer name than their node has."""
        return self._nodes.uid_of(name)

    def resume(
        self,
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        holds: Iterable[Allocation],
        workloads: Iterable[Workload],
        owners: Iterable[Owner],
    ) -> None:
        """Continues from the newest record of each object that still exists."""
        pods = list(pods)
        self._pipelines.resume({pod.pipeline_run for pod in pods if pod.pipeline_run})
        self._sweeps.resume({pod.trial_uid for pod in pods if pod.trial_uid})
        node_names = self._nodes.resume(nodes, holds)
        real = [pod for pod in pods if not pod.pod_uid.startswith(QUEUED_POD)]
        for pod in pods:
            if pod.pod_uid.startswith(QUEUED_POD) and pod.ended_ms is None:
                self._queues.resume(pod)
        self._pods.resume(real, node_names)
        self._workloads.resume(real, workloads, owners)

    def tick(self, now_ms: int) -> None:
        """Forgets what cannot change any more."""
        settled_ms = now_ms - SETTLED_MS
        self._nodes.forget(settled_ms)
        self._pods.forget(settled_ms)
        pods = self._pods.records()
        self._pipelines.forget({pod.pipeline_run or "" for pod in pods})
        self._sweeps.forget({pod.trial_uid or "" for pod in pods})
        self._workloads.forget({pod.workload_uid for pod in pods}, settled_ms)

    # -- what to watch ------------------------------------------------------------------------------------------------

    def whole(self, group: str, kind: str) -> bool:
        """Whether more than the metadata of such owners is needed: the size of a gang, the progress of a run, steps."""
        of_kind = self.kinds.of(group, kind)
        return bool(of_kind and of_kind.gang) or (group, kind) == PROGRESS_OF or (group, kind) in STATUS_READERS

    def shrink(self, owner: objects.OwnerObject) -> objects.OwnerObject:
        """An owner without its specification, of which only the size of its gang is needed."""
        read_status = STATUS_READERS.get((owner.group, owner.kind))
        if read_status is not None and not isinstance(owner.status, tuple):
            owner.status, owner.spec = read_status(owner), None
            return owner
        of_kind = self.kinds.of(owner.group, owner.kind)
        # Claims of pods that request no other GPU may be for other devices: the smaller number of pods is certain.
        shape = of_kind.gang if of_kind else None
        sizes = (
            gang_pods(shape, owner.spec, partial(gpu_requests.requests_gpus, by_claim=by_claim))
            for by_claim in (True, False)
        )
        owner.gang_pods = min((size for size in sizes if size), default=None)
        owner.spec = None
        if (owner.group, owner.kind) != PROGRESS_OF:
            owner.status = None
        return owner

    def known(self) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
        """The objects that existed at the last watch: for each kind, UID → namespace and name."""
        pods = (pod for pod in self._pods.records() if pod.ended_ms is None)
        return {
            ("", "Pod"): {pod.pod_uid: (pod.namespace, pod.name) for pod in pods},
            ("", "Node"): self._nodes.present(),
            ("kueue.x-k8s.io", "Workload"): {uid: ("", uid) for uid in self._queues.waiting()},
        }

    def followed_kinds(self) -> list[tuple[str, str]]:
        """The kinds that are followed before any pod names them: jobs name their pipeline run by a label only."""
        return [pipelines.WORKFLOW, *self._sweeps.followed_kinds()]

    def keys(self) -> list[str]:
        """The keys of labels and annotations that rules and kinds use."""
        rules = (*self.settings.team_rules, *self.settings.experiment_rules, *self.settings.user_rules)
        named = [key for rule in rules if (key := rule.partition(":")[2])]
        places = [place.key for place in (*QUEUE_PLACES, *pipelines.PLACES, *self.kinds.places())]
        return [*named, *places, *gpu_requests.LABELS]

    def group_of(self, kind: str) -> str:
        """The API group of a kind that the table of kinds has; among kinds of the same name, the best known."""
        groups = [group for group, name in self.kinds.by_owner if name == kind]
        return "batch" if kind == "Job" else "apps" if kind in ("ReplicaSet", "StatefulSet") else next(iter(groups), "")

    # -- objects that concern several parts ---------------------------------------------------------------------------

    def _take_node(self, seen: ObservedObject) -> Records:
        """The records of a node, and of the pods that waited for it."""
        return [*self._nodes.take(seen), *self._pods.take_node(seen.object.metadata.name, seen.seen_ms)]

    def _take_owner(self, seen: ObservedObject) -> Records:
        """The records of an object above pods: it may be a pipeline, a sweep or the root of a workload."""
        owner: objects.OwnerObject = seen.object
        written: Records = []
        if (owner.group, owner.kind) == pipelines.WORKFLOW:
            written += self._pipelines.see(owner, seen.seen_ms, gone=seen.gone)
        elif (owner.group, owner.kind) in STATUS_READERS:
            written += self._sweeps.see(owner, seen.seen_ms, gone=seen.gone)
        return [*written, *self._workloads.take_owner(seen)]

    def _take_queued(self, seen: ObservedObject) -> Records:
        """The records of a job in a queue of Kueue, which may have no pods yet."""
        queued: objects.QueuedWorkload = seen.object
        if seen.gone:
            return list(self._queues.forget(queued.metadata.uid, seen.seen_ms))
        if not seen.chain:
            return []
        no_pod = objects.PodObject(objects.Meta(namespace=queued.metadata.namespace))
        identity = identify(self.name, no_pod, seen.chain, self.kinds)
        state = self._workloads.find(identity, None, seen.chain)
        if state.where.queue is None and queued.spec.queue_name:
            state.where = state.where._replace(queue=queued.spec.queue_name)
            state.renamed = True
        created_ms = ms(queued.metadata.creation_timestamp) or seen.seen_ms
        return [*self._workloads.record(state, created_ms, seen.seen_ms), *self._queues.take(queued, identity, seen)]
