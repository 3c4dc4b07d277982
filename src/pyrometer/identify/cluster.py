"""What is known of one cluster: takes what was seen of its objects and says what to write down.

Nothing is written twice: an object that looks as it did before is no news. Times are those of Kubernetes' own clock, so
that reading the same objects again, after a restart or a lost connection, gives the same records.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.gpu_device import DeviceUse
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ms
from pyrometer.collect.kubernetes.seen import Seen
from pyrometer.identify import gpus, pipelines, sweeps
from pyrometer.identify.attempts import Attempts
from pyrometer.identify.devices import Claim, Device, Hold, NodeHolds, devices_of
from pyrometer.identify.gangs import gang_pods
from pyrometer.identify.happenings import PROGRESS_OF, REASONS, happening_of, progress_of
from pyrometer.identify.kinds import Place, RuleError, known_kinds
from pyrometer.identify.marks import LONGEST_TEXT
from pyrometer.identify.pods import Life, Restart, disruption_of, ended_by, life_of, restarts_of
from pyrometer.identify.queues import QUEUED_POD, Queues
from pyrometer.identify.workloads import Identity, Surroundings, at, by_rules, identify, is_rule, number
from pyrometer.model import events
from pyrometer.model.records import WHOLE_DEVICE, Allocation, Event, Node, Owner, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, SHARE_WHOLE

Records = list[tuple[Any, ...]]

QUEUE_PLACES = (
    Place("label", "kueue.x-k8s.io/queue-name"), Place("label", "volcano.sh/queue-name"),
    Place("annotation", "scheduling.volcano.sh/queue-name"), Place("label", "kai.scheduler/queue"),
    Place("label", "runai/queue"), Place("label", "scheduling.k8s.io/queue-name"),
)  # fmt: skip
COUNTED = "count"  # only how many devices a pod has is known
SETTLED_MS = MS_PER_HOUR  # a pod that ended so long ago will not turn out to have had other devices
TOLD_BY = {  # what is kept of the status of objects that are made of jobs
    pipelines.WORKFLOW: pipelines.told_by, sweeps.EXPERIMENT: sweeps.told_by, sweeps.TRIAL: sweeps.told_by,
}  # fmt: skip
MOST_EARLY_EVENTS = 10_000  # about pods that are not known yet


class _Node:
    """A node, its devices, and how it was last written down."""

    def __init__(self, record: Node, gpus_of: gpus.GpuNode) -> None:
        self.record = record
        self.gpus = gpus_of
        self.holds = NodeHolds(record.node_uid, gpus_of.gpus)


class _Pod(NamedTuple):
    """A pod that asks for GPUs, as it was last written down."""

    record: Pod
    node_name: str
    asked: gpus.Asked
    known: tuple[Device, ...] | None
    source: str  # how its devices are known
    restarts: frozenset[Restart]
    looks: int = 0  # of its object: most changes of pods are none of ours
    gone: bool = False  # from the API; while it is listed it may be seen again


class _Workload:
    """A workload, what its names come from, and which attempt it is in."""

    def __init__(self, where: Surroundings) -> None:
        self.where = where
        self._gangs: dict[str, int] = {}  # by the UID of the object that specifies it: the root, or one below
        self.record: Workload | None = None
        self.renamed = True  # what its names come from has changed since they were written down
        self.attempts = Attempts()
        self.used_ms = 0  # when anything was last heard of it

    def idle(self, now_ms: int) -> bool:
        """Whether nothing was heard of it for a while."""
        return not self.attempts.open and self.used_ms < now_ms - SETTLED_MS

    @property
    def gang(self) -> int | None:
        """How many GPU pods it needs. Several objects below the root may each specify it: the least is sure."""
        size = min(self._gangs.values(), default=1)
        return size if size > 1 else None

    def specify(self, owners: Iterable[objects.Owner]) -> None:
        """Takes the size of its gang from the objects above its pods."""
        before = self.gang
        self._gangs.update((owner.metadata.uid, owner.gang_pods) for owner in owners if owner.gang_pods)
        self.renamed = self.renamed or self.gang != before


class Cluster:
    """One cluster, as far as it was seen."""

    def __init__(self, name: str, settings: Settings, *, since_ms: int = 0, settled_ms: int = 0) -> None:
        self.name = name
        self.settings = settings
        self.since_ms = since_ms  # nodes that are older were not watched before: they begin when they are first seen
        self.settled_ms = settled_ms  # pods that ended before are written down already, or were never watched
        self.kinds = known_kinds(settings.workload_rules)
        _check_rules(settings)
        self._nodes: dict[str, _Node] = {}  # by name
        self._pods: dict[str, _Pod] = {}  # by UID
        self._waiting: dict[str, set[str]] = defaultdict(set)  # pods on nodes that are not known yet, by node name
        self._workloads: dict[str, _Workload] = {}
        self._attempts: dict[str, tuple[int, int]] = {}  # of workloads that are forgotten otherwise, and their end
        self._namespaces: dict[str, dict[str, str]] = {}
        self._owners: dict[str, Owner] = {}  # as they were last written down
        self._claims: dict[tuple[str, str], tuple[Device, ...]] = {}
        self._early: OrderedDict[str, list[objects.Event]] = OrderedDict()
        self._said: dict[tuple[str, str], str] = {}  # the last message of each kind about a pod
        self._used: dict[tuple[str, str], dict[str, set[Device]]] = {}  # by namespace and pod, on each node
        self._queues = Queues(name)
        self._pipelines = pipelines.Pipelines(name)
        self._sweeps = sweeps.Sweeps(name)

    def take(self, seen: Seen) -> Records:
        """What to write down about an object that was seen, or is gone."""
        return {
            "Node": self._take_node, "Pod": self._take_pod, "Namespace": self._take_namespace,
            "Event": self._take_event, "ResourceClaim": self._take_claim, "Queued": self._take_queued,
            "Owner": self._take_owner,
        }[type(seen.object).__name__](seen)  # fmt: skip

    def whole(self, group: str, kind: str) -> bool:
        """Whether more than the metadata of such owners is needed: the size of a gang, the progress of a run, steps."""
        of_kind = self.kinds.of(group, kind)
        return bool(of_kind and of_kind.gang) or (group, kind) == PROGRESS_OF or (group, kind) in TOLD_BY

    def shrink(self, owner: objects.Owner) -> objects.Owner:
        """An owner without its specification: all that is needed of it is the size of its gang."""
        if (told_by := TOLD_BY.get((owner.group, owner.kind))) and not isinstance(owner.status, tuple):
            owner.status, owner.spec = told_by(owner), None
            return owner
        of_kind = self.kinds.of(owner.group, owner.kind)
        # Claims of pods that ask for no GPU besides may be for other devices: the fewer pods are sure.
        sizes = (
            gang_pods(of_kind.gang if of_kind else None, owner.spec, partial(gpus.asks_gpus, by_claim=by_claim))
            for by_claim in (True, False)
        )
        owner.gang_pods = min((size for size in sizes if size), default=None)
        owner.spec = None
        if (owner.group, owner.kind) != PROGRESS_OF:
            owner.status = None
        return owner

    def tick(self, now_ms: int) -> None:
        """Forgets what cannot change any more."""
        for node in self._nodes.values():
            node.holds.forget(now_ms - SETTLED_MS)
        for uid in [
            u for u, pod in self._pods.items() if pod.gone and (pod.record.ended_ms or 0) < now_ms - SETTLED_MS
        ]:
            gone = self._pods.pop(uid).record
            self._leave(gone)
            self._used.pop((gone.namespace, gone.name), None)
            for kind in set(REASONS.values()):
                self._said.pop((kind, uid), None)
        used = {pod.record.workload_uid for pod in self._pods.values()}
        self._pipelines.forget({pod.record.pipeline_run or "" for pod in self._pods.values()})
        self._sweeps.forget({pod.record.trial_uid or "" for pod in self._pods.values()})
        for uid in [u for u, state in self._workloads.items() if u not in used and state.idle(now_ms)]:
            attempts = self._workloads.pop(uid).attempts
            self._attempts[uid] = (attempts.last, attempts.over_ms)
            self._owners.pop(uid, None)

    def known(self) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
        """What was there when it was last watched: for each kind, UID → namespace and name."""
        pods = (pod.record for pod in self._pods.values() if pod.record.ended_ms is None)
        return {
            ("", "Pod"): {pod.pod_uid: (pod.namespace, pod.name) for pod in pods},
            ("", "Node"): {node.record.node_uid: ("", name) for name, node in self._nodes.items()},
            ("kueue.x-k8s.io", "Workload"): {uid: ("", uid) for uid in self._queues.waiting()},
        }

    def followed_kinds(self) -> list[tuple[str, str]]:
        """The kinds that are followed before any pod names them: jobs say by a label which run they belong to."""
        return [pipelines.WORKFLOW, *self._sweeps.followed_kinds()]

    # -- what was known before this process began ---------------------------------------------------------------------

    def resume(
        self, nodes: Iterable[Node], pods: Iterable[Pod], holds: Iterable[Allocation], workloads: Iterable[Workload],
        owners: Iterable[Owner],
    ) -> None:  # fmt: skip
        """Goes on from what was written down: the newest record of each object that is still there."""
        pods = list(pods)
        self._pipelines.resume({pod.pipeline_run for pod in pods if pod.pipeline_run})
        self._sweeps.resume({pod.trial_uid for pod in pods if pod.trial_uid})
        names = {}
        lives: dict[str, list[tuple[str, int, int | None, int]]] = defaultdict(list)
        for node in nodes:
            self._nodes[node.name] = _Node(node, gpus.GpuNode(node.gpu_count, node.gpu_model, 1, 0, None))
            names[node.node_uid] = node.name
        for pod in pods:
            if pod.pod_uid.startswith(QUEUED_POD):
                if pod.ended_ms is None:
                    self._queues.resume(pod)
                continue
            share = pod.gpu_share or 0
            asked = gpus.Asked(max(-(-share // SHARE_WHOLE), 1), min(share, SHARE_WHOLE))
            name = names.get(pod.node_uid or "", "")
            self._pods[pod.pod_uid] = _Pod(pod, name, asked, None, COUNTED, frozenset())
            if pod.workload_uid is not None:
                self._workloads.setdefault(pod.workload_uid, _Workload(_nowhere(pod)))
                lives[pod.workload_uid].append((pod.pod_uid, pod.created_ms or pod.time_ms, pod.ended_ms, pod.attempt))
        for uid, of_workload in lives.items():
            self._workloads[uid].attempts.resume(of_workload)
        for hold in holds:
            node_of_hold = self._nodes.get(names.get(hold.node_uid, ""))
            if node_of_hold is not None:
                device = Device(hold.slot_index, hold.instance)
                held = Hold(hold.pod_uid, device, hold.from_ms, hold.to_ms, hold.share, hold.source)
                node_of_hold.holds.resume(held)
        for workload in workloads:
            if workload.workload_uid in self._workloads:
                self._workloads[workload.workload_uid].record = workload
        self._owners = {owner.object_uid: owner for owner in owners}

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _take_node(self, seen: Seen) -> Records:
        node: objects.Node = seen.object
        labels, meta = node.metadata.labels or {}, node.metadata
        before = self._nodes.get(meta.name)
        if before is not None and before.record.node_uid != meta.uid and not seen.gone:  # a new machine, an old name
            return [self._end_node(meta.name, seen.seen_ms), *self._take_node(seen)]
        if seen.gone:
            return [self._end_node(meta.name, seen.seen_ms)] if before and before.record.node_uid == meta.uid else []
        has = gpus.node_gpus(node)
        if not has.gpus and before is None:
            return []
        ready = next((c for c in node.status.conditions or () if c.type == "Ready"), None)
        record = Node(
            0, self.name, meta.uid, meta.name, has.gpus, has.model or (before.record.gpu_model if before else None),
            gpus.first_label(labels, gpus.POOL_LABELS), gpus.first_label(labels, gpus.INSTANCE_LABELS),
            gpus.purchase_of(labels), ready is None or ready.status == "True", not node.spec.unschedulable,
        )  # fmt: skip
        if before is None:
            created_ms = ms(meta.creation_timestamp) or 0
            known = created_ms and created_ms >= self.since_ms
            record = record._replace(time_ms=created_ms if known else seen.seen_ms)
            self._nodes[meta.name] = _Node(record, has)
        else:
            if record == before.record._replace(time_ms=0):
                before.gpus = has
                before.holds.slots = max(before.holds.slots, has.gpus)
                return self._place_waiting(meta.name, seen.seen_ms)
            record = record._replace(time_ms=_changed_ms(node, ready, record, before.record, seen.seen_ms))
            before.record, before.gpus = record, has
            before.holds.slots = max(before.holds.slots, has.gpus)
        return [record, *self._place_waiting(meta.name, seen.seen_ms)]

    def _end_node(self, name: str, at_ms: int) -> Node:
        record = self._nodes.pop(name).record
        return record._replace(time_ms=max(at_ms, record.time_ms + 1), present=False)

    def _place_waiting(self, name: str, seen_ms: int) -> Records:
        """Pods that were seen before their node."""
        placed: Records = []
        for uid in sorted(self._waiting.pop(name, ())):
            if uid in self._pods:
                placed += self._hold(self._pods[uid], seen_ms)
                pod = self._pods[uid]
                record = pod.record._replace(
                    node_uid=self._nodes[name].record.node_uid, time_ms=max(seen_ms, pod.record.time_ms + 1)
                )
                self._pods[uid] = pod._replace(record=record)
                placed.append(record)
        return placed

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _take_pod(self, seen: Seen) -> Records:
        pod: objects.Pod = seen.object
        uid = pod.metadata.uid
        before = self._pods.get(uid)
        pod.metadata.resource_version = ""
        looks = hash(msgspec.json.encode(pod))
        if before is not None and before.looks == looks and not seen.gone:  # what changed is none of ours
            return []
        node = self._nodes.get(pod.spec.node_name)
        known, source = self._devices_of(pod)
        asked = gpus.asked_by(pod, node.gpus if node else None)
        if asked is None and known:
            asked = gpus.Asked(len(known), SHARE_WHOLE)
        if asked is not None and not known:
            known, source = self._labelled(pod.metadata.namespace, pod.metadata.name, pod.spec.node_name, asked)
        if asked is None:
            return [] if before is None else self._ended(before, seen) if seen.gone else []
        if before is None and (life_of(pod).ended_ms or seen.seen_ms) < self.settled_ms:
            return []
        written: Records = []
        identity = identify(self.name, pod, seen.chain, self.kinds)
        part = self._pipelines.part_of(pod, seen.chain)
        state = self._workload(identity, pod, seen.chain, part.workflow if part else None)
        created_ms = ms(pod.metadata.creation_timestamp) or seen.seen_ms
        written += self._named(state, created_ms, seen.seen_ms)
        life = _life(pod, before, seen)
        written += self._join(pod, before, life, identity, state, seen)
        record = self._record(pod, before, life, identity, state, node, asked, part, seen)
        written += self._chain(seen.chain, seen.seen_ms)
        if part is not None:
            written += self._pipelines.use(part, pod.metadata.namespace, seen.seen_ms)
        written += self._sweeps.use(seen.chain, seen.seen_ms)
        restarts = frozenset(restarts_of(pod))
        now = _Pod(record, pod.spec.node_name, asked, known, source, restarts, looks, seen.gone)
        self._pods[uid] = now
        if before is None or record != before.record:
            written.append(record)
        if before is None or _held(before) != _held(now):
            written += self._hold(now, seen.seen_ms)
        written += self._happened(pod, before, now)
        for early in self._early.pop(uid, ()):
            written += self._about(early, now.record)
        return written

    def _record(
        self, pod: objects.Pod, before: _Pod | None, life: Life, identity: Identity, state: _Workload,
        node: _Node | None, asked: gpus.Asked, part: pipelines.Part | None, seen: Seen,
    ) -> Pod:  # fmt: skip
        meta = pod.metadata
        step, trial = part.step if part else None, self._sweeps.trial_of(seen.chain)
        last = before.record if before else None
        of_kind = identity.of_kind
        record = Pod(
            0, self.name, meta.uid, meta.namespace, meta.name, life.phase, identity.uid, state.attempts.of(meta.uid),
            number(of_kind.rank, pod) if of_kind else None,
            node.record.node_uid if node else last.node_uid if last else None,
            state.record.user if state.record else None, state.where.queue, life.created_ms, life.scheduled_ms,
            life.started_ms, life.ended_ms, life.reason, asked.total, _labels(pod), part.run_id if part else None,
            step.name if step else None, step.attempt if part and part.own and step else None,
            trial.metadata.uid if trial else None,
        )  # fmt: skip
        if last is not None and record == last._replace(time_ms=0):
            return last
        own_ms = max(t or 0 for t in (life.created_ms, life.scheduled_ms, life.started_ms, life.ended_ms))
        own_ms = own_ms or seen.seen_ms
        if last is not None and own_ms <= last.time_ms:  # it changed, and Kubernetes does not say when
            own_ms = max(seen.seen_ms, last.time_ms + 1)
        return record._replace(time_ms=own_ms)

    def _ended(self, before: _Pod, seen: Seen) -> Records:
        """A pod of which only its end is left to say."""
        if before.record.ended_ms is not None:
            self._pods[before.record.pod_uid] = before._replace(gone=True)
            return []
        record = before.record._replace(
            ended_ms=seen.seen_ms, time_ms=max(seen.seen_ms, before.record.time_ms + 1),
            reason="Vanished" if seen.vanished else "Deleted",
        )  # fmt: skip
        now = before._replace(record=record, gone=True)
        self._pods[record.pod_uid] = now
        written: Records = []
        state = self._workloads.get(record.workload_uid or "")
        if state is not None and record.pod_uid in state.attempts:
            written = self._renumbered(state, state.attempts.end(record.pod_uid, seen.seen_ms), seen)
        return [record, *written, *self._hold(now, seen.seen_ms)]

    def _join(
        self, pod: objects.Pod, before: _Pod | None, life: Life, identity: Identity, state: _Workload, seen: Seen
    ) -> Records:  # fmt: skip
        """Finds the attempt of a pod: the one that it names, else by its time. Returns pods that change theirs."""
        uid, attempts = pod.metadata.uid, state.attempts
        # A pod that was seen to be over has ended, whatever the clock of its node says.
        ended_ms = None if life.ended_ms is None else min(life.ended_ms, seen.seen_ms)
        if uid in attempts:
            changed = attempts.end(uid, ended_ms) if ended_ms is not None else set()
        else:
            named = number(identity.of_kind.attempt, pod) if identity.of_kind else None
            known = None if named is None else named + 1
            if before is not None:  # the objects above it are others than before
                self._leave(before.record)
                known = before.record.attempt
            began_ms = life.created_ms or life.scheduled_ms or seen.seen_ms
            changed = attempts.add(uid, began_ms, ended_ms, known)
        return self._renumbered(state, changed - {uid}, seen)

    def _leave(self, pod: Pod) -> None:
        """A pod that is forgotten, or belongs to another workload than was known before."""
        state = self._workloads.get(pod.workload_uid or "")
        if state is not None and pod.pod_uid in state.attempts:
            state.attempts.forget(pod.pod_uid)

    def _renumbered(self, state: _Workload, uids: set[str], seen: Seen) -> Records:
        """Pods of which the attempt was numbered before an earlier one was seen."""
        written: Records = []
        for uid in sorted(uids & self._pods.keys()):
            pod = self._pods[uid]
            time_ms = max(seen.seen_ms, pod.record.time_ms + 1)
            record = pod.record._replace(attempt=state.attempts.of(uid), time_ms=time_ms)
            self._pods[uid] = pod._replace(record=record)
            written.append(record)
        return written

    def _hold(self, pod: _Pod, seen_ms: int) -> Records:
        """Its devices, once it is on a node; a node that is not known yet is waited for."""
        record = pod.record
        if record.scheduled_ms is None or not pod.node_name:
            return []
        node = self._nodes.get(pod.node_name)
        if node is None:
            self._waiting[pod.node_name].add(record.pod_uid)
            return []
        node.holds.claim(
            Claim(
                record.pod_uid, record.scheduled_ms, record.ended_ms, pod.asked.devices, pod.asked.share, pod.known,
                pod.source,
            )
        )  # fmt: skip
        return list(node.holds.changes(seen_ms))

    def _happened(self, pod: objects.Pod, before: _Pod | None, now: _Pod) -> Iterator[Event]:
        record = now.record
        known: frozenset[Restart] = before.restarts if before else frozenset()
        ends = {(restart.container, restart.at_ms) for restart in known}
        for restart in sorted(now.restarts - known, key=lambda r: r.at_ms):
            if (restart.container, restart.at_ms) not in ends:
                yield self._event(
                    restart.at_ms, events.CONTAINER_RESTARTED, record, restart.reason,
                    f"{restart.container} exited with code {restart.exit_code}",
                )  # fmt: skip
            if restart.again_ms is not None:
                yield self._event(restart.again_ms, events.CONTAINER_STARTED, record, None, restart.container)
        disruption = disruption_of(pod)
        if disruption is not None and self._said.get((events.PREEMPTED, record.pod_uid)) is None:
            self._said[events.PREEMPTED, record.pod_uid] = disruption.reason
            at_ms = ms(disruption.last_transition_time) or record.time_ms
            yield self._event(at_ms, events.PREEMPTED, record, disruption.reason, disruption.message)

    def _event(
        self, at_ms: int, kind: str, pod: Pod, reason: str | None, message: str | None, duration_ms: int | None = None
    ) -> Event:
        return Event(
            at_ms, kind, duration_ms, self.name, pod.node_uid, pod_uid=pod.pod_uid, workload_uid=pod.workload_uid,
            attempt=pod.attempt, reason=reason, message=(message or "")[:LONGEST_TEXT] or None,
        )  # fmt: skip

    # -- workloads ----------------------------------------------------------------------------------------------------

    def _workload(
        self, identity: Identity, pod: objects.Pod | None, chain: Sequence[objects.Owner],
        workflow: objects.Meta | None = None,
    ) -> _Workload:  # fmt: skip
        metas = [owner.metadata for owner in reversed(chain)]
        if workflow is not None and workflow.uid not in {meta.uid for meta in metas}:
            metas.append(workflow)  # known by a label only: what the job says itself comes first
        known = self._workloads.get(identity.uid)
        if known is None or not known.where.metas:
            where = Surroundings(
                [*metas, pod.metadata] if pod else metas, identity,
                self._namespaces.get(identity.namespace, {}), None,
            )  # fmt: skip
            before, known = known, _Workload(where._replace(queue=_queue(where.metas)))
            if before is not None:
                known.attempts, known.record = before.attempts, before.record
            elif identity.uid in self._attempts:
                known.attempts = Attempts(*self._attempts.pop(identity.uid))
            self._workloads[identity.uid] = known
        known.specify(chain)
        return known

    def _named(self, state: _Workload, created_ms: int, seen_ms: int) -> Records:
        """The workload's record, when it is new or its names have changed."""
        state.used_ms = seen_ms
        if not state.renamed:
            return []
        state.renamed = False
        where, identity = state.where, state.where.identity
        team = by_rules(self.settings.team_rules, where)
        experiment = by_rules(self.settings.experiment_rules, where)
        user = by_rules(self.settings.user_rules, where)
        root = identity.root.metadata if identity.root else None
        record = Workload(
            0, self.name, identity.uid, identity.kind, identity.namespace, identity.name, identity.group,
            experiment.value if experiment else None, experiment.rule if experiment else None,
            team.value if team else None, team.rule if team else None, user.value if user else None, where.queue,
            state.gang,
            bool(identity.of_kind and identity.of_kind.serves),
            (ms(root.creation_timestamp) if root else None) or created_ms,
            json.dumps({"rule": identity.rule} | dict((root.labels if root else None) or {}))[: 4 * LONGEST_TEXT],
        )  # fmt: skip
        if state.record is not None and record == state.record._replace(time_ms=0):
            return []
        first_ms = record.created_ms or seen_ms
        record = record._replace(time_ms=first_ms if state.record is None else max(seen_ms, state.record.time_ms + 1))
        state.record = record
        return [record]

    def _chain(self, chain: Sequence[objects.Owner], seen_ms: int) -> Records:
        written: Records = []
        for place, owner in enumerate(chain):
            meta = owner.metadata
            above = chain[place + 1].metadata.uid if place + 1 < len(chain) else None
            record = Owner(0, self.name, meta.uid, owner.group, owner.kind, meta.namespace, meta.name, above)
            before = self._owners.get(meta.uid)
            if before is None or before._replace(time_ms=0) != record:
                record = record._replace(
                    time_ms=(ms(meta.creation_timestamp) or seen_ms) if before is None else seen_ms
                )
                self._owners[meta.uid] = record
                written.append(record)
        return written

    def _take_owner(self, seen: Seen) -> Records:
        """An object above pods has changed: its labels may name another team; it may be a pipeline or a sweep."""
        owner: objects.Owner = seen.object
        uid = owner.metadata.uid
        written: Records = []
        if (owner.group, owner.kind) == pipelines.WORKFLOW:
            written += self._pipelines.see(owner, seen.seen_ms, gone=seen.gone)
        elif (owner.group, owner.kind) in TOLD_BY:
            written += self._sweeps.see(owner, seen.seen_ms, gone=seen.gone)
        state = self._workloads.get(uid)
        if state is not None and not seen.gone and state.where.metas:
            rest = [meta for meta in state.where.metas if meta.uid != uid]
            metas = [owner.metadata, *rest]
            identity = state.where.identity._replace(root=owner)
            state.where = state.where._replace(metas=metas, identity=identity, queue=_queue(metas) or state.where.queue)
            state.specify([owner])
            state.renamed = True
            written += self._named(state, seen.seen_ms, seen.seen_ms)
            written += progress_of(owner, max(state.attempts.last, 1))
        return written

    # -- what else says something -------------------------------------------------------------------------------------

    def _take_namespace(self, seen: Seen) -> Records:
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
                written += self._named(state, seen.seen_ms, seen.seen_ms)
        return written

    def _take_event(self, seen: Seen) -> Records:
        event: objects.Event = seen.object
        if seen.gone or event.reason not in REASONS:
            return []
        uid = event.involved_object.uid
        pod = self._pods.get(uid)
        if pod is not None:
            return self._about(event, pod.record)
        self._early.setdefault(uid, []).append(event)
        while len(self._early) > MOST_EARLY_EVENTS:
            self._early.popitem(last=False)
        return []

    def _about(self, event: objects.Event, pod: Pod) -> Records:
        happening = happening_of(event)
        if happening is None or self._said.get((happening.kind, pod.pod_uid)) == event.message:
            return []
        if happening.repeats:
            self._said[happening.kind, pod.pod_uid] = event.message
        return [self._event(happening.at_ms, happening.kind, pod, event.reason, event.message, happening.duration_ms)]

    def _take_claim(self, seen: Seen) -> Records:
        """Devices that the scheduler itself gave away (DRA)."""
        claim: objects.ResourceClaim = seen.object
        key = (claim.metadata.namespace, claim.metadata.name)
        devices = devices_of(claim)
        if seen.gone:
            self._claims.pop(key, None)
            return []
        if self._claims.get(key) == devices:
            return []
        self._claims[key] = devices
        written: Records = []
        for consumer in claim.status.reserved_for or ():
            pod = self._pods.get(consumer.uid)
            if pod is not None and pod.known != devices and devices:
                now = pod._replace(known=devices, source="dra")
                self._pods[consumer.uid] = now
                written += self._hold(now, seen.seen_ms)
        return written

    def _devices_of(self, pod: objects.Pod) -> tuple[tuple[Device, ...] | None, str]:
        named = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or []}
        devices: list[Device] = []
        for claim in pod.spec.resource_claims or []:
            name = claim.resource_claim_name or named.get(claim.name)
            devices += self._claims.get((pod.metadata.namespace, name or ""), ())
        return (tuple(devices), "dra") if devices else (None, COUNTED)

    def learn(self, uses: Iterable[DeviceUse], at_ms: int) -> Records:
        """Which pods exporters see on which devices. When they are there is said by Kubernetes: labels linger."""
        found: dict[tuple[str, str], dict[str, set[Device]]] = defaultdict(lambda: defaultdict(set))
        for use in uses:
            if use.pod:
                device = Device(use.slot_index, use.instance)
                found[use.namespace or "", use.pod][use.node_uid].add(device)
        news = {key: of_node for key, of_node in found.items() if self._used.get(key) != of_node}
        self._used.update(news)
        if not news:
            return []
        written: Records = []
        for uid, pod in list(self._pods.items()):
            if (pod.record.namespace, pod.record.name) in news and pod.source in (COUNTED, "dcgm"):
                known, source = self._labelled(pod.record.namespace, pod.record.name, pod.node_name, pod.asked)
                if known and known != pod.known:
                    self._pods[uid] = pod._replace(known=known, source=source)
                    written += self._hold(self._pods[uid], at_ms)
        return written

    def _labelled(
        self, namespace: str, name: str, node_name: str, asked: gpus.Asked
    ) -> tuple[tuple[Device, ...] | None, str]:
        """The devices on which exporters saw a pod, if they are as many as it asked for."""
        node = self._nodes.get(node_name)
        devices = self._used.get((namespace, name), {}).get(node.record.node_uid, set()) if node else set()
        whole = {device for device in devices if device.instance == WHOLE_DEVICE} or devices
        return (tuple(sorted(whole)), "dcgm") if len(whole) == asked.devices else (None, COUNTED)

    def node_uid_of(self, name: str) -> str | None:
        """The node of that name; machines may call themselves by a longer one."""
        node = self._nodes.get(name) or self._nodes.get(name.partition(".")[0])
        return node.record.node_uid if node else None

    def keys(self) -> list[str]:
        """The keys of labels and annotations that mean something here."""
        rules = (*self.settings.team_rules, *self.settings.experiment_rules, *self.settings.user_rules)
        named = [key for rule in rules if (key := rule.partition(":")[2])]
        places = [place.key for place in (*QUEUE_PLACES, *pipelines.PLACES, *self.kinds.places())]
        return [*named, *places, *gpus.LABELS]

    def group_of(self, kind: str) -> str:
        """The API group of a kind, where the table has it; of kinds of the same name, the best known."""
        groups = [group for group, name in self.kinds.by_owner if name == kind]
        return "batch" if kind == "Job" else "apps" if kind in ("ReplicaSet", "StatefulSet") else next(iter(groups), "")

    def _take_queued(self, seen: Seen) -> Records:
        """Kueue's word on a job, which may have no pods yet."""
        queued: objects.Queued = seen.object
        if seen.gone:
            return list(self._queues.forget(queued.metadata.uid, seen.seen_ms))
        if not seen.chain:
            return []
        nobody = objects.Pod(objects.Meta(namespace=queued.metadata.namespace))
        identity = identify(self.name, nobody, seen.chain, self.kinds)
        state = self._workload(identity, None, seen.chain)
        if state.where.queue is None and queued.spec.queue_name:
            state.where = state.where._replace(queue=queued.spec.queue_name)
            state.renamed = True
        created_ms = ms(queued.metadata.creation_timestamp) or seen.seen_ms
        return self._named(state, created_ms, seen.seen_ms) + self._queues.take(queued, identity, seen)


