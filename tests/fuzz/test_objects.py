"""Objects of a cluster, nearly right: anybody who may create one writes most of what is read here."""

from __future__ import annotations

import asyncio
import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mangle import as_json, mangled_value
from targets import fit

from effort import EFFORT
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.seen import Seen
from pyrometer.collect.kubernetes.watch import Resource, Watch
from pyrometer.identify.cluster import Cluster
from pyrometer.model.records import Pod
from pyrometer.model.settings import Settings

EXAMPLES = settings(max_examples=150 * EFFORT, suppress_health_check=list(HealthCheck))
IDENTIFY = Path(__file__).parents[1] / "identify"
MADE = json.loads((IDENTIFY / "kubeflow" / "made.json").read_text())
T0 = "2026-11-01T10:00:00Z"
NOW_MS = 1_794_700_000_000


def _pod(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p-0", "namespace": "ns", "uid": "p", "creationTimestamp": T0, "labels": {"team": "a"},
            "annotations": {"workflows.argoproj.io/node-name": "wf.root.train.executor(1)", "gpu-fraction": "0.5"},
            **metadata,
        },
        "spec": {
            "nodeName": "n0", "schedulingGroup": {"podGroupName": "g"},
            "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": 2}},
                            "env": [{"name": "RANK", "value": "3"}, {"name": "WORLD_SIZE", "value": "4"}]}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim-1"}],
        },
        "status": {
            "phase": "Running", "startTime": T0, "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": T0}],
            "containerStatuses": [{"name": "main", "restartCount": 1, "state": {"running": {"startedAt": T0}},
                                   "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": T0, "finishedAt": T0}}}],
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim-1"}],
        },
    }  # fmt: skip


NODE = {
    "metadata": {"name": "n0", "uid": "n", "creationTimestamp": T0, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
    "spec": {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": T0}]},
    "status": {"capacity": {"nvidia.com/gpu": "8", "cpu": "96"}, "allocatable": {"nvidia.com/gpu": "8"},
               "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": T0}]},
}  # fmt: skip
EVENT = {
    "metadata": {"name": "e", "namespace": "ns", "uid": "e", "creationTimestamp": T0},
    "involvedObject": {"kind": "Pod", "namespace": "ns", "name": "p-0", "uid": "p"}, "reason": "Pulled",
    "message": 'Successfully pulled image "a" in 1m2.5s (1m3s including waiting)', "type": "Normal", "lastTimestamp": T0,
    "series": {"count": 2, "lastObservedTime": T0},
}  # fmt: skip
CLAIM = {
    "metadata": {"name": "claim-1", "namespace": "ns", "uid": "c"},
    "status": {"reservedFor": [{"name": "p-0", "uid": "p", "resource": "pods"}],
               "allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-1", "request": "r"}]}}},
}  # fmt: skip
QUEUED = {
    "metadata": {"name": "w", "namespace": "ns", "uid": "q", "creationTimestamp": T0},
    "spec": {"queueName": "research", "podSets": [{"name": "main", "count": 4, "template": {"spec": _pod()["spec"]}}]},
    "status": {"conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": T0}]},
}  # fmt: skip
WORKFLOW = {
    "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "wf", "namespace": "ns", "uid": "wf", "creationTimestamp": T0},
    "status": {"phase": "Running", "startedAt": T0, "nodes": {"a": {"name": "wf.root.train.executor(1)", "type": "Pod", "phase": "Running",
               "startedAt": T0, "finishedAt": T0, "message": "m", "templateName": "t"}}},
}  # fmt: skip
TRAIN_JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "t", "namespace": "ns", "uid": "t"},
    "spec": {"trainer": {"numNodes": 4}}, "status": {"trainerStatus": {"progressPercentage": 45, "estimatedRemainingSeconds": 60,
    "lastUpdatedTime": T0, "metrics": [{"name": "loss", "value": "0.5"}]}},
}  # fmt: skip
OWNERS = [
    WORKFLOW, TRAIN_JOB, MADE["experiment"], MADE["trial"],
    *(owner for path in sorted((IDENTIFY / "golden").glob("*.yaml")) for owner in yaml.safe_load(path.read_text())["owners"]),
]  # fmt: skip
KINDS: dict[str, tuple[type, list[Any]]] = {
    "pod": (objects.Pod, [_pod()]), "node": (objects.Node, [NODE]), "event": (objects.Event, [EVENT]),
    "claim": (objects.ResourceClaim, [CLAIM]), "queued": (objects.Queued, [QUEUED]), "owner": (objects.Owner, OWNERS),
    "namespace": (objects.Namespace, [{"metadata": {"name": "ns", "uid": "ns", "labels": {"team": "b"}}}]),
}  # fmt: skip
ANY_OBJECT = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.tuples(st.just(kind), mangled_value(KINDS[kind][1]))
)


