"""The workloads of one cluster: their names, teams and attempts, and the owner chains of their pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject, ms
from pyrometer.identify.kubernetes.attempts import Attempts
from pyrometer.identify.kubernetes.change_times import MAX_TEXT_CHARS
from pyrometer.identify.kubernetes.translated_events import progress_of
from pyrometer.identify.kubernetes.workload_identity import Identity, RuleContext, at, by_rules, is_rule
from pyrometer.identify.kubernetes.workload_kinds import FieldRef, RuleError
from pyrometer.model.records import Owner, Pod, Workload
from pyrometer.model.settings import Settings

QUEUE_PLACES = (
    FieldRef("label", "kueue.x-k8s.io/queue-name"),
    FieldRef("label", "volcano.sh/queue-name"),
    FieldRef("annotation", "scheduling.volcano.sh/queue-name"),
    FieldRef("label", "kai.scheduler/queue"),
    FieldRef("label", "runai/queue"),
    FieldRef("label", "scheduling.k8s.io/queue-name"),
)

Records = list[tuple[Any, ...]]


class WorkloadState:
    """A workload: where its names come from, its attempts, and its last record."""

    def __init__(self, where: RuleContext) -> None:
        self.where = where
        self._gangs: dict[str, int] = {}  # by the UID of the object that specifies it: the root, or one below
        self.record: Workload | None = None
        self.renamed = True  # the sources of its names have changed since its last record
        self.attempts = Attempts()
        self.used_ms = 0  # when it was last seen

    def idle(self, before_ms: int) -> bool:
        """Whether it has no running pod and was last seen before a time."""
        return not self.attempts.open and self.used_ms < before_ms

    @property
    def gang(self) -> int | None:
        """How many GPU pods it needs to start. Several objects below the root may specify it: the smallest counts."""
        size = min(self._gangs.values(), default=1)
        return size if size > 1 else None

    def specify(self, owners: Iterable[objects.OwnerObject]) -> None:
        """Takes the size of its gang from the objects above its pods."""
        before = self.gang
        self._gangs.update((owner.metadata.uid, owner.gang_pods) for owner in owners if owner.gang_pods)
        self.renamed = self.renamed or self.gang != before


class ClusterWorkloads:
    """The workloads of one cluster by UID."""

    def __init__(self, cluster: str, settings: Settings) -> None:
        _check_rules(settings)
        self.cluster = cluster
        self.settings = settings
        self._workloads: dict[str, WorkloadState] = {}
        self._attempts: dict[str, tuple[int, int]] = {}  # of forgotten workloads: the last number and its end
        self._namespaces: dict[str, dict[str, str]] = {}  # labels by name
        self._owners: dict[str, Owner] = {}  # the last record of each object by UID

    def get(self, uid: str | None) -> WorkloadState | None:
        """The workload with that UID."""
        return self._workloads.get(uid or "")

    def resume(self, pods: Iterable[Pod], workloads: Iterable[Workload], owners: Iterable[Owner]) -> None:
        """Restores workloads and their attempts from the newest records."""
        lives: dict[str, list[tuple[str, int, int | None, int]]] = {}
        for pod in pods:
            if pod.workload_uid is not None:
                self._workloads.setdefault(pod.workload_uid, WorkloadState(_unknown_context(pod)))
                life = (pod.pod_uid, pod.created_ms or pod.time_ms, pod.ended_ms, pod.attempt)
                lives.setdefault(pod.workload_uid, []).append(life)
        for uid, of_workload in lives.items():
            self._workloads[uid].attempts.resume(of_workload)
        for workload in workloads:
            if workload.workload_uid in self._workloads:
                self._workloads[workload.workload_uid].record = workload
        self._owners = {owner.object_uid: owner for owner in owners}

    def forget(self, used: set[str | None], before_ms: int) -> None:
        """Forgets workloads that no pod uses and that were last seen before a time, except the number of attempts."""
        for uid in [u for u, state in self._workloads.items() if u not in used and state.idle(before_ms)]:
            attempts = self._workloads.pop(uid).attempts
            self._attempts[uid] = (attempts.last, attempts.over_ms)
            self._owners.pop(uid, None)

    def find(
        self,
        identity: Identity,
        pod: objects.PodObject | None,
        chain: Sequence[objects.OwnerObject],
        workflow: objects.Meta | None = None,
    ) -> WorkloadState:
        """The workload of a pod or of a queued job; a new one if it is not known yet."""
        metas = [owner.metadata for owner in reversed(chain)]
        if workflow is not None and workflow.uid not in {meta.uid for meta in metas}:
            metas.append(workflow)  # known by a label only: the names on the job itself come first
        state = self._workloads.get(identity.uid)
        if state is None or not state.where.metas:
            where = RuleContext(
                [*metas, pod.metadata] if pod else metas, identity, self._namespaces.get(identity.namespace, {}), None
            )
            before, state = state, WorkloadState(where._replace(queue=_queue(where.metas)))
            if before is not None:
                state.attempts, state.record = before.attempts, before.record
            elif identity.uid in self._attempts:
                state.attempts = Attempts(*self._attempts.pop(identity.uid))
            self._workloads[identity.uid] = state
        state.specify(chain)
        return state

    def record(self, state: WorkloadState, created_ms: int, seen_ms: int) -> Records:
        """The workload's record, if it is new or its names have changed."""
        state.used_ms = seen_ms
        if not state.renamed:
            return []
        state.renamed = False
        record = self._record(state, created_ms)
        if state.record is not None and record == state.record._replace(time_ms=0):
            return []
        first_ms = record.created_ms or seen_ms
        record = record._replace(time_ms=first_ms if state.record is None else max(seen_ms, state.record.time_ms + 1))
        state.record = record
        return [record]

    def _record(self, state: WorkloadState, created_ms: int) -> Workload:
        """The workload as it is, without a time."""
        where, identity = state.where, state.where.identity
        team = by_rules(self.settings.team_rules, where)
        experiment = by_rules(self.settings.experiment_rules, where)
        user = by_rules(self.settings.user_rules, where)
        root = identity.root.metadata if identity.root else None
        labels = {"rule": identity.rule} | dict((root.labels if root else None) or {})
        return Workload(
            time_ms=0,
            cluster=self.cluster,
            workload_uid=identity.uid,
            kind=identity.kind,
            namespace=identity.namespace,
            name=identity.name,
            api_group=identity.group,
            experiment=experiment.value if experiment else None,
            experiment_rule=experiment.rule if experiment else None,
            team=team.value if team else None,
            team_rule=team.rule if team else None,
            user=user.value if user else None,
            queue=where.queue,
            gang_pods=state.gang,
            serves=bool(identity.of_kind and identity.of_kind.serves),
            created_ms=(ms(root.creation_timestamp) if root else None) or created_ms,
            labels_json=json.dumps(labels)[: 4 * MAX_TEXT_CHARS],
        )

    def record_chain(self, chain: Sequence[objects.OwnerObject], seen_ms: int) -> Records:
        """The records of the objects above a pod that are new or have changed."""
        written: Records = []
        for position, owner in enumerate(chain):
            meta = owner.metadata
            record = Owner(
                time_ms=0,
                cluster=self.cluster,
                object_uid=meta.uid,
                api_group=owner.group,
                kind=owner.kind,
                namespace=meta.namespace,
                name=meta.name,
                controller_uid=chain[position + 1].metadata.uid if position + 1 < len(chain) else None,
            )
            before = self._owners.get(meta.uid)
            if before is None or before._replace(time_ms=0) != record:
                record = record._replace(
                    time_ms=(ms(meta.creation_timestamp) or seen_ms) if before is None else seen_ms
                )
                self._owners[meta.uid] = record
                written.append(record)
        return written

    def take_owner(self, seen: ObservedObject) -> Records:
        """The records of a workload whose root object has changed: its labels may name another team."""
        owner: objects.OwnerObject = seen.object
        uid = owner.metadata.uid
        state = self._workloads.get(uid)
        if state is None or seen.gone or not state.where.metas:
            return []
        metas = [owner.metadata, *(meta for meta in state.where.metas if meta.uid != uid)]
        identity = state.where.identity._replace(root=owner)
        state.where = state.where._replace(metas=metas, identity=identity, queue=_queue(metas) or state.where.queue)
        state.specify([owner])
        state.renamed = True
        return [*self.record(state, seen.seen_ms, seen.seen_ms), *progress_of(owner, max(state.attempts.last, 1))]

    def take_namespace(self, seen: ObservedObject) -> Records:
        """The records of the workloads of a namespace whose labels have changed."""
        meta: objects.Meta = seen.object.metadata
        labels = {} if seen.gone else dict(meta.labels or {})
        if self._namespaces.get(meta.name) == labels or seen.gone:
            return []
        self._namespaces[meta.name] = labels
        written: Records = []
        for state in self._workloads.values():
            if state.where.identity.namespace == meta.name and state.where.metas:
                state.where = state.where._replace(namespace_labels=labels)
                state.renamed = True
                written += self.record(state, seen.seen_ms, seen.seen_ms)
        return written


def _check_rules(settings: Settings) -> None:
    for name in ("team_rules", "experiment_rules", "user_rules"):
        for rule in getattr(settings, name):
            if not is_rule(rule):
                raise RuleError(
                    f"Setting {name!r} has the rule {rule!r}. Known: label:KEY, annotation:KEY, namespace-label:KEY, "
                    "queue, namespace, name."
                )


def _unknown_context(pod: Pod) -> RuleContext:
    """The context of a workload that is known from records of its pods only. Its objects will be seen, or are gone."""
    identity = Identity(
        uid=pod.workload_uid or pod.pod_uid,
        kind="",
        group="",
        namespace=pod.namespace,
        name="",
        rule="",
        of_kind=None,
        root=None,
    )
    return RuleContext((), identity, {}, None)


def _queue(metas: Iterable[objects.Meta]) -> str | None:
    metas = list(metas)
    return next((value for place in QUEUE_PLACES for meta in metas if (value := at(place, meta))), None)
