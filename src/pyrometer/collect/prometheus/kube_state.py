"""Rebuilds past pods, nodes and owners from the kube-state-metrics that a Prometheus stores.

The result is what a watch would have observed: objects that appeared, changed and ended, in the order of time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import (
    Condition,
    ContainerObject,
    ContainerState,
    ContainerStatus,
    Meta,
    ObservedObject,
)
from pyrometer.collect.prometheus.api import Prometheus, Series
from pyrometer.collect.prometheus.chunks import read_chunks
from pyrometer.model import events
from pyrometer.model.records import Event
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

GPU_RESOURCES = "nvidia_com_.*|amd_com_gpu|gpu_intel_com_.*"
GPU_REQUESTS = f'kube_pod_container_resource_requests{{resource=~"{GPU_RESOURCES}"}}'
GPU_CAPACITY = f'kube_node_status_capacity{{resource=~"{GPU_RESOURCES}"}} > 0'

# Metrics of pods, read once per hour because names and times do not change during the life of a pod.
OF_PODS = (
    "kube_pod_info",
    "kube_pod_owner",
    "kube_pod_labels",
    "kube_pod_annotations",
    "kube_pod_created",
    "kube_pod_status_scheduled_time",
    "kube_pod_start_time",
    "kube_pod_completion_time",
    "kube_pod_container_state_started",
    "kube_pod_container_status_terminated_reason",
    'kube_pod_status_phase{phase=~"Succeeded|Failed|Pending"}',
    "kube_pod_status_reason",
)
OF_OWNERS = ("kube_job_owner", "kube_replicaset_owner", "kube_job_labels", "kube_namespace_labels")
OF_NODES = ("kube_node_labels", "kube_node_info", "kube_node_created")
NODE_STEP_MS = MS_PER_MINUTE
SILENCE_MS = 5 * MS_PER_MINUTE  # of all series: nothing was scraped

_OWNED = {"kube_job_owner": ("Job", "job_name"), "kube_replicaset_owner": ("ReplicaSet", "replicaset")}

OwnerOf = Callable[[str, str, str], Awaitable[objects.OwnerObject]]  # kind, namespace, name


class NameLookup(NamedTuple):
    """Lookups of names that kube-state-metrics does not provide."""

    keys: dict[str, str]  # label keys by their form in metrics: `label_pyrometer_io_team` → `pyrometer.io/team`
    node_uid_of: Callable[[str], str]
    gpu_model_of: Callable[[str], str | None]  # by the name of a node
    owner_of: OwnerOf


class KubeStateHistory(NamedTuple):
    """The observed objects in the order of time, and the gaps between scrapes."""

    seen: list[ObservedObject]
    gaps: list[Event]
    interval_ms: int  # between two scrapes
    pods: int
    addresses: dict[str, str]  # node names by address


class _Pod:
    """What is known of one pod from its series."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self.namespace, self.name, self.uid = namespace, name, uid
        self.node = ""
        self.owner: tuple[str, str] | None = None
        self.labels: dict[str, str] = {}
        self.annotations: dict[str, str] = {}
        self.times_ms: dict[str, int] = {}
        self.phase: str | None = None
        self.reason = ""
        self.requests: dict[str, dict[str, str | int | float]] = defaultdict(dict)
        self.first_ms, self.last_ms = 2**62, 0


def label_keys(keys: Iterable[str]) -> dict[str, str]:
    """Maps the form of label keys in metrics to the keys."""
    return {re.sub(r"[^a-zA-Z0-9_]", "_", key): key for key in keys}