def decoded(kind: str, thing: Any) -> Any:
    """As a watch decodes it; None where it cannot."""
    try:
        return msgspec.json.decode(as_json(thing), type=KINDS[kind][0])
    except (msgspec.MsgspecError, UnicodeError):
        return None


@EXAMPLES
@given(st.lists(ANY_OBJECT, min_size=1, max_size=4), st.booleans())
def test_whatever_objects_say_others_are_written_down(things, gone):
    cluster = Cluster("test", Settings())
    records: list[Any] = []
    owners = []
    for kind, thing in [("node", NODE), *things, *things]:
        found = decoded(kind, thing)
        if found is None:
            continue
        if kind == "owner":
            found = cluster.shrink(found)
            owners.append(found)
        chain = tuple(owners[:3]) if kind in ("pod", "queued") else ()
        records += cluster.take(Seen(found, NOW_MS, gone=gone, chain=chain))
        cluster.tick(NOW_MS)
    good = decoded("pod", _pod(name="good", uid="good"))
    records += cluster.take(Seen(good, NOW_MS + 1))
    cluster.tick(NOW_MS + 10**8)
    assert any(isinstance(one, Pod) and one.pod_uid == "good" for one in records)
    fit(records)


@EXAMPLES
@given(st.lists(ANY_OBJECT, min_size=1, max_size=4))
def test_a_watch_passes_over_what_cannot_be_decoded(things):
    """Beside them in a list, and in the lines after it, the good ones are seen."""
    for kind, (type_, seeds) in KINDS.items():
        listed = [thing for of_kind, thing in things if of_kind == kind]
        if listed:
            watch = Watch(_Lists([seeds[0], *listed, seeds[0]]), Resource("", "v1", "things", "Thing", type_))
            seen = [page for page in asyncio.run(_first_page(watch)) if isinstance(page, Seen)]
            assert len(seen) + watch.unreadable == len(listed) + 2
            assert len(seen) >= 2
            for thing in (*listed, seeds[0]):
                change = watch._line(b'{"type":"ADDED","object":' + as_json(thing) + b"}", NOW_MS)
            assert change is not None


class _Lists:
    """An API server that lists what it is told, whatever that is."""

    def __init__(self, things: list[Any]) -> None:
        self._body = b'{"metadata":{"resourceVersion":"7"},"items":[%s]}' % b",".join(map(as_json, things))

    async def get(self, path: str, params: Any = None, accept: str = "") -> bytes:
        return self._body


async def _first_page(watch: Watch) -> list[Any]:
    async for page in watch._list():
        return page
    raise AssertionError("no page")


@pytest.mark.parametrize("amount", [str(2**63 - 1), 10**300, "9" * 400, "999999M"])
def test_more_gpus_than_anybody_has_take_no_memory(amount):
    """Whoever may create a pod may ask for any number of GPUs, and name the node itself."""
    pod, node = _pod(uid="huge"), copy.deepcopy(NODE)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    node["status"] = {"capacity": {"nvidia.com/gpu": amount, "nvidia.com/mig-1g.10gb": amount}}
    node["metadata"]["labels"] |= {"nvidia.com/gpu.count": "9" * 60, "nvidia.com/gpu.replicas": "9" * 60}
    tracemalloc.start()
    try:
        for nodes in ([NODE], [node]):
            cluster = Cluster("test", Settings())
            seen = [*(decoded("node", one) for one in nodes), decoded("pod", pod), decoded("pod", _pod())]
            fit([record for one in seen for record in cluster.take(Seen(one, NOW_MS))])
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("took", ["1.1.1s", "9" * 400 + "h", "1e9s", "..s", "1m2.5s"])
def test_an_event_says_whatever_its_writer_likes(took):
    cluster = Cluster("test", Settings())
    message = f'Successfully pulled image "a" in {took}'
    cluster.take(Seen(decoded("pod", _pod()), NOW_MS))
    fit(cluster.take(Seen(decoded("event", EVENT | {"message": message}), NOW_MS)))
