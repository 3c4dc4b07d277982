"""kube-state-metrics, as Prometheus remembers it: the pods, nodes and owners of a time that is over, as objects.

They are handed over as a watch would have seen them: what came, what changed, what ended, in the order of time.
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
from pyrometer.collect.prometheus.chunks import in_pieces
from pyrometer.model import events
from pyrometer.model.records import Event
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

GPU_RESOURCES = "nvidia_com_.*|amd_com_gpu|gpu_intel_com_.*"
GPU_REQUESTS = f'kube_pod_container_resource_requests{{resource=~"{GPU_RESOURCES}"}}'
GPU_CAPACITY = f'kube_node_status_capacity{{resource=~"{GPU_RESOURCES}"}} > 0'

# What is said of pods, as one value an hour: names and moments do not change in a pod's life.
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
SILENCE_MS = 5 * MS_PER_MINUTE  # of everything: nobody scraped

_OWNED = {"kube_job_owner": ("Job", "job_name"), "kube_replicaset_owner": ("ReplicaSet", "replicaset")}

OwnerOf = Callable[[str, str, str], Awaitable[objects.OwnerObject]]  # kind, namespace, name


class Names(NamedTuple):
    """What kube-state-metrics does not say, and others may know."""

    keys: dict[str, str]  # label keys by their form in metrics: `label_pyrometer_io_team` → `pyrometer.io/team`
    node_uid_of: Callable[[str], str]
    gpu_model_of: Callable[[str], str | None]  # of a node, by its name
    owner_of: OwnerOf


class KubeStateHistory(NamedTuple):
    """What was there, in the order of time, and when nobody looked."""

    seen: list[ObservedObject]
    gaps: list[Event]
    interval_ms: int  # between two scrapes
    pods: int
    addresses: dict[str, str]  # names of nodes by their addresses


class _Pod:
    """What the series say of one pod."""

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
    """The form that keys of labels have in metrics, and back."""
    return {re.sub(r"[^a-zA-Z0-9_]", "_", key): key for key in keys}


async def history(api: Prometheus, cluster: str, from_ms: int, to_ms: int, names: Names) -> KubeStateHistory:
    """The pods that asked for GPUs in a time, the nodes that had any, and who owned what."""
    pods: dict[tuple[str, str, str], _Pod] = {}
    intervals: list[int] = []
    async for piece in in_pieces(api, GPU_REQUESTS, from_ms, to_ms):
        for series in piece.series:
            _requested(pods, series, cluster)
            intervals += np.diff(series.times_ms[:50]).tolist()
    interval_ms = round(float(np.median(intervals))) if intervals else MS_PER_MINUTE
    reads = [*OF_PODS, *OF_OWNERS, *OF_NODES]
    told: dict[str, list[Series]] = {}
    for name in reads:
        told[name] = await _hourly(api, name, from_ms, to_ms, of_gpu_pods=name in OF_PODS)
    by_name = {(pod.namespace, pod.name): pod for pod in sorted(pods.values(), key=lambda p: p.first_ms)}
    for name in OF_PODS:
        for series in told[name]:
            _describe(name.partition("{")[0], series, pods, by_name, names.keys)
    above = _owners(told, names.keys)
    namespaces = _namespaces(told["kube_namespace_labels"], names.keys)
    nodes, gaps = await _nodes(api, cluster, from_ms, to_ms, told, names, interval_ms)
    seen = [ObservedObject(namespace, from_ms) for namespace in namespaces]
    chains: dict[tuple[str, str, str], tuple[objects.OwnerObject, ...]] = {}
    # Everything was last scraped then: what is not there afterwards may only not have been looked at.
    newest_ms = max((pod.last_ms for pod in pods.values()), default=to_ms)
    for pod in pods.values():
        ended_ms = _ended_ms(pod)
        if ended_ms is None or ended_ms > from_ms:
            chain = await _chain(pod, above, names.owner_of, chains)
            seen += _lives(pod, chain, from_ms, newest_ms, interval_ms)
    # of what happens at once: machines first, then who ended, then who came
    order: dict[type, int] = {objects.Namespace: 0, objects.NodeObject: 1, objects.PodObject: 2}
    seen = sorted([*seen, *nodes], key=lambda s: (s.seen_ms, order[type(s.object)], not s.gone))
    addresses = {
        series.labels["internal_ip"]: _said(series.labels, "node")
        for series in told["kube_node_info"]
        if series.labels.get("internal_ip")
    }
    return KubeStateHistory(seen, gaps, interval_ms, len(pods), addresses)


async def _hourly(api: Prometheus, name: str, from_ms: int, to_ms: int, *, of_gpu_pods: bool) -> list[Series]:
    """The last value of every hour, so that what came and went in it is there."""
    query = f"last_over_time({name}[1h])"
    if of_gpu_pods:  # whoever rewrites `pod` with the exporter's own name gets all pods, and no less
        query += f" and on (namespace, pod) last_over_time({GPU_REQUESTS}[1h])"
    return await api.at_steps(query, from_ms + MS_PER_HOUR, to_ms + MS_PER_HOUR - 1, MS_PER_HOUR)


# -- series → pods ----------------------------------------------------------------------------------------------------


def _said(labels: dict[str, str], name: str) -> str:
    """A label of the metric's own, whether or not Prometheus has given that name to the target's."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _requested(pods: dict[tuple[str, str, str], _Pod], series: Series, cluster: str) -> None:
    labels = series.labels
    namespace, name = _said(labels, "namespace"), _said(labels, "pod")
    uid = _said(labels, "uid") or f"{cluster}/{namespace}/Pod/{name}"
    pod = pods.setdefault((namespace, name, uid), _Pod(namespace, name, uid))
    pod.first_ms = min(pod.first_ms, int(series.times_ms[0]))
    pod.last_ms = max(pod.last_ms, int(series.times_ms[-1]))
    pod.node = _said(labels, "node") or pod.node
    pod.requests[_said(labels, "container")][_resource(labels["resource"])] = int(series.values[-1])


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
    """What one series says of its pod, if it is one that asks for GPUs."""
    labels = series.labels
    key = (_said(labels, "namespace"), _said(labels, "pod"))
    uid = _said(labels, "uid")
    pod = pods.get((*key, uid)) if uid else by_name.get(key)
    if pod is None:
        return
    value = float(series.values[-1])
    if name == "kube_pod_info":
        pod.node = _said(labels, "node") or pod.node
    elif name == "kube_pod_owner":
        if labels.get("owner_is_controller") == "true":
            pod.owner = labels["owner_kind"], labels["owner_name"]
    elif name in ("kube_pod_labels", "kube_pod_annotations"):
        kind = name.removeprefix("kube_pod_").removesuffix("s")
        getattr(pod, f"{kind}s").update(_words(labels, kind, keys))
    elif name == "kube_pod_status_phase":
        if value == 1:
            pod.phase = labels["phase"]
    elif name in ("kube_pod_status_reason", "kube_pod_container_status_terminated_reason"):
        if value == 1 and labels["reason"] != "Completed":
            pod.reason = labels["reason"]
    elif value > 0:
        moment = name.removeprefix("kube_pod_").removeprefix("container_")
        pod.times_ms[moment] = max(pod.times_ms.get(moment, 0), round(value * 1000))


