"""Where a rank runs: its node, its device and its pod, according to its own report and the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pyrometer.collect.gpu.device import host_uid
from pyrometer.collect.otlp.messages import EventMessage, RankIdentity
from pyrometer.model.records import OWN_POD, Allocation, Pod, Run, Slot

LOCAL = "local"  # cluster, namespace and team of what runs outside of Kubernetes
CPU = "cpu:"  # prefix of the devices of runs that have no GPU
SOURCE = "sdk"


class RunContext(NamedTuple):
    """The newest records of the runs, pods and devices that messages name."""

    ranks: Iterable[Run] = ()  # of launches
    last_report_ms: Mapping[tuple[str, int], int] = {}  # when ranks last reported, by launch and rank
    restored: Mapping[tuple[str, int], EventMessage] = {}  # the last checkpoint that ranks loaded, by launch and rank
    attempts: Iterable[tuple[str, int, str]] = ()  # run, attempt, launch
    checkpoints: Iterable[tuple[str, int, str, int, int]] = ()  # run, attempt, path, time, step
    pods: Iterable[Pod] = ()
    slots: Iterable[Slot] = ()
    holds: Iterable[Allocation] = ()  # of those pods, and on those slots


class RankLocation(NamedTuple):
    """Where a rank runs. Without a slot its time is not accounted."""

    node_uid: str
    slot_index: int | None
    pod_uid: str | None = None
    workload_uid: str | None = None
    run: str | None = None  # name of its pod's run, for programs that do not name it
    cluster: str | None = None
    own: bool = False  # whether it holds its device itself, without a pod
    unseen: bool = False  # whether no source has described its device
    settled: bool = True  # whether it has reported which kind of device it uses


class RankLocator:
    """Finds the pod and the device of a rank by what the rank reports about itself."""

    def __init__(self, known: RunContext, node_uid_of: Callable[[str], str | None]) -> None:
        self._pods = {pod.pod_uid: pod for pod in known.pods}
        self._named = {(pod.namespace, pod.name): pod for pod in sorted(known.pods, key=lambda pod: pod.time_ms)}
        self._slots = {slot.uuid: slot for slot in sorted(known.slots, key=lambda slot: slot.time_ms)}
        self._of_pod: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._on_slot: dict[tuple[str, int], list[Allocation]] = defaultdict(list)
        for hold in known.holds:
            if hold.source != SOURCE:
                self._of_pod[hold.pod_uid].add((hold.node_uid, hold.slot_index))
                self._on_slot[hold.node_uid, hold.slot_index].append(hold)
        self._node_uid_of = node_uid_of

    def locate(self, who: RankIdentity, *, steps: bool, local: bool, patient: bool) -> RankLocation | None:
        """Where a rank runs; None while that may still become known. A rank that reports steps and no GPU has none."""
        in_kubernetes = who.pod_uid is not None or who.pod_name is not None
        pod = self._pods.get(who.pod_uid or "") or self._named.get((who.namespace or "", who.pod_name or ""))
        if patient and in_kubernetes and pod is None:
            return None
        slot = self._slot(who, pod)
        on_gpu = who.device == "cuda" or (who.device is None and (slot or who.gpu_uuid or who.gpu_index is not None))
        host = who.host or "unknown"
        if not on_gpu:
            settled = steps or who.device is not None
            virtual = f"{CPU}{host}:{who.launch}:{who.rank}"
            own = settled and local and pod is None
            return _locate(who, pod, virtual, 0 if own else None, own=own)._replace(settled=settled)
        if patient and in_kubernetes and slot is None:
            return None
        if slot is not None and pod is None:
            pod = self._pods.get(self._holder(slot, who) or "")
        if slot is not None:
            return _locate(who, pod, *slot, own=pod is None)
        index = who.gpu_index if who.gpu_index is not None else who.local_rank or 0
        node_uid = self._node_uid_of(host) or (pod.node_uid if pod else None) or host_uid(host)
        return _locate(who, pod, node_uid, min(index, 2**15 - 1), own=pod is None)._replace(unseen=True)

    def _slot(self, who: RankIdentity, pod: Pod | None) -> tuple[str, int] | None:
        known = self._slots.get(who.gpu_uuid or "")
        if known is not None:
            return known.node_uid, known.slot_index
        if pod is None:
            return None
        held = sorted(self._of_pod.get(pod.pod_uid, ()))
        number = who.local_rank if who.local_rank is not None else who.rank
        return held[number] if number < len(held) else None

    def _holder(self, slot: tuple[str, int], who: RankIdentity) -> str | None:
        """The pod that holds a slot when a process starts on it."""
        at_ms = who.started_ms or 2**62
        found = [
            hold
            for hold in self._on_slot.get(slot, ())
            if hold.from_ms <= at_ms and (hold.to_ms is None or hold.to_ms > at_ms)
        ]
        return max(found, key=lambda hold: hold.from_ms).pod_uid if found else None


def _locate(who: RankIdentity, pod: Pod | None, node_uid: str, slot_index: int | None, *, own: bool) -> RankLocation:
    if pod is not None:
        return RankLocation(
            node_uid=node_uid,
            slot_index=slot_index,
            pod_uid=pod.pod_uid,
            workload_uid=pod.workload_uid,
            run=_pod_run(pod),
            cluster=pod.cluster,
        )
    if own:
        return RankLocation(node_uid, slot_index, f"{OWN_POD}{who.launch}:{who.rank}", cluster=LOCAL, own=True)
    return RankLocation(node_uid, slot_index, who.pod_uid)


def location_of(run: Run) -> RankLocation:
    """Where a rank runs, according to its record."""
    own = run.pod_uid == f"{OWN_POD}{run.launch}:{run.rank}"
    settled = run.slot_index is not None or run.first_step_ms is not None
    workload_uid = None if own else run.workload_uid
    node_uid = run.node_uid or f"{CPU}{LOCAL}:{run.launch}:{run.rank}"
    return RankLocation(
        node_uid=node_uid,
        slot_index=run.slot_index,
        pod_uid=run.pod_uid,
        workload_uid=workload_uid,
        run=run.run if workload_uid else None,
        cluster=run.cluster,
        own=own,
        settled=settled,
    )


def _pod_run(pod: Pod) -> str | None:
    """The run of a pod: its workload, or in a pipeline one of its steps."""
    step = pod.pipeline_step if pod.pipeline_attempt is not None else None
    return f"{pod.workload_uid}/{step}" if pod.workload_uid and step else pod.workload_uid
