"""Kubernetes objects like those of controllers and kubelets."""

from __future__ import annotations

from typing import Any

from tests.support.kube_server import rfc3339

Thing = dict[str, Any]


def node(name: str, gpus: int = 8, *, ready: bool = True, labels: dict[str, str] | None = None) -> Thing:
    """A GPU node."""
    count = {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "node.kubernetes.io/instance-type": "p5.48xlarge",
                **(labels or {}),
            },
        },
        "status": {
            "capacity": count,
            "allocatable": count,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def with_owners(thing: Thing, *owners: Thing) -> Thing:
    """The thing, controlled by the first of these."""
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": place == 0,
        }
        for place, owner in enumerate(owners)
    ]
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": references}}


def custom(api_version: str, kind: str, namespace: str, name: str, **more: Any) -> Thing:
    """An object of any kind."""
    labels, annotations = more.pop("labels", {}), more.pop("annotations", {})
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name, "labels": labels, "annotations": annotations},
        **more,
    }


def pod(
    namespace: str,
    name: str,
    gpus: int = 8,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
) -> Thing:
    """A pod that asks for GPUs and is not placed yet."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": "train", "resources": resources, "env": variables}]},
    }


def on_node(thing: Thing, node_name: str) -> Thing:
    """The same pod on a node."""
    return {**thing, "spec": {**thing["spec"], "nodeName": node_name}}


def status(
    scheduled_ms: int,
    started_ms: int | None = None,
    ended_ms: int | None = None,
    *,
    exit_code: int = 0,
    reason: str = "",
    restarts: int = 0,
) -> Thing:
    """What a kubelet says about a pod's life."""
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(scheduled_ms)}
    if started_ms is None:
        return {"phase": "Pending", "conditions": [condition]}
    state: Thing = {"running": {"startedAt": rfc3339(started_ms)}}
    phase = "Running"
    if ended_ms is not None:
        ended = {"startedAt": rfc3339(started_ms), "finishedAt": rfc3339(ended_ms), "exitCode": exit_code}
        state = {"terminated": {**ended, "reason": reason or ("Error" if exit_code else "Completed")}}
        phase = "Failed" if exit_code else "Succeeded"
    container = {
        "name": "main",
        "image": "train",
        "imageID": "",
        "ready": ended_ms is None,
        "restartCount": restarts,
        "state": state,
    }
    return {"phase": phase, "conditions": [condition], "containerStatuses": [container]}