def _check_rules(settings: Settings) -> None:
    for name in ("team_rules", "experiment_rules", "user_rules"):
        for rule in getattr(settings, name):
            if not is_rule(rule):
                raise RuleError(
                    f"Setting {name!r} has the rule {rule!r}. Known: label:KEY, annotation:KEY, namespace-label:KEY, "
                    "queue, namespace, name."
                )


def _changed_ms(
    node: objects.Node, ready: objects.Condition | None, now: Node, before: Node, seen_ms: int
) -> int:  # fmt: skip
    """When a node changed, as far as it says so."""
    at_ms: int | None = None
    if now.ready != before.ready and ready is not None:
        at_ms = ms(ready.last_transition_time)
    elif now.schedulable != before.schedulable and not now.schedulable:
        added = [ms(taint.time_added) for taint in node.spec.taints or [] if taint.key.endswith("/unschedulable")]
        at_ms = next((t for t in added if t is not None), None)
    return at_ms if at_ms is not None and at_ms > before.time_ms else max(seen_ms, before.time_ms + 1)


def _life(pod: objects.Pod, before: _Pod | None, seen: Seen) -> Life:
    """A pod's life as far as it is known: what was known before, and how it went, count too."""
    life, last = life_of(pod), before.record if before else None
    ended_ms, reason, started_ms = life.ended_ms, life.reason, life.started_ms
    if last is not None and last.ended_ms is not None:  # it ended once: nothing later changes that
        ended_ms, reason = last.ended_ms, reason or last.reason
    elif seen.gone and ended_ms is None:
        ended_ms = ended_by(pod, seen.seen_ms)
        reason = "Vanished" if seen.vanished else reason or "Deleted"
    if last is not None and last.started_ms is not None:
        started_ms = min(last.started_ms, started_ms or last.started_ms)
    return life._replace(started_ms=started_ms, ended_ms=ended_ms, reason=reason)


def _held(pod: _Pod) -> tuple[object, ...]:
    """What its holds depend on."""
    return (pod.record.scheduled_ms, pod.record.ended_ms, pod.node_name, pod.asked, pod.known)


def _nowhere(pod: Pod) -> Surroundings:
    """A workload of which only its pods were written down: its objects will be seen again, or are gone."""
    identity = Identity(pod.workload_uid or pod.pod_uid, "", "", pod.namespace, "", "", None, None)
    return Surroundings((), identity, {}, None)


def _queue(metas: Iterable[objects.Meta]) -> str | None:
    metas = list(metas)
    return next((said for place in QUEUE_PLACES for meta in metas if (said := at(place, meta))), None)


def _labels(pod: objects.Pod) -> str | None:
    labels = pod.metadata.labels
    return json.dumps(labels)[: 4 * LONGEST_TEXT] if labels else None
