"""Nodes, pods and owners as an API server sends them, and a cluster that records them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import Allocation, Node, Pod, Workload
from pyrometer.model.settings import Settings

T0 = 1_790_000_000_000


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str = "n0", gpus: int = 8, uid: str = "", **more: Any) -> objects.NodeObject:
    ready = {"type": "Ready", "status": more.get("ready", "True"), "lastTransitionTime": iso(more.get("at_ms", T0))}
    count = {"nvidia.com/gpu": str(gpus)}
    thing = {
        "metadata": {"name": name, "uid": uid or f"{name}-uid", "creationTimestamp": iso(more.get("created_ms", T0))},
        "spec": {"unschedulable": more.get("cordoned", False), "taints": more.get("taints")},
        "status": {"capacity": count, "allocatable": count, "conditions": [ready]},
    }
    return msgspec.convert(thing, objects.NodeObject)


def pod(name: str = "p0", gpus: int = 2, node_name: str = "n0", **more: Any) -> objects.PodObject:
    start_ms = more.get("start_ms", T0)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(start_ms)}
    status: dict[str, Any] = {
        "phase": more.get("phase", "Running"),
        "conditions": [condition, *more.get("conditions", [])],
    }
    state: dict[str, Any] = {"running": {"startedAt": iso(start_ms)}}
    if "state" in more:
        state = more["state"]
    elif "end_ms" in more:
        state = {
            "terminated": {
                "startedAt": iso(start_ms),
                "finishedAt": iso(more["end_ms"]),
                "exitCode": more.get("code", 0),
                "reason": more.get("reason", ""),
            }
        }
    status["containerStatuses"] = [
        {"name": "main", "state": state, "restartCount": more.get("restarts", 0), "lastState": more.get("last", {})}
    ]
    thing = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"{name}-uid", "creationTimestamp": iso(start_ms)},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}],
        },
        "status": status,
    }
    return msgspec.convert(thing, objects.PodObject)


class WatchedCluster:
    """A cluster and all of its records."""

    def __init__(self, *things: Any) -> None:
        self.cluster = Cluster("test", Settings())
        self.now_ms = T0
        self.records: list[Any] = []
        for thing in things:
            self.see(thing)

    def see(self, thing: Any, *, after_s: int = 1, **more: Any) -> list[Any]:
        self.now_ms += after_s * 1_000
        found = self.cluster.take(ObservedObject(thing, self.now_ms, **more))
        self.records += found
        return found

    def newest(self, kind: type) -> list[Any]:
        key = {Pod: "pod_uid", Node: "node_uid", Workload: "workload_uid"}[kind]
        found = {getattr(record, key): record for record in self.records if isinstance(record, kind)}
        return list(found.values())

    def holds(self) -> dict[tuple[str, int], tuple[int, int | None]]:
        found = {}
        for a in self.records:
            if isinstance(a, Allocation):
                found[a.pod_uid, a.slot_index] = (a.from_ms, a.to_ms)
        return found


def owner(kind: str, uid: str, group: str = "batch", **more: Any) -> objects.OwnerObject:
    meta = {"name": uid, "uid": uid, "namespace": "ns", "creationTimestamp": iso(T0)}
    return msgspec.convert({"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, **more}, objects.OwnerObject)


def queued_job(*conditions: tuple[str, str, int]) -> objects.QueuedWorkload:
    """A job in a queue of Kueue; each condition is its type, status and time."""
    spec = {"containers": [{"name": "m", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
    thing = {
        "metadata": {"name": "w", "uid": "w", "namespace": "ns", "creationTimestamp": iso(T0)},
        "spec": {"queueName": "research", "podSets": [{"name": "main", "count": 2, "template": {"spec": spec}}]},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "lastTransitionTime": iso(at_ms), "reason": kind}
                for kind, status, at_ms in conditions
            ]
        },
    }
    return msgspec.convert(thing, objects.QueuedWorkload)


def resource_claim(*devices: str) -> objects.ResourceClaim:
    """A claim that the scheduler gave these devices of node n0 (DRA)."""
    results = [{"driver": "gpu.nvidia.com", "pool": "n0", "device": device} for device in devices]
    thing = {
        "metadata": {"name": "c", "uid": "c", "namespace": "ns"},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [{"uid": "p0-uid"}]},
    }
    return msgspec.convert(thing, objects.ResourceClaim)


def claiming_pod() -> objects.PodObject:
    """The pod p0, whose GPUs are those of the claim."""
    thing = pod(gpus=0)
    thing.spec.resource_claims = [objects.PodResourceClaim("gpus", resource_claim_name="c")]
    return thing