async def history(api: Prometheus, cluster: str, from_ms: int, to_ms: int, names: NameLookup) -> KubeStateHistory:
    """Reads the pods that requested GPUs in a time range, the nodes with GPUs, and the owners."""
    pods: dict[tuple[str, str, str], _Pod] = {}
    intervals: list[int] = []
    async for chunk in read_chunks(api, GPU_REQUESTS, from_ms, to_ms):
        for series in chunk.series:
            _requested(pods, series, cluster)
            intervals += np.diff(series.times_ms[:50]).tolist()
    interval_ms = round(float(np.median(intervals))) if intervals else MS_PER_MINUTE
    reads = [*OF_PODS, *OF_OWNERS, *OF_NODES]
    by_metric: dict[str, list[Series]] = {}
    for name in reads:
        by_metric[name] = await _hourly(api, name, from_ms, to_ms, of_gpu_pods=name in OF_PODS)
    by_name = {(pod.namespace, pod.name): pod for pod in sorted(pods.values(), key=lambda p: p.first_ms)}
    for name in OF_PODS:
        for series in by_metric[name]:
            _describe(name.partition("{")[0], series, pods, by_name, names.keys)
    above = _owners(by_metric, names.keys)
    namespaces = _namespaces(by_metric["kube_namespace_labels"], names.keys)
    nodes, gaps = await _nodes(api, cluster, from_ms, to_ms, by_metric, names, interval_ms)
    seen = [ObservedObject(namespace, from_ms) for namespace in namespaces]
    chains: dict[tuple[str, str, str], tuple[objects.OwnerObject, ...]] = {}
    # The time of the last scrape. Pods without later samples may still exist.
    newest_ms = max((pod.last_ms for pod in pods.values()), default=to_ms)
    for pod in pods.values():
        ended_ms = _ended_ms(pod)
        if ended_ms is None or ended_ms > from_ms:
            chain = await _chain(pod, above, names.owner_of, chains)
            seen += _pod_changes(pod, chain, from_ms, newest_ms, interval_ms)
    # at the same time: nodes first, then ended pods, then new pods
    order: dict[type, int] = {objects.Namespace: 0, objects.NodeObject: 1, objects.PodObject: 2}
    seen = sorted([*seen, *nodes], key=lambda s: (s.seen_ms, order[type(s.object)], not s.gone))
    addresses = {
        series.labels["internal_ip"]: _label(series.labels, "node")
        for series in by_metric["kube_node_info"]
        if series.labels.get("internal_ip")
    }
    return KubeStateHistory(seen, gaps, interval_ms, len(pods), addresses)


async def _hourly(api: Prometheus, name: str, from_ms: int, to_ms: int, *, of_gpu_pods: bool) -> list[Series]:
    """The last values in every hour, which include short-lived pods."""
    query = f"last_over_time({name}[1h])"
    if of_gpu_pods:  # if `pod` is relabeled to the exporter's own name, all pods are returned
        query += f" and on (namespace, pod) last_over_time({GPU_REQUESTS}[1h])"
    return await api.at_steps(query, from_ms + MS_PER_HOUR, to_ms + MS_PER_HOUR - 1, MS_PER_HOUR)


# -- series → pods ----------------------------------------------------------------------------------------------------


