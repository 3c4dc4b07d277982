"""Long chains of owners, gangs and attempts against a real API server, with the rights that the manifests grant."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyrometer.account.build.ledger import build
from pyrometer.model.settings import Settings
from tests.kube.test_deploy import doctor, granted
from tests.kube.test_kinds import _JOB, _STATEFUL
from tests.support import manifests
from tests.support.kube_collectors import Site, collecting, gpu_seconds, now_ms, query_rows, rows, wait_for_ended
from tests.support.kube_server import KINDS, ApiServer, Kubectl, definition

__all__ = ["granted"]  # the fixture

pytestmark = pytest.mark.heavy

GOLDEN = Path(__file__).parents[1] / "identify" / "golden"
CHAINS = (
    "aibrix",
    "appwrapper",
    "dask",
    "disaggregatedset",
    "dynamo",
    "dynamo_grove",
    "jobflow",
    "katib",
    "knative_inferenceservice",
    "nim_pipeline",
    "raycronjob",
    "rolebasedgroup",
    "rollout",
    "runai_job",
    "soperator",
    "spark",
    "tekton",
)
_REPLICAS = {key: value for key, value in _STATEFUL.items() if key != "serviceName"}
SPECS = {
    ("batch/v1", "Job"): _JOB,
    ("apps/v1", "StatefulSet"): _STATEFUL,
    ("apps/v1", "Deployment"): _REPLICAS,
    ("apps/v1", "ReplicaSet"): _REPLICAS,
}
GPU = {"spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
CPU = {"spec": {"containers": [{"name": "m"}]}}


def chain(name: str) -> list[dict[str, Any]]:
    """The owners in a fixture, nearest first."""
    found: list[dict[str, Any]] = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())["owners"]
    return found


@pytest.fixture(scope="module")
def kinds(api_server: ApiServer) -> None:
    """The API server with all kinds of the chains."""
    known = {(group, kind) for group, _, kind in KINDS}
    wanted: dict[tuple[str, str], tuple[str, str, str]] = {}
    for owner in (owner for name in CHAINS for owner in chain(name)):
        group, _, version = owner["apiVersion"].rpartition("/")
        if "." in group and (group, owner["kind"]) not in known:
            wanted[group, owner["kind"]] = (group, version, owner["kind"])
    with Kubectl(api_server) as kubectl:
        kubectl.define(wanted.values())


def make(site: Site, name: str) -> tuple[str, ...]:
    """Creates the chain above two pods, each with its own nearest owner. Returns the expected workloads."""
    owners = chain(name)
    above: tuple[Any, ...] = ()
    for owner in reversed(owners[1:]):
        above = (_made(site, owner, f"{name.replace('_', '-')}-{owner['kind'].lower()}", above),)
    for letter in "ab":
        nearest = _made(site, owners[0], f"{name.replace('_', '-')}-{letter}", above)
        site.pod(f"{name.replace('_', '-')}-{letter}-pod", nearest, gpus=1)
    if name in ("jobflow", "katib"):  # made of jobs
        return tuple(f"{owners[0]['kind']}/{name}-{letter}" for letter in "ab")
    return (f"{owners[-1]['kind']}/{name.replace('_', '-')}-{owners[-1]['kind'].lower()}",)


def _made(site: Site, owner: dict[str, Any], name: str, above: tuple[Any, ...]) -> Any:
    if owner["kind"] == "Pod":
        made = manifests.with_owners(manifests.pod(site.namespace, name, 0), *above)
        return site.kubectl.create(made)
    more = {"spec": spec} if (spec := SPECS.get((owner["apiVersion"], owner["kind"]))) else {}
    return site.owner(owner["apiVersion"], owner["kind"], name, *above, **more)


@pytest.mark.usefixtures("custom_resources", "kinds", "granted")
def test_workloads_are_the_same_in_the_cluster_and_from_a_laptop(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with (
            collecting(api_server, tmp_path / "admin") as admin,
            collecting(api_server, tmp_path / "reader", token="reader") as reader,
        ):
            site = Site(kubectl, namespace, 2 * len(CHAINS))
            expected = {}
            for name in CHAINS:
                workloads = make(site, name)
                expected.update(dict.fromkeys(workloads, 200 // len(workloads)))
            site.finish()
            for collector in (admin, reader):
                await wait_for_ended(collector, namespace, len(site.pods))
                assert await gpu_seconds(collector, namespace) == expected
                served = await query_rows(
                    collector, f"SELECT DISTINCT kind FROM workload WHERE serves AND namespace = '{namespace}'"
                )
                assert {"DynamoGraphDeployment", "InferenceService"} <= {kind for (kind,) in served}
            assert reader.source is not None
            assert reader.source.shortcomings() == []
            for pod in site.pods:
                kubectl.delete(pod)

    asyncio.run(scenario())


@pytest.mark.usefixtures("custom_resources", "kinds")
def test_doctor_names_unreadable_owners_of_gpu_pods_and_the_missing_rules(
    api_server: ApiServer, kubectl: Kubectl, granted: dict[str, Any], namespace: str
) -> None:
    site = Site(kubectl, namespace, 6)
    make(site, "dynamo_grove")
    above = site.owner("kueue.x-k8s.io/v1beta1", "Workload", "above")  # of a kind that nothing is known of
    sweep = site.owner("example.com/v1", "Sweep", "grid", above)
    for number in range(3):
        site.pod(f"grid-{number}", sweep, gpus=1)
    site.pod("cpu-only", site.owner("example.com/v1", "Sweep", "other"), gpus=0)
    without = [
        {**rule, "resources": [each for each in rule["resources"] if each != "podcliques"]} for rule in granted["rules"]
    ]
    try:
        kubectl.apply({**granted, "rules": without})
        found = doctor(api_server)
        answer = json.loads(doctor(api_server, "-o", "json").stdout)
        assert found.returncode == 1
        printed = " ".join(found.stdout.split())
        assert "podcliques.grove.io get" in printed
        assert "Now 2 objects with 2 GPU pods: each object counts as a workload" in printed
        assert "Now 1 object with 3 GPU pods: each object counts as a workload" in printed
        assert "sweeps.example.com list" in printed
        assert "apiGroups: [example.com] resources: [sweeps] verbs: [get, list, watch]" in printed
        assert "apiGroups: [grove.io] resources: [podcliques] verbs: [get, list, watch]" in printed
        assert answer["ok"] is False
        assert answer["rules"] == [
            {"apiGroups": ["example.com"], "resources": ["sweeps"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["grove.io"], "resources": ["podcliques"], "verbs": ["get", "list", "watch"]},
        ]
        counted = {check["resource"]: (check["objects"], check["pods"]) for check in answer["checks"] if check["pods"]}
        assert counted == {"sweeps.example.com": (1, 3), "podcliques.grove.io": (2, 2)}

        kubectl.apply({**granted, "rules": without + answer["rules"]})
        answer_above = json.loads(doctor(api_server, "-o", "json").stdout)  # what is above sweeps can be seen only now
        assert answer_above["rules"] == [
            {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["get"]}
        ]
        kubectl.apply({**granted, "rules": without + answer["rules"] + answer_above["rules"]})
        found = doctor(api_server)
        assert found.returncode == 0, found.stdout
        assert f"All owners of {answer['gpu_pods']} GPU pods can be read." in found.stdout
    finally:
        kubectl.apply(granted)
        for pod in site.pods:
            kubectl.delete(pod)


@pytest.mark.usefixtures("custom_resources", "kinds")
def test_doctor_checks_every_owner_kind_of_gpu_pods(
    api_server: ApiServer, kubectl: Kubectl, granted: dict[str, Any], namespace: str
) -> None:
    """The server also lists and watches these kinds, so `get` alone is not enough."""
    site = Site(kubectl, namespace, 2)
    site.pod("grid-0", site.owner("example.com/v1", "Sweep", "grid"), gpus=1)
    only_get = {"apiGroups": ["example.com"], "resources": ["sweeps"], "verbs": ["get"]}
    try:
        kubectl.apply({**granted, "rules": [*granted["rules"], only_get]})
        found = json.loads(doctor(api_server, "-o", "json").stdout)
        assert found["rules"] == [{**only_get, "verbs": ["list", "watch"]}]

        kubectl.define([("gone.example.com", "v1", "Ghost")])
        site.pod("ghost-0", site.owner("gone.example.com/v1", "Ghost", "ghost"), gpus=1)
        kubectl.delete(definition("gone.example.com", "v1", "Ghost"))
        while kubectl.client.get("/apis/gone.example.com/v1").status_code == 200:
            time.sleep(0.1)  # the server notices when it does
        kubectl.apply({**granted, "rules": [*granted["rules"], only_get, *found["rules"]]})
        text = doctor(api_server)
        assert text.returncode == 0, text.stdout
        assert "1 GPU pod below 1 object of the kind Ghost.gone.example.com" in text.stdout
        assert "All owners of" not in text.stdout
    finally:
        kubectl.apply(granted)
        for pod in site.pods:
            kubectl.delete(pod)


@pytest.mark.usefixtures("custom_resources")
def test_elastic_jobs_with_enough_pods_are_not_in_gang_wait(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """Volcano's master has no GPU; an elastic PyTorchJob works with two of four."""

    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            site = Site(kubectl, namespace, 5)
            tasks = [
                {"name": "mpimaster", "replicas": 1, "template": CPU},
                {"name": "mpiworker", "replicas": 2, "template": GPU},
            ]
            spec = {"minAvailable": 3, "tasks": tasks}
            volcano = site.owner("batch.volcano.sh/v1alpha1", "Job", "mindspore-gpu", spec=spec)
            elastic = site.owner(
                "kubeflow.org/v1",
                "PyTorchJob",
                "elastic",
                spec={
                    "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
                    "pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": GPU}},
                },
            )
            site.pod("mindspore-gpu-mpimaster-0", volcano, gpus=0)
            for number in range(2):
                site.pod(f"mindspore-gpu-mpiworker-{number}", volcano, gpus=1)
                site.pod(f"elastic-worker-{number}", elastic, gpus=1)
            site.finish()
            await wait_for_ended(collector, namespace, 4)
            gangs = f"SELECT DISTINCT name, gang_pods FROM workload WHERE namespace = '{namespace}' ORDER BY 1"
            assert await query_rows(collector, gangs) == [("elastic", 2), ("mindspore-gpu", 2)]
            assert await states(collector) & {"gang_wait"} == set()

    asyncio.run(scenario())


