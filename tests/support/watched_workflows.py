"""Workflows of Argo, jobs and trials as an API server sends them, and a cluster that records them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import Pod
from pyrometer.model.settings import Settings

FOLDER = Path(__file__).parents[1] / "identify" / "kubeflow"
MADE = json.loads((FOLDER / "made.json").read_text())
WORKFLOW = "retrain-ranker-9k2lx"
RUN = {"pipeline/runid": "run-17"}
T0 = 1_790_000_000_000


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pending_pod(name: str, gpus: int = 2) -> objects.PodObject:
    """A pod that waits for a node."""
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    meta = {"name": name, "namespace": "ns", "uid": f"{name}-uid", "creationTimestamp": iso(T0)}
    thing = {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}
    return msgspec.json.decode(json.dumps(thing), type=objects.PodObject)


def workflow_node(name: str, kind: str = "Pod", phase: str = "Succeeded", **more: Any) -> dict[str, Any]:
    """A node of a Workflow's status, as Argo writes it."""
    whole = f"{WORKFLOW}.{name}" if name else WORKFLOW
    return {
        "id": f"{WORKFLOW}-{abs(hash(name)) % 10**9}",
        "name": whole,
        "displayName": name.rpartition(".")[2],
        "type": kind,
        "phase": phase,
        "templateName": "system-container-impl",
        "startedAt": iso(T0),
        "finishedAt": iso(T0 + 60_000) if phase != "Running" else None,
        **more,
    }


NODES = [
    workflow_node("", "DAG", "Running"),
    workflow_node("root", "DAG", "Running"),
    workflow_node("root-driver", templateName="system-dag-driver"),
    workflow_node("root.prepare-driver", templateName="system-container-driver"),
    workflow_node("root.prepare", "DAG"),
    workflow_node("root.prepare.executor", "Skipped", "Skipped"),
    workflow_node("root.train", "DAG", "Running"),
    workflow_node("root.train.executor", "Retry", "Running"),
    workflow_node("root.train.executor(0)", phase="Failed", message="main: Error (exit code 137)"),
    workflow_node("root.train.executor(1)", phase="Running"),
    workflow_node("root.condition-1", "Skipped", "Skipped"),
    workflow_node(
        "root.for-loop-3.iteration-iterations(0:0).iteration-item.train-2.executor", phase="Pending", startedAt=None
    ),
]


def workflow(nodes: list[dict[str, Any]] | None = None, *, phase: str = "Running", **status: Any) -> dict[str, Any]:
    listed = NODES if nodes is None else nodes
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": WORKFLOW,
            "generateName": "retrain-ranker-",
            "namespace": "ns",
            "uid": "wf-1",
            "labels": RUN,
            "creationTimestamp": iso(T0),
            "annotations": {"pipelines.kubeflow.org/run_name": "nightly retrain"},
        },
        "spec": {"templates": [{"name": "root"}]},
        "status": {"phase": phase, "startedAt": iso(T0), "nodes": {one["id"]: one for one in listed}} | status,
    }


class WatchedPipelines:
    """A cluster that receives objects as the watch decodes them: from the bytes that an API server sends."""

    def __init__(self) -> None:
        self.cluster = Cluster("test", Settings())
        self.now_ms = T0 + 100_000

    def owner(self, thing: dict[str, Any]) -> objects.OwnerObject:
        return self.cluster.shrink(msgspec.json.decode(json.dumps(thing), type=objects.OwnerObject))

    def changed(self, thing: dict[str, Any]) -> list[Any]:
        self.now_ms += 1_000
        return self.cluster.take(ObservedObject(self.owner(thing), self.now_ms))

    def see(
        self, one: objects.PodObject, *chain: dict[str, Any], labels: Any = None, annotations: Any = None
    ) -> list[Any]:
        self.now_ms += 1_000
        one.metadata.labels, one.metadata.annotations = labels, annotations
        owners = tuple(self.owner(thing) for thing in chain)
        return self.cluster.take(ObservedObject(one, self.now_ms, chain=owners))


def step_pod(watched: WatchedPipelines, name: str, node_name: str, **more: Any) -> list[Any]:
    annotations = {"workflows.argoproj.io/node-name": f"{WORKFLOW}.{node_name}"}
    labels = RUN | {"pipelines.kubeflow.org/v2_component": "true", "workflows.argoproj.io/workflow": WORKFLOW}
    return watched.see(pending_pod(name, **more), workflow(), labels=labels, annotations=annotations)


def of_kind(records: list[Any], kind: type) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def pytorchjob(**meta: Any) -> dict[str, Any]:
    made = MADE["pytorchjob"]
    return made | {"metadata": made["metadata"] | {"creationTimestamp": iso(T0)} | meta}


def resumed(*pods: Pod) -> WatchedPipelines:
    """A new process that has read what was written down of pods which are gone."""
    watched = WatchedPipelines()
    watched.cluster.resume([], pods, [], [], [])
    return watched