def _label(labels: dict[str, str], name: str) -> str:
    """A label of the metric, even if a target label of that name made Prometheus rename it."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _requested(pods: dict[tuple[str, str, str], _Pod], series: Series, cluster: str) -> None:
    labels = series.labels
    namespace, name = _label(labels, "namespace"), _label(labels, "pod")
    uid = _label(labels, "uid") or f"{cluster}/{namespace}/Pod/{name}"
    pod = pods.setdefault((namespace, name, uid), _Pod(namespace, name, uid))
    pod.first_ms = min(pod.first_ms, int(series.times_ms[0]))
    pod.last_ms = max(pod.last_ms, int(series.times_ms[-1]))
    pod.node = _label(labels, "node") or pod.node
    pod.requests[_label(labels, "container")][_resource(labels["resource"])] = int(series.values[-1])


def _resource(name: str) -> str:
    """`nvidia_com_mig_1g_10gb` → `nvidia.com/mig-1g.10gb`."""
    mig = re.fullmatch(r"nvidia_com_mig_(\d+)g_(\d+)gb(.*)", name)
    if mig:
        return f"nvidia.com/mig-{mig[1]}g.{mig[2]}gb{mig[3].replace('_', '.')}"
    vendor, rest = re.fullmatch(r"(nvidia_com|amd_com|gpu_intel_com)_(.*)", name).groups()  # type: ignore[union-attr]
    return f"{vendor.replace('_', '.')}/{rest.replace('_', '.')}"


def _describe(
    name: str,
    series: Series,
    pods: dict[tuple[str, str, str], _Pod],
    by_name: dict[tuple[str, str], _Pod],
    keys: dict[str, str],
) -> None:
    """Adds one series to its pod, if that pod requests GPUs."""
    labels = series.labels
    key = (_label(labels, "namespace"), _label(labels, "pod"))
    uid = _label(labels, "uid")
    pod = pods.get((*key, uid)) if uid else by_name.get(key)
    if pod is None:
        return
    value = float(series.values[-1])
    if name == "kube_pod_info":
        pod.node = _label(labels, "node") or pod.node
    elif name == "kube_pod_owner":
        if labels.get("owner_is_controller") == "true":
            pod.owner = labels["owner_kind"], labels["owner_name"]
    elif name in ("kube_pod_labels", "kube_pod_annotations"):
        kind = name.removeprefix("kube_pod_").removesuffix("s")
        getattr(pod, f"{kind}s").update(_own_labels(labels, kind, keys))
    elif name == "kube_pod_status_phase":
        if value == 1:
            pod.phase = labels["phase"]
    elif name in ("kube_pod_status_reason", "kube_pod_container_status_terminated_reason"):
        if value == 1 and labels["reason"] != "Completed":
            pod.reason = labels["reason"]
    elif value > 0:
        moment = name.removeprefix("kube_pod_").removeprefix("container_")
        pod.times_ms[moment] = max(pod.times_ms.get(moment, 0), round(value * 1000))


def _own_labels(labels: dict[str, str], kind: str, keys: dict[str, str]) -> dict[str, str]:
    """Labels or annotations with their original keys where these are known."""
    own = {name.removeprefix(f"{kind}_"): value for name, value in labels.items() if name.startswith(f"{kind}_")}
    return {keys.get(name, name): value for name, value in own.items()}


def _pod_changes(
    pod: _Pod, chain: tuple[objects.OwnerObject, ...], from_ms: int, newest_ms: int, interval_ms: int
) -> Iterator[ObservedObject]:
    """The appearance and the end of a pod. A deleted pod ended after its last scrape."""
    times = pod.times_ms
    started_ms = max(
        times.get("created", pod.first_ms), times.get("status_scheduled_time", 0), times.get("state_started", 0)
    )
    ended_ms = _ended_ms(pod)
    yield ObservedObject(_pod(pod, None), max(min(started_ms, ended_ms or started_ms), from_ms), chain=chain)
    if ended_ms is not None:
        yield ObservedObject(_pod(pod, ended_ms), ended_ms, gone=True, chain=chain)
    elif pod.last_ms < newest_ms - 2 * interval_ms:
        yield ObservedObject(_pod(pod, None), pod.last_ms + interval_ms // 2, gone=True, chain=chain)


def _ended_ms(pod: _Pod) -> int | None:
    """When a finished pod ended: its completion time, or when it was last seen."""
    return pod.times_ms.get("completion_time", pod.last_ms) if pod.phase in ("Succeeded", "Failed") else None


def _pod(pod: _Pod, ended_ms: int | None) -> objects.PodObject:
    times = pod.times_ms
    is_waiting = pod.phase == "Pending" and not pod.node
    scheduled_ms = (
        times.get("status_scheduled_time") or times.get("start_time") or (None if is_waiting else pod.first_ms)
    )
    started = moment(times.get("state_started") or times.get("start_time"))
    state = ContainerState(running=objects.Running(started)) if started else ContainerState()
    if ended_ms is not None:
        code = 1 if pod.phase == "Failed" else 0
        state = ContainerState(
            terminated=objects.Terminated(code, 0, pod.reason, "", started or moment(scheduled_ms), moment(ended_ms))
        )
    conditions = [Condition("PodScheduled", "True", moment(scheduled_ms))] if scheduled_ms and pod.node else []
    running = "Running" if started else "Pending"
    return objects.PodObject(
        Meta(
            name=pod.name,
            uid=pod.uid,
            namespace=pod.namespace,
            labels=pod.labels,
            annotations=pod.annotations,
            creation_timestamp=moment(times.get("created") or scheduled_ms or pod.first_ms),
        ),
        objects.PodSpec(
            pod.node,
            [ContainerObject(name, objects.Resources(amounts)) for name, amounts in sorted(pod.requests.items())],
        ),
        objects.PodStatus(
            running if ended_ms is None else pod.phase or "Succeeded",
            pod.reason if pod.reason == "Evicted" else "",
            conditions=conditions,
            container_statuses=[ContainerStatus(name, state=state) for name in sorted(pod.requests)],
        ),
    )


def moment(ms: int | None) -> datetime | None:
    """Converts milliseconds to a time of the API."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


