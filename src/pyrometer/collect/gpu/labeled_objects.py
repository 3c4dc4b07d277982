"""Machines and pods of which nothing but telemetry's labels is known, as the objects that a watch would have seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from pyrometer.collect.gpu.device import DeviceUse, SlotAddress
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ContainerObject, Meta, ObservedObject
from pyrometer.model.records import WHOLE_DEVICE

# `llama-worker-3`, `sft-0-1-x7k2p`: pods of one job, where only their names say so.
_MEMBER = re.compile(r"(?:-(?:worker|master|launcher|head|chief|ps|node))?(?:-\d{1,5}){1,2}(?:-[a-z0-9]{5})?$")


def machines(places: Iterable[SlotAddress], uid_of: Mapping[str, str]) -> Iterator[objects.NodeObject]:
    """The machines that telemetry is about: as many devices as the highest index says."""
    of_host: dict[str, list[SlotAddress]] = {}
    for place in places:
        of_host.setdefault(place.hosts[0], []).append(place)
    for host, mine in of_host.items():
        model = next((place.gpu_model for place in mine if place.gpu_model), None)
        yield machine(host, uid_of.get(host, f"host/{host}"), max(p.slot_index for p in mine) + 1, model)


def machine(name: str, uid: str, gpus: int, model: str | None) -> objects.NodeObject:
    """A node of so many GPUs."""
    return objects.NodeObject(
        Meta(name=name, uid=uid, labels={"nvidia.com/gpu.product": model} if model else {}),
        status=objects.NodeStatus({"nvidia.com/gpu": gpus}),
    )


def pods(
    cluster: str, uses: Mapping[DeviceUse, tuple[int, int]], node_names: Mapping[str, str], still_ms: int
) -> Iterator[ObservedObject]:
    """The pods that exporters saw on devices, when they came and, if they were not seen since `still_ms`, when they
    went. Labels linger: ends are late by minutes."""
    mine: dict[tuple[str, str, str], list[tuple[DeviceUse, tuple[int, int]]]] = {}
    for use, span in uses.items():
        if use.pod:
            mine.setdefault((use.namespace or "", use.pod, use.node_uid), []).append((use, span))
    for (namespace, name, node_uid), seen in mine.items():
        first_ms, last_ms = min(span[0] for _, span in seen), max(span[1] for _, span in seen)
        devices = len({(use.slot_index, use.instance) for use, _ in seen if use.instance == WHOLE_DEVICE})
        node = node_names.get(node_uid, node_uid.removeprefix("host/"))
        pod = _pod(cluster, namespace, name, node, devices or 1, datetime.fromtimestamp(first_ms / 1000, UTC))
        chain = tuple(_job(cluster, namespace, name))
        yield ObservedObject(pod, first_ms, chain=chain)
        if last_ms < still_ms:
            yield ObservedObject(pod, last_ms, gone=True, chain=chain)


def _pod(cluster: str, namespace: str, name: str, node: str, devices: int, began: datetime) -> objects.PodObject:
    amounts: dict[str, str | int | float] = {"nvidia.com/gpu": devices}
    runs = objects.ContainerState(running=objects.Running(began))
    return objects.PodObject(
        # one that comes again under the same name is another
        Meta(
            name=name,
            uid=f"{cluster}/{namespace}/Pod/{name}/{began:%Y%m%dT%H%M%S}",
            namespace=namespace,
            creation_timestamp=began,
        ),
        objects.PodSpec(node, [ContainerObject("main", objects.Resources(amounts))]),
        objects.PodStatus(
            "Running",
            conditions=[objects.Condition("PodScheduled", "True", began)],
            container_statuses=[objects.ContainerStatus("main", state=runs)],
        ),
    )


def _job(cluster: str, namespace: str, pod: str) -> Iterator[objects.OwnerObject]:
    """What pods with names alike belong to."""
    name = _MEMBER.sub("", pod)
    if name and name != pod:
        meta = Meta(name=name, uid=f"{cluster}/{namespace}/Pods/{name}", namespace=namespace)
        yield objects.OwnerObject(meta, "v1", "Pods")