def _words(labels: dict[str, str], kind: str, keys: dict[str, str]) -> dict[str, str]:
    """Labels or annotations in their own words, as far as anybody knows those."""
    own = {name.removeprefix(f"{kind}_"): value for name, value in labels.items() if name.startswith(f"{kind}_")}
    return {keys.get(name, name): value for name, value in own.items()}


def _lives(
    pod: _Pod, chain: tuple[objects.OwnerObject, ...], from_ms: int, newest_ms: int, interval_ms: int
) -> Iterator[ObservedObject]:
    """A pod when it came, and when it ended; one that was deleted ended after it was last scraped."""
    times = pod.times_ms
    came_ms = max(
        times.get("created", pod.first_ms), times.get("status_scheduled_time", 0), times.get("state_started", 0)
    )
    ended_ms = _ended_ms(pod)
    yield ObservedObject(_pod(pod, None), max(min(came_ms, ended_ms or came_ms), from_ms), chain=chain)
    if ended_ms is not None:
        yield ObservedObject(_pod(pod, ended_ms), ended_ms, gone=True, chain=chain)
    elif pod.last_ms < newest_ms - 2 * interval_ms:
        yield ObservedObject(_pod(pod, None), pod.last_ms + interval_ms // 2, gone=True, chain=chain)


def _ended_ms(pod: _Pod) -> int | None:
    """When a pod that is over ended: as it says, else when it was last seen."""
    return pod.times_ms.get("completion_time", pod.last_ms) if pod.phase in ("Succeeded", "Failed") else None


def _pod(pod: _Pod, ended_ms: int | None) -> objects.PodObject:
    times = pod.times_ms
    waits = pod.phase == "Pending" and not pod.node
    scheduled_ms = times.get("status_scheduled_time") or times.get("start_time") or (None if waits else pod.first_ms)
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
    """A time as the API has it."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


# -- series → owners --------------------------------------------------------------------------------------------------


class _Above(NamedTuple):
    """Owners that are known by name: who owns them, and their labels."""

    owner: dict[tuple[str, str, str], tuple[str, str]]
    labels: dict[tuple[str, str, str], dict[str, str]]


def _owners(told: dict[str, list[Series]], keys: dict[str, str]) -> _Above:
    above = _Above({}, {})
    for name, (kind, label) in _OWNED.items():
        for labels in (series.labels for series in told[name]):
            if labels.get("owner_is_controller") == "true":
                owner = labels["owner_kind"], labels["owner_name"]
                above.owner[kind, _said(labels, "namespace"), labels[label]] = owner
    for labels in (series.labels for series in told["kube_job_labels"]):
        above.labels["Job", _said(labels, "namespace"), labels["job_name"]] = _words(labels, "label", keys)
    return above


async def _chain(
    pod: _Pod, above: _Above, owner_of: OwnerOf, known: dict[tuple[str, str, str], tuple[objects.OwnerObject, ...]]
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


def _namespaces(told: list[Series], keys: dict[str, str]) -> Iterator[objects.Namespace]:
    for series in told:
        name = _said(series.labels, "namespace")
        yield objects.Namespace(Meta(name=name, labels=_words(series.labels, "label", keys)))


# -- series → nodes ---------------------------------------------------------------------------------------------------


async def _nodes(
    api: Prometheus,
    cluster: str,
    from_ms: int,
    to_ms: int,
    told: dict[str, list[Series]],
    names: Names,
    interval_ms: int,
) -> tuple[list[ObservedObject], list[Event]]:
    """Nodes with GPUs when they came, changed and went; and when nobody scraped."""
    capacity = await _stepwise(api, GPU_CAPACITY, from_ms, to_ms)
    ready = await _stepwise(
        api,
        f'kube_node_status_condition{{condition="Ready",status="true"}} and on (node) ({GPU_CAPACITY})',
        from_ms,
        to_ms,
    )
    cordoned = await _stepwise(api, f"kube_node_spec_unschedulable and on (node) ({GPU_CAPACITY})", from_ms, to_ms)
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for series in told["kube_node_labels"]:
        labels[_said(series.labels, "node")].update(_words(series.labels, "label", names.keys))
    steps: dict[str, dict[int, dict[str, str | int]]] = defaultdict(lambda: defaultdict(dict))
    for series in capacity:
        resource = _resource(series.labels["resource"])
        of_node = steps[_said(series.labels, "node")]
        for at_ms, amount in zip(series.times_ms.tolist(), series.values.tolist(), strict=True):
            of_node[at_ms][resource] = int(amount)
    looks = {"ready": _by_node(ready), "cordoned": _by_node(cordoned)}
    gaps = _gaps(cluster, from_ms, to_ms, {at_ms for of_node in steps.values() for at_ms in of_node}, interval_ms)
    created = {_said(s.labels, "node"): round(float(s.values[-1]) * 1000) for s in told["kube_node_created"]}
    seen: list[ObservedObject] = []
    for name, of_node in steps.items():
        # it was there before it was first scraped: since it was made, or else for all we know
        born_ms = max(from_ms, created.get(name, min(of_node) - NODE_STEP_MS))
        seen += _node_changes(name, dict(of_node), looks, labels[name], names, (born_ms, to_ms), gaps)
    return seen, gaps


async def _stepwise(api: Prometheus, query: str, from_ms: int, to_ms: int) -> list[Series]:
    found: list[Series] = []
    day_ms = 11_000 * NODE_STEP_MS // 10  # servers give at most 11,000 points of a series
    first_ms = -(-from_ms // NODE_STEP_MS) * NODE_STEP_MS
    for start_ms in range(first_ms, to_ms, day_ms):
        end_ms = min(start_ms + day_ms - NODE_STEP_MS, to_ms)
        found += await api.at_steps(query, start_ms, end_ms, NODE_STEP_MS)
    return found


def _by_node(found: list[Series]) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for series in found:
        of_node = values[_said(series.labels, "node")]
        of_node.update(zip(series.times_ms.tolist(), series.values.tolist(), strict=True))
    return values


def _node_changes(
    name: str,
    capacity: dict[int, dict[str, str | int]],
    looks: dict[str, dict[str, dict[int, float]]],
    labels: dict[str, str],
    names: Names,
    span: tuple[int, int],
    gaps: list[Event],
) -> Iterator[ObservedObject]:
    """A node as it was first seen, and whenever it looked otherwise."""
    if "nvidia.com/gpu.product" not in labels and (model := names.gpu_model_of(name)):
        labels = {**labels, "nvidia.com/gpu.product": model}
    before: tuple[object, ...] | None = None
    node: objects.NodeObject | None = None
    last_ms = 0
    for at_ms in sorted(capacity):
        ready = looks["ready"].get(name, {}).get(at_ms, 1.0) == 1
        cordoned = looks["cordoned"].get(name, {}).get(at_ms, 0.0) == 1
        look = (capacity[at_ms], ready, cordoned)
        if look != before:
            before = look
            node = objects.NodeObject(
                Meta(name=name, uid=names.node_uid_of(name), labels=labels),
                objects.NodeSpec(unschedulable=cordoned),
                objects.NodeStatus(
                    capacity[at_ms], capacity[at_ms], [Condition("Ready", "True" if ready else "False", moment(at_ms))]
                ),
            )
            yield ObservedObject(node, at_ms if last_ms else min(at_ms, span[0]))
        last_ms = at_ms
    blind_until_ms = max(
        (g.time_ms + (g.duration_ms or 0) for g in gaps if g.time_ms <= last_ms + SILENCE_MS), default=0
    )
    if node is not None and max(last_ms, blind_until_ms) < span[1] - SILENCE_MS:
        yield ObservedObject(node, last_ms + NODE_STEP_MS, gone=True)


def _gaps(cluster: str, from_ms: int, to_ms: int, steps: set[int], interval_ms: int) -> list[Event]:
    """When no node of all had a value: nobody scraped, and who came and went is not known."""
    limit_ms = max(SILENCE_MS, 3 * interval_ms)
    edges = [from_ms, *sorted(steps), to_ms]
    return [
        Event(time_ms=before_ms, kind=events.WATCH_GAP, duration_ms=after_ms - before_ms, cluster=cluster)
        for before_ms, after_ms in pairwise(edges)
        if after_ms - before_ms > limit_ms and steps
    ]