# -- series → owners --------------------------------------------------------------------------------------------------


class _KnownOwners(NamedTuple):
    """The owners and labels of owners, by kind, namespace and name."""

    owner: dict[tuple[str, str, str], tuple[str, str]]
    labels: dict[tuple[str, str, str], dict[str, str]]


def _owners(by_metric: dict[str, list[Series]], keys: dict[str, str]) -> _KnownOwners:
    above = _KnownOwners({}, {})
    for name, (kind, label) in _OWNED.items():
        for labels in (series.labels for series in by_metric[name]):
            if labels.get("owner_is_controller") == "true":
                owner = labels["owner_kind"], labels["owner_name"]
                above.owner[kind, _label(labels, "namespace"), labels[label]] = owner
    for labels in (series.labels for series in by_metric["kube_job_labels"]):
        above.labels["Job", _label(labels, "namespace"), labels["job_name"]] = _own_labels(labels, "label", keys)
    return above


async def _chain(
    pod: _Pod,
    above: _KnownOwners,
    owner_of: OwnerOf,
    known: dict[tuple[str, str, str], tuple[objects.OwnerObject, ...]],
) -> tuple[objects.OwnerObject, ...]:
    """The owners of a pod, the nearest first."""
    if pod.owner is None or pod.owner[0] == "Node":
        return ()
    nearest = (pod.owner[0], pod.namespace, pod.owner[1])
    if nearest not in known:
        chain: list[objects.OwnerObject] = []
        next_one: tuple[str, str] | None = pod.owner
        while next_one is not None and len(chain) < 10:
            key = (next_one[0], pod.namespace, next_one[1])
            owner = await owner_of(*key)
            owner.metadata.labels = {**above.labels.get(key, {}), **(owner.metadata.labels or {})}
            chain.append(owner)
            next_one = above.owner.get(key)
        known[nearest] = tuple(chain)
    return known[nearest]


def _namespaces(by_metric: list[Series], keys: dict[str, str]) -> Iterator[objects.Namespace]:
    for series in by_metric:
        name = _label(series.labels, "namespace")
        yield objects.Namespace(Meta(name=name, labels=_own_labels(series.labels, "label", keys)))


# -- series → nodes ---------------------------------------------------------------------------------------------------


async def _nodes(
    api: Prometheus,
    cluster: str,
    from_ms: int,
    to_ms: int,
    by_metric: dict[str, list[Series]],
    names: NameLookup,
    interval_ms: int,
) -> tuple[list[ObservedObject], list[Event]]:
    """The changes of nodes with GPUs, and the gaps between scrapes."""
    capacity = await _stepwise(api, GPU_CAPACITY, from_ms, to_ms)
    ready = await _stepwise(
        api,
        f'kube_node_status_condition{{condition="Ready",status="true"}} and on (node) ({GPU_CAPACITY})',
        from_ms,
        to_ms,
    )
    cordoned = await _stepwise(api, f"kube_node_spec_unschedulable and on (node) ({GPU_CAPACITY})", from_ms, to_ms)
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for series in by_metric["kube_node_labels"]:
        labels[_label(series.labels, "node")].update(_own_labels(series.labels, "label", names.keys))
    steps: dict[str, dict[int, dict[str, str | int]]] = defaultdict(lambda: defaultdict(dict))
    for series in capacity:
        resource = _resource(series.labels["resource"])
        of_node = steps[_label(series.labels, "node")]
        for at_ms, amount in zip(series.times_ms.tolist(), series.values.tolist(), strict=True):
            of_node[at_ms][resource] = int(amount)
    states = {"ready": _by_node(ready), "cordoned": _by_node(cordoned)}
    gaps = _gaps(cluster, from_ms, to_ms, {at_ms for of_node in steps.values() for at_ms in of_node}, interval_ms)
    created = {_label(s.labels, "node"): round(float(s.values[-1]) * 1000) for s in by_metric["kube_node_created"]}
    seen: list[ObservedObject] = []
    for name, of_node in steps.items():
        # it existed before the first scrape: since its creation or, if that is unknown, one step earlier
        born_ms = max(from_ms, created.get(name, min(of_node) - NODE_STEP_MS))
        seen += _node_changes(name, dict(of_node), states, labels[name], names, (born_ms, to_ms), gaps)
    return seen, gaps


