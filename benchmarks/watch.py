"""Absorbing a cluster: how fast lists and watch events of Kubernetes become records, and in how much memory.

A cluster of 50,000 GPU pods on 5,000 nodes as an API server would send it (3.7 kB a pod, in pages of 500), then
a stream of changes. Everything behind the socket is the real thing: decoding, chains of owners, workloads, devices, the
store. The peer is the least that a client in Python does without it: json.loads of the same bytes, kept as dicts.

    python benchmarks/watch.py [--pods 50000] [--nodes 5000] [--events 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

T0 = "2026-11-01T10:00:00Z"


def pod(number: int, nodes: int, phase: str = "Running", version: int = 1) -> dict:
    job = number // 8
    state = {"running": {"startedAt": "2026-11-01T10:01:00Z"}}
    if phase == "Succeeded":
        state = {
            "terminated": {"startedAt": "2026-11-01T10:01:00Z", "finishedAt": "2026-11-01T12:00:00Z", "exitCode": 0}
        }
    return {
        "metadata": {
            "name": f"train-{job}-worker-{number % 8}",
            "namespace": f"team-{job % 40}",
            "uid": f"pod-uid-{number:08d}",
            "resourceVersion": str(version),
            "creationTimestamp": T0,
            "labels": {
                "training.kubeflow.org/job-name": f"train-{job}",
                "training.kubeflow.org/replica-index": str(number % 8),
                "training.kubeflow.org/replica-type": "worker",
                "experiment": f"exp-{job % 100}",
            },
            "annotations": {"cni.example/networks": "x" * 300, "sidecar.example/status": "y" * 300},
            "ownerReferences": [
                {
                    "apiVersion": "kubeflow.org/v1",
                    "kind": "PyTorchJob",
                    "name": f"train-{job}",
                    "uid": f"job-uid-{job:07d}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:conditions": "z" * 640}}}],
        },
        "spec": {
            "nodeName": f"node-{number % nodes:05d}",
            "schedulerName": "default-scheduler",
            "containers": [
                {
                    "name": "pytorch",
                    "image": "registry/train:1",
                    "command": ["python", "train.py"] * 6,
                    "resources": {"requests": {"cpu": "8", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
                    "env": [{"name": f"VAR_{n}", "value": "some value"} for n in range(10)],
                    "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(4)],
                }
            ],
            "volumes": [{"name": f"volume-{n}", "emptyDir": {}} for n in range(4)],
        },
        "status": {
            "phase": phase,
            "startTime": T0,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": T0}
                for kind in ("PodScheduled", "Initialized", "Ready", "ContainersReady")
            ],
            "containerStatuses": [{"name": "pytorch", "image": "registry/train:1", "restartCount": 0, "state": state}],
        },
    }


def node(number: int) -> dict:
    count = {"nvidia.com/gpu": "16", "cpu": "192"}
    return {
        "metadata": {
            "name": f"node-{number:05d}",
            "uid": f"node-uid-{number:05d}",
            "resourceVersion": "1",
            "creationTimestamp": T0,
            "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        },
        "status": {"capacity": count, "allocatable": count, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def owner(number: int) -> dict:
    meta = {"name": f"train-{number}", "namespace": f"team-{number % 40}", "uid": f"job-uid-{number:07d}"}
    return {
        "metadata": {**meta, "resourceVersion": "1", "creationTimestamp": T0, "labels": {"team": f"t{number % 12}"}}
    }


class Canned:
    """An API server that has its answers ready."""

    server = "canned"

    def __init__(self, pods: int, nodes: int, events: int) -> None:
        jobs = -(-pods // 8)
        self.lists = {
            "/api/v1/nodes": [json.dumps(node(n)) for n in range(nodes)],
            "/api/v1/pods": [json.dumps(pod(n, nodes)) for n in range(pods)],
            "/apis/kubeflow.org/v1/pytorchjobs": [json.dumps(owner(n)) for n in range(jobs)],
        }
        # half of the changes say nothing that matters here (as most of a real cluster's), half end a pod
        self.changes = [
            json.dumps(
                {"type": "MODIFIED", "object": pod(n % pods, nodes, "Succeeded" if n % 2 else "Running", version=n + 2)}
            ).encode()
            for n in range(events)
        ]
        self.listed, self.sent = asyncio.Event(), asyncio.Event()

    async def get(self, path: str, params: dict | None = None, accept: str = "") -> bytes:
        if path == "/apis/kubeflow.org":
            return b'{"preferredVersion": {"version": "v1"}}'
        if path == "/apis/kubeflow.org/v1":
            return b'{"resources": [{"name": "pytorchjobs", "kind": "PyTorchJob", "verbs": ["list", "watch"]}]}'
        if path == "/api/v1":
            kinds = ("Node", "Namespace", "Pod", "Event")
            listed = [{"name": k.lower() + "s", "kind": k, "verbs": ["list", "watch"]} for k in kinds]
            return json.dumps({"resources": listed}).encode()
        items = self.lists.get(path)
        if items is None and path.startswith("/apis/"):
            from pyrometer.collect.kubernetes.api import MissingError

            raise MissingError(path)
        items = items or []
        begin = int((params or {}).get("continue", 0))
        more = f', "continue": "{begin + 500}"' if begin + 500 < len(items) else ""
        page = ", ".join(items[begin : begin + 500])
        return f'{{"metadata": {{"resourceVersion": "1"{more}}}, "items": [{page}]}}'.encode()

    async def lines(self, path: str, params: dict, accept: str, silent_s: float):
        if path == "/api/v1/pods":
            await self.listed.wait()
            for begin in range(0, len(self.changes), 50):
                yield self.changes[begin : begin + 50]
            self.sent.set()
        await asyncio.Event().wait()


async def absorb(api: Canned, folder: Path) -> dict[str, float]:
    from pyrometer.collect.kubernetes.source import KubernetesSource
    from pyrometer.identify.kubernetes.cluster import Cluster
    from pyrometer.model.settings import Settings
    from pyrometer.store import Store

    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with Store(folder, create=True) as store:
        source = KubernetesSource(api, Cluster("bench", Settings()), cluster="bench", heartbeat_s=0.2)
        started = time.perf_counter()
        listed_s, records, changes = 0.0, 0, 0
        async for delivery in source.deliveries():
            store.append(delivery.records)
            records += len(delivery.records)
            if not listed_s and source.ready.is_set():
                listed_s = time.perf_counter() - started
                changes = records
                api.listed.set()
            if api.sent.is_set() and source._queue.empty():
                break
        took = time.perf_counter() - started
    return {
        "list_s": listed_s,
        "watch_s": took - listed_s,
        "records": records,
        "watch_records": records - changes,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb,
    }


def peer(api: Canned) -> dict[str, float]:
    """json.loads and a dict: the least that a client does."""
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    kept = {}
    for item in api.lists["/api/v1/pods"]:
        thing = json.loads(item)
        kept[thing["metadata"]["uid"]] = thing
    listed = time.perf_counter() - started
    started = time.perf_counter()
    for line in api.changes:
        thing = json.loads(line)["object"]
        kept[thing["metadata"]["uid"]] = thing
    watched = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    return {"list_s": listed, "watch_s": watched, "memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--one", choices=("pyrometer", "peer"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        api = Canned(args.pods, args.nodes, args.events)
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(absorb(api, Path(folder) / "data")) if args.one == "pyrometer" else peer(api)
        print(json.dumps(found))
        return
    size = len(json.dumps(pod(0, args.nodes)))
    print(f"{args.pods:,} pods of {size:,} bytes on {args.nodes:,} nodes, then {args.events:,} changes")
    results = {}
    for who in ("pyrometer", "peer"):
        command = [sys.executable, __file__, "--one", who]
        command += ["--pods", str(args.pods), "--nodes", str(args.nodes), "--events", str(args.events)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[who] = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = results["pyrometer"], results["peer"]
    print(f"{'':>26} {'list':>9} {'changes/s':>10} {'memory':>9}")
    for who, name in ((ours, "Pyrometer, into the store"), (theirs, "json.loads into a dict")):
        print(f"{name:>26} {who['list_s']:>7.1f} s {args.events / who['watch_s']:>10,.0f} {who['memory_mb']:>6,.0f} MB")
    print(
        f"{ours['records']:,.0f} records; {ours['memory_mb'] / theirs['memory_mb']:.2f}× the memory of the peer, "
        f"{(args.events / ours['watch_s']) / (args.events / theirs['watch_s']):.2f}× its changes per second"
    )


if __name__ == "__main__":
    main()
