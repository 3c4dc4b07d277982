"""Builds node and pod objects from the labels of telemetry, for clusters without any other source of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from pyrometer.collect.gpu.device import DeviceUse, SlotAddress
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ContainerObject, Meta, ObservedObject
from pyrometer.model.records import WHOLE_DEVICE

# Pods of one job that can only be recognized by name: `llama-worker-3`, `sft-0-1-x7k2p`.
_MEMBER = re.compile(r"(?:-(?:worker|master|launcher|head|chief|ps|node))?(?:-\d{1,5}){1,2}(?:-[a-z0-9]{5})?$")


def machines(addresses: Iterable[SlotAddress], uid_of: Mapping[str, str]) -> Iterator[objects.NodeObject]:
    """The nodes in telemetry. The highest device index gives the number of devices."""
    of_host: dict[str, list[SlotAddress]] = {}
    for address in addresses:
        of_host.setdefault(address.hosts[0], []).append(address)
    for host, of_one in of_host.items():
        model = next((address.gpu_model for address in of_one if address.gpu_model), None)
        yield machine(host, uid_of.get(host, f"host/{host}"), max(address.slot_index for address in of_one) + 1, model)


def machine(name: str, uid: str, gpus: int, model: str | None) -> objects.NodeObject:
    """A node with this number of GPUs."""
    return objects.NodeObject(
        Meta(name=name, uid=uid, labels={"nvidia.com/gpu.product": model} if model else {}),
        status=objects.NodeStatus({"nvidia.com/gpu": gpus}),
    )


def pods(
    cluster: str, uses: Mapping[DeviceUse, tuple[int, int]], node_names: Mapping[str, str], still_ms: int
) -> Iterator[ObservedObject]:
    """Pods in device labels: when they appeared and, if they were last seen before `still_ms`, when they ended.

    Labels remain for minutes after a pod ends, so its end is late.
    """
    on_node: dict[tuple[str, str, str], list[tuple[DeviceUse, tuple[int, int]]]] = {}
    for use, span in uses.items():
        if use.pod:
            on_node.setdefault((use.namespace or "", use.pod, use.node_uid), []).append((use, span))
    for (namespace, name, node_uid), seen in on_node.items():
        first_ms, last_ms = min(span[0] for _, span in seen), max(span[1] for _, span in seen)
        devices = len({(use.slot_index, use.instance) for use, _ in seen if use.instance == WHOLE_DEVICE})
        node = node_names.get(node_uid, node_uid.removeprefix("host/"))
        pod = _pod(cluster, namespace, name, node, devices or 1, datetime.fromtimestamp(first_ms / 1000, UTC))
        chain = tuple(_job(cluster, namespace, name))
        yield ObservedObject(pod, first_ms, chain=chain)
        if last_ms < still_ms:
            yield ObservedObject(pod, last_ms, gone=True, chain=chain)


def _pod(cluster: str, namespace: str, name: str, node: str, devices: int, started: datetime) -> objects.PodObject:
    amounts: dict[str, str | int | float] = {"nvidia.com/gpu": devices}
    runs = objects.ContainerState(running=objects.Running(started))
    return objects.PodObject(
        # a later pod of the same name is another pod
        Meta(
            name=name,
            uid=f"{cluster}/{namespace}/Pod/{name}/{started:%Y%m%dT%H%M%S}",
            namespace=namespace,
            creation_timestamp=started,
        ),
        objects.PodSpec(node, [ContainerObject("main", objects.Resources(amounts))]),
        objects.PodStatus(
            "Running",
            conditions=[objects.Condition("PodScheduled", "True", started)],
            container_statuses=[objects.ContainerStatus("main", state=runs)],
        ),
    )


def _job(cluster: str, namespace: str, pod: str) -> Iterator[objects.OwnerObject]:
    """The job of pods whose names differ only in their index."""
    name = _MEMBER.sub("", pod)
    if name and name != pod:
        meta = Meta(name=name, uid=f"{cluster}/{namespace}/Pods/{name}", namespace=namespace)
        yield objects.OwnerObject(meta, "v1", "Pods")