async def _stepwise(api: Prometheus, query: str, from_ms: int, to_ms: int) -> list[Series]:
    found: list[Series] = []
    day_ms = 11_000 * NODE_STEP_MS // 10  # servers return at most 11,000 points per series
    first_ms = -(-from_ms // NODE_STEP_MS) * NODE_STEP_MS
    for start_ms in range(first_ms, to_ms, day_ms):
        end_ms = min(start_ms + day_ms - NODE_STEP_MS, to_ms)
        found += await api.at_steps(query, start_ms, end_ms, NODE_STEP_MS)
    return found


def _by_node(found: list[Series]) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for series in found:
        of_node = values[_label(series.labels, "node")]
        of_node.update(zip(series.times_ms.tolist(), series.values.tolist(), strict=True))
    return values


def _node_changes(
    name: str,
    capacity: dict[int, dict[str, str | int]],
    states: dict[str, dict[str, dict[int, float]]],
    labels: dict[str, str],
    names: NameLookup,
    span: tuple[int, int],
    gaps: list[Event],
) -> Iterator[ObservedObject]:
    """The first observation of a node, and each change of its state."""
    if "nvidia.com/gpu.product" not in labels and (model := names.gpu_model_of(name)):
        labels = {**labels, "nvidia.com/gpu.product": model}
    before: tuple[object, ...] | None = None
    node: objects.NodeObject | None = None
    last_ms = 0
    for at_ms in sorted(capacity):
        ready = states["ready"].get(name, {}).get(at_ms, 1.0) == 1
        cordoned = states["cordoned"].get(name, {}).get(at_ms, 0.0) == 1
        state = (capacity[at_ms], ready, cordoned)
        if state != before:
            before = state
            node = objects.NodeObject(
                Meta(name=name, uid=names.node_uid_of(name), labels=labels),
                objects.NodeSpec(unschedulable=cordoned),
                objects.NodeStatus(
                    capacity[at_ms], capacity[at_ms], [Condition("Ready", "True" if ready else "False", moment(at_ms))]
                ),
            )
            yield ObservedObject(node, at_ms if last_ms else min(at_ms, span[0]))
        last_ms = at_ms
    gap_end_ms = max((g.time_ms + (g.duration_ms or 0) for g in gaps if g.time_ms <= last_ms + SILENCE_MS), default=0)
    if node is not None and max(last_ms, gap_end_ms) < span[1] - SILENCE_MS:
        yield ObservedObject(node, last_ms + NODE_STEP_MS, gone=True)


def _gaps(cluster: str, from_ms: int, to_ms: int, steps: set[int], interval_ms: int) -> list[Event]:
    """Gaps without a value of any node: nothing was scraped, so changes are unknown."""
    limit_ms = max(SILENCE_MS, 3 * interval_ms)
    edges = [from_ms, *sorted(steps), to_ms]
    return [
        Event(time_ms=before_ms, kind=events.WATCH_GAP, duration_ms=after_ms - before_ms, cluster=cluster)
        for before_ms, after_ms in pairwise(edges)
        if after_ms - before_ms > limit_ms and steps
    ]