@pytest.mark.usefixtures("custom_resources")
def test_gang_that_failed_during_downtime_is_one_attempt(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    site = Site(kubectl, namespace, 1)
    job = site.owner(
        "kubeflow.org/v1",
        "PyTorchJob",
        "llama",
        spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": GPU}}},
    )

    def gang(letter: str) -> None:
        pods = []
        for number in range(4):
            thing = manifests.with_owners(manifests.pod(namespace, f"{letter}-worker-{number}", 1), job)
            pods.append(kubectl.create(manifests.on_node(thing, site.nodes[0])))
        start_ms = now_ms()
        for pod in pods:
            kubectl.status(pod, manifests.status(start_ms, start_ms, start_ms + 1_000, exit_code=1))
        while now_ms() <= start_ms + 1_000:  # the server says when the next pods were created
            time.sleep(0.05)

    async def watch(pods: int) -> list[tuple[Any, ...]]:
        async with collecting(api_server, tmp_path / "data") as collector:
            await wait_for_ended(collector, namespace, pods)
            found = await query_rows(
                collector,
                "SELECT name[1] AS gang, count(DISTINCT name), list(DISTINCT attempt) FROM "
                f"(FROM pod WHERE namespace = '{namespace}' "
                "QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1) GROUP BY 1 ORDER BY 1",
            )
            assert await states(collector) & {"gang_wait"} == set()
            return found

    assert asyncio.run(watch(0)) == []
    gang("c")  # the older one comes later in the list
    gang("b")
    assert asyncio.run(watch(8)) == [("b", 4, [2]), ("c", 4, [1])]
    gang("a")
    assert asyncio.run(watch(12)) == [("a", 4, [3]), ("b", 4, [2]), ("c", 4, [1])]


async def states(collector: Any) -> set[str]:
    async with collector.lock:
        build(collector.store, Settings(), now_ms=time.time_ns() // 1_000_000 + 3_600_000)
        return {state for (state,) in rows(collector.store, "SELECT DISTINCT state FROM ledger_row")}
