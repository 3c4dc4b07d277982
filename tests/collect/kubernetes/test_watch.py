"""Kubeflow's objects on their way from an API to records: discovery, lists, the chain of owners.

The API server of these tests dies of custom resources (see tests/kube), so that what one would answer is recorded.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pyrometer.collect.kubernetes.source import KubernetesSource
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import PipelineRun, PipelineStep, Pod, Sweep, Trial, Workload
from pyrometer.model.settings import Settings
from tests.support.recorded_api import CREATED, RecordedApi, pod

MADE = json.loads((Path(__file__).parents[2] / "identify" / "kubeflow" / "made.json").read_text())


def owned(thing: dict[str, Any], kind: str, name: str, uid: str, version: str) -> dict[str, Any]:
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
    return thing | {"metadata": thing["metadata"] | {"ownerReferences": [reference], "creationTimestamp": CREATED}}


NODE = {"id": "a", "name": "wf-abc12.root.train.executor", "type": "Pod", "phase": "Running", "startedAt": CREATED}
WORKFLOW = {
    "metadata": {
        "name": "wf-abc12",
        "generateName": "wf-",
        "namespace": "ns",
        "uid": "wf",
        "creationTimestamp": CREATED,
        "labels": {"pipeline/runid": "run-1"},
        "annotations": {"pipelines.kubeflow.org/run_name": "nightly"},
    },
    "spec": {"templates": []},
    "status": {"phase": "Running", "startedAt": CREATED, "nodes": {"a": NODE}},
}
OBJECTS = {
    "/apis/argoproj.io/v1alpha1/workflows": [WORKFLOW],
    "/apis/kubeflow.org/v1beta1/experiments": [MADE["experiment"]],
    "/apis/kubeflow.org/v1beta1/trials": [
        owned(MADE["trial"], "Experiment", "lr-search", "exp-1", "kubeflow.org/v1beta1")
    ],
    "/api/v1/pods": [
        owned(
            pod("step", annotations={"workflows.argoproj.io/node-name": NODE["name"]}),
            "Workflow",
            "wf-abc12",
            "wf",
            "argoproj.io/v1alpha1",
        ),
        owned(pod("try"), "Trial", "lr-search-abc12345", "trial-1", "kubeflow.org/v1beta1"),
        pod("alone"),
    ],
}


async def _collected(api: Any, kinds: set[type]) -> list[Any]:
    """What is written down until everything is there that was listed."""
    translator = Cluster("recorded", Settings())
    source = KubernetesSource(api, translator, cluster="recorded", always=translator.followed_kinds(), heartbeat_s=0.05)
    records: list[Any] = []
    async with asyncio.timeout(20):
        async for delivery in source.deliveries():
            records += delivery.records
            types = {type(record) for record in records}
            if source.ready.is_set() and types >= kinds:
                break
    assert source.shortcomings() == []
    return records


def only(records: list[Any], kind: type) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def test_watch_reads_whole_pipelines_and_sweeps_in_small_pages() -> None:
    api = RecordedApi(OBJECTS)
    records = asyncio.run(_collected(api, {Pod, PipelineRun, Sweep}))
    pods = {one.name: one for one in only(records, Pod)}
    assert (pods["step"].pipeline_run, pods["step"].pipeline_step) == ("run-1", "train")
    assert pods["try"].trial_uid == "trial-1"
    assert pods["alone"][-4:] == (None, None, None, None)
    assert [(one.name, one.pipeline) for one in only(records, PipelineRun)] == [("nightly", "wf")]
    assert [(one.step, one.state) for one in only(records, PipelineStep)] == [("train", "running")]
    assert [(one.name, one.best_trial) for one in only(records, Sweep)] == [("lr-search", "lr-search-abc12345")]
    assert [(one.name, one.value) for one in only(records, Trial)] == [("lr-search-abc12345", 0.33)]
    assert {one.kind for one in only(records, Workload)} == {"Workflow", "Trial", "Pod"}
    requests = {path: (limit, form) for path, limit, form in api.requests}
    assert requests["/apis/argoproj.io/v1alpha1/workflows"] == ("50", "application/json")
    assert requests["/apis/kubeflow.org/v1beta1/trials"] == ("50", "application/json")
    assert requests["/api/v1/pods"] == ("500", "application/json")


def test_source_of_cluster_without_kubeflow_has_no_shortcomings() -> None:
    records = asyncio.run(_collected(RecordedApi({"/api/v1/pods": [pod("alone")]}, groups={}), {Pod}))
    assert [one.name for one in only(records, Pod)] == ["alone"]


class Stumbling(Cluster):
    """A translator that fails for some objects."""

    def take(self, seen: Any) -> Any:
        if seen.object.metadata.name == "poison":
            raise KeyError("poison")
        return super().take(seen)

    def shrink(self, owner: Any) -> Any:
        if owner.metadata.name == "poison":
            raise TypeError("poison")
        return super().shrink(owner)


async def _beside(api: Any, names: set[str]) -> tuple[set[str], list[str]]:
    """The recorded pods and the reported shortcomings."""
    translator = Stumbling("recorded", Settings())
    source = KubernetesSource(api, translator, cluster="recorded", always=translator.followed_kinds(), heartbeat_s=0.05)
    found: set[str] = set()
    async with asyncio.timeout(20):
        async for delivery in source.deliveries():
            found |= {one.name for one in only(list(delivery.records), Pod)}
            if source.ready.is_set() and found >= names:
                break
    return found, source.shortcomings()


def test_unusable_object_does_not_affect_others() -> None:
    broken = pod("broken") | {"status": {"phase": ["Pending"]}}
    flow = WORKFLOW | {"metadata": WORKFLOW["metadata"] | {"name": "poison", "uid": "poison"}}
    listed = {
        "/apis/argoproj.io/v1alpha1/workflows": [flow, WORKFLOW],
        "/api/v1/pods": [pod("poison"), broken, *OBJECTS["/api/v1/pods"]],
    }
    found, shortcomings = asyncio.run(_beside(RecordedApi(listed), {"step", "alone"}))
    assert found >= {"step", "alone"}
    assert "poison" not in found
    assert any("were skipped" in text for text in shortcomings)


def test_deeply_nested_object_does_not_block_start() -> None:
    api = RecordedApi({"/api/v1/pods": OBJECTS["/api/v1/pods"]})

    async def get(path: str, params: Any = None, accept: str = "application/json") -> bytes:
        if path.endswith("/workflows"):
            return b'{"metadata":{"resourceVersion":"7"},"items":[%s]}' % (b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
        return await RecordedApi.get(api, path, params, accept)

    api.get = get  # type: ignore[method-assign]
    found, _ = asyncio.run(_beside(api, {"step", "alone"}))
    assert found >= {"step", "alone", "try"}
