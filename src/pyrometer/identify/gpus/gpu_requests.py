"""The GPUs that a pod requests and a node has: whole ones, MIG slices and shares, as device plugins name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.model.units import SHARE_WHOLE, share_parts

WHOLE = ("nvidia.com/gpu", "amd.com/gpu")
SHARED = ("nvidia.com/gpu.shared", "amd.com/gpu.shared")  # time-slicing with renamed resources
_MIG = re.compile(r"nvidia\.com/mig-(\d)g\.\d+gb")
_MIG_PRODUCT = re.compile(r"-MIG-(\d)g\.\d+gb$")
MIG_SLICES = 7
MAX_DIGITS = 19  # digits
MAX_DEVICES = 10_000  # of a pod or a node: a manifest may have a larger number, and no machine has that many
_MIG_PER_GPU = {1: 7, 2: 3, 3: 2, 4: 1, 7: 1}  # instances that fit on one GPU, by their slices

# KAI Scheduler and Run:ai hold a GPU that pods share with a pod of their own; the sharers are who uses it.
RESERVING_NAMESPACES = ("kai-resource-reservation", "runai-reservation")

MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
POOL_LABELS = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "oke.oraclecloud.com/pool.name",
    "doks.digitalocean.com/node-pool",
    "node.coreweave.cloud/nodepool",
    "pool",
)
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
PURCHASE_LABELS = {
    "karpenter.sh/capacity-type": {"spot": "spot", "on-demand": "on_demand", "reserved": "reserved"},
    "eks.amazonaws.com/capacityType": {"SPOT": "spot", "ON_DEMAND": "on_demand", "CAPACITY_BLOCK": "reserved"},
    "cloud.google.com/gke-spot": {"true": "spot"},
    "cloud.google.com/gke-preemptible": {"true": "spot"},
    "kubernetes.azure.com/scalesetpriority": {"spot": "spot", "regular": "on_demand"},
}


# Of a node, and of pods that request a part of a GPU.
LABELS = (
    *MODEL_LABELS,
    *POOL_LABELS,
    *INSTANCE_LABELS,
    *PURCHASE_LABELS,
    "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.memory",
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
)


class GpuRequest(NamedTuple):
    """The GPUs that a pod requests: a number of devices, and how much of each."""

    devices: int
    share: int  # of each, in parts of a whole slot

    @property
    def total(self) -> int:
        """In parts of a whole slot."""
        return self.devices * self.share


class GpuNode(NamedTuple):
    """The GPUs of a node."""

    gpus: int  # physical ones
    model: str | None
    replicas: int  # pods that may share one in time
    mig_slices: int  # of each resource `nvidia.com/gpu` where that is a MIG instance; 0 where it does not
    memory_mib: int | None


def request_of(pod: objects.PodObject, node: GpuNode | None = None) -> GpuRequest | None:
    """The GPUs that a pod requests, as far as its node is known; None if it requests none."""
    if pod.metadata.namespace in RESERVING_NAMESPACES:
        return None
    fraction = _fraction(pod.metadata.annotations or {}, node)
    whole = shared = slices = instances = 0
    for requests in _requests(pod.spec):
        for name, amount in requests.items():
            count = quantity(amount)
            mig = _MIG.fullmatch(name)
            if name in WHOLE:
                whole += count
            elif name in SHARED:
                shared += count
            elif mig:
                instances += count
                slices += count * int(mig[1])
    whole, shared = min(whole, MAX_DEVICES), min(shared, MAX_DEVICES)
    if fraction is not None:
        return GpuRequest(max(whole, 1), fraction)
    if instances:
        return GpuRequest(min(instances, MAX_DEVICES), SHARE_WHOLE * slices // (MIG_SLICES * instances))
    if shared:
        return GpuRequest(shared, SHARE_WHOLE // max(node.replicas if node else 1, 1))
    if not whole:
        return None
    if node and node.mig_slices:
        return GpuRequest(whole, SHARE_WHOLE * node.mig_slices // MIG_SLICES)
    return GpuRequest(whole, SHARE_WHOLE // (node.replicas if node else 1))


def container_requests_gpus(container: objects.ContainerObject) -> bool:
    """Whether a container requests GPUs itself."""
    resources = container.resources
    return resources is not None and any(
        _is_gpu(name) for name in (*(resources.limits or ()), *(resources.requests or ()))
    )


def requests_gpus(template: Any, *, by_claim: bool = True) -> bool:
    """Whether the pods of a template in a job's specification request GPUs; `by_claim`: any claim may be for GPUs."""
    try:
        pod = msgspec.convert(
            {"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}}, objects.PodObject
        )
    except (msgspec.ValidationError, AttributeError):
        return False
    if not by_claim:
        pod.spec.resource_claims = None
    return may_request_gpus(pod)


def may_request_gpus(pod: objects.PodObject) -> bool:
    """Whether a pod requests GPUs, as far as the pod itself shows."""
    # How much of a GPU `gpu-memory` is depends on the node, and what a claim requests is in the claim.
    return (
        request_of(pod) is not None
        or "gpu-memory" in (pod.metadata.annotations or {})
        or bool(pod.spec.resource_claims)
    )


def node_gpus(node: objects.NodeObject) -> GpuNode:
    """The GPUs of a node, from its labels and capacity."""
    labels = node.metadata.labels or {}
    capacity = node.status.allocatable or node.status.capacity or {}
    model = first_label(labels, MODEL_LABELS)
    mig = _MIG_PRODUCT.search(model or "")
    replicas = max(quantity(labels.get("nvidia.com/gpu.replicas", 1)), 1)
    count = sum(quantity(capacity.get(name, 0)) for name in WHOLE)
    count += sum(quantity(capacity.get(name, 0)) for name in SHARED)
    slices = int(mig[1]) if mig else 0
    physical = -(-count // (_MIG_PER_GPU.get(slices, 1) if slices else replicas))
    for name, amount in capacity.items():
        found = _MIG.fullmatch(name)
        if found:
            physical += -(-quantity(amount) // _MIG_PER_GPU.get(int(found[1]), 1))
    if any(_MIG.fullmatch(name) for name in capacity):  # several profiles on one device: the label counts devices
        physical = quantity(labels.get("nvidia.com/gpu.count", 0)) or physical
    if model is not None:
        model = _MIG_PRODUCT.sub("", model).removesuffix("-SHARED")
    return GpuNode(min(physical, MAX_DEVICES), model, replicas, slices, _number(labels.get("nvidia.com/gpu.memory")))


def first_label(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The first of these labels that is set."""
    return next((labels[name] for name in names if labels.get(name)), None)


def purchase_of(labels: Mapping[str, str]) -> str | None:
    """The purchase option of a node."""
    return next((words[labels[name]] for name, words in PURCHASE_LABELS.items() if labels.get(name) in words), None)


def quantity(amount: str | int | float) -> int:
    """A Kubernetes quantity of whole things, as far as it makes sense."""
    text = str(amount).strip()
    for suffix, factor in (("k", 1_000), ("M", 1_000_000)):
        if text.endswith(suffix) and text[:-1].isdecimal():
            return min((_number(text[:-1]) or 0) * factor, MAX_DEVICES)
    return min(_number(text) or 0, MAX_DEVICES)


def _requests(spec: objects.PodSpec) -> list[Mapping[str, str | int | float]]:
    """The requests of containers that run together; an extended resource's request is its limit."""
    sidecars = [one for one in spec.init_containers or [] if one.restart_policy == "Always"]
    resources = [one.resources for one in (*(spec.containers or ()), *sidecars) if one.resources]
    return [one.requests or one.limits or {} for one in resources]


def _fraction(annotations: Mapping[str, str], node: GpuNode | None) -> int | None:
    """A part of one GPU, as KAI Scheduler and Run:ai write it: a fraction, or memory."""
    try:
        if "gpu-fraction" in annotations:
            return share_parts(float(annotations["gpu-fraction"]))
        if "gpu-memory" in annotations and node and node.memory_mib:
            return share_parts(min(float(annotations["gpu-memory"]) / node.memory_mib, 1.0))
    except (ValueError, OverflowError):
        return None
    return None


def _is_gpu(name: str) -> bool:
    return name in WHOLE or name in SHARED or _MIG.fullmatch(name) is not None


def _number(text: str | None) -> int | None:
    """A whole number. No real one has twenty digits, and Python does not read one with thousands."""
    return int(text[:MAX_DIGITS]) if text is not None and text.isdecimal() else None
