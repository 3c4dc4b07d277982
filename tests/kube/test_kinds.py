"""The collector against a real API server: pods of one job, with exact GPU-seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests
from tests.support.kube_collectors import (
    Site,
    collecting,
    gpu_seconds,
    now_ms,
    query_rows,
    wait_for_ended,
    wait_for_rows,
)
from tests.support.kube_server import ApiServer, Kubectl

pytestmark = pytest.mark.heavy


def trainjob(site: Site) -> None:
    """TrainJob → JobSet → Job → pods."""
    train = site.owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "bert", spec={"trainer": {"numNodes": 2}})
    jobset = site.owner("jobset.x-k8s.io/v1alpha2", "JobSet", "bert", train)
    job = site.owner("batch/v1", "Job", "bert-node-0", jobset, spec=_JOB)
    for index in range(2):
        site.pod(f"bert-node-0-{index}", job, annotations={"batch.kubernetes.io/job-completion-index": str(index)})


def rayjob(site: Site) -> None:
    """RayJob → RayCluster → head and worker."""
    ray = site.owner("ray.io/v1", "RayJob", "tune")
    cluster = site.owner("ray.io/v1", "RayCluster", "tune-raycluster-x7k2p", ray)
    for name in ("head", "worker"):
        site.pod(f"tune-{name}", cluster, labels={"ray.io/cluster": "tune-raycluster-x7k2p"})


def mpijob(site: Site) -> None:
    """Workers belong to the MPIJob itself, the launcher to its Job."""
    mpi = site.owner("kubeflow.org/v2beta1", "MPIJob", "allreduce")
    launcher = site.owner("batch/v1", "Job", "allreduce-launcher", mpi, spec=_JOB)
    site.pod("allreduce-launcher-abcde", launcher, gpus=1)
    for index in range(2):
        site.pod(f"allreduce-worker-{index}", mpi)


def leader_worker_set(site: Site) -> None:
    """Workers belong to a StatefulSet of their leader pod."""
    lws = site.owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "vllm")
    leaders = site.owner("apps/v1", "StatefulSet", "vllm", lws, spec=_STATEFUL)
    leader = site.pod("vllm-0", leaders)
    workers = site.owner("apps/v1", "StatefulSet", "vllm-0", leader, spec=_STATEFUL)
    site.pod("vllm-0-1", workers)


def volcano(site: Site) -> None:
    """A Job of Volcano has the kind of a batch Job and another group."""
    job = site.owner("batch.volcano.sh/v1alpha1", "Job", "sweep", spec={"minAvailable": 2})
    for index in range(2):
        site.pod(f"sweep-worker-{index}", job, labels={"volcano.sh/task-index": str(index)})


def kueue(site: Site) -> None:
    """A Job that Kueue admitted."""
    job = site.owner("batch/v1", "Job", "queued-job", spec=_JOB, labels={"kueue.x-k8s.io/queue-name": "research"})
    labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    workload = site.owner(
        "kueue.x-k8s.io/v1beta1",
        "Workload",
        "job-queued-job",
        job,
        labels=labels,
        spec={"queueName": "research", "podSets": [{"name": "main", "count": 1, "template": {"spec": _GPU_POD}}]},
    )
    admitted = {
        "lastTransitionTime": manifests.rfc3339(now_ms()),
        "reason": "Admitted",
        "message": "",
        "status": "True",
    }
    site.kubectl.status(
        workload, {"conditions": [{"type": "QuotaReserved", **admitted}, {"type": "Admitted", **admitted}]}
    )
    site.pod("queued-job-0", job)


def pipeline(site: Site) -> None:
    """A step of a Workflow creates a PyTorchJob, which only the label of the run shows."""
    run = {"pipeline/runid": "run-17"}
    workflow = site.owner(
        "argoproj.io/v1alpha1",
        "Workflow",
        "train-pipeline-8hj2k",
        labels=run,
        annotations={"pipelines.kubeflow.org/run_name": "nightly retrain"},
    )
    site.pod("train-pipeline-8hj2k-prepare", workflow, gpus=1, labels=run)
    job = site.owner("kubeflow.org/v1", "PyTorchJob", "step-train", labels=run)
    site.pod("step-train-worker-0", job)


def unknown(site: Site) -> None:
    """A kind that is not in the list of kinds."""
    site.pod("sweep-0", site.owner("example.com/v1", "Sweep", "grid"))


def pytorchjob(site: Site) -> None:
    """Twelve pods."""
    job = site.owner("kubeflow.org/v1", "PyTorchJob", "llama")
    for index in range(12):
        site.pod(f"llama-worker-{index}", job)


_GPU_POD = {"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
_CONTAINERS = [{"name": "m", "image": "x"}]
_TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"restartPolicy": "Never", "containers": _CONTAINERS}}
_JOB = {"template": _TEMPLATE}
_STATEFUL = {
    "serviceName": "x",
    "selector": {"matchLabels": {"app": "x"}},
    "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": _CONTAINERS}},
}


def batch_job(site: Site) -> None:
    """A batch Job of three pods."""
    job = site.owner("batch/v1", "Job", "dedup", spec=_JOB)
    for index in range(3):
        site.pod(f"dedup-{index}", job)


def deployment(site: Site) -> None:
    """Deployment → ReplicaSet → pods."""
    spec = {key: value for key, value in _STATEFUL.items() if key != "serviceName"}
    above = site.owner("apps/v1", "Deployment", "chat-api", spec=spec)
    replicas = site.owner("apps/v1", "ReplicaSet", "chat-api-6d4cf56db6", above, spec=spec)
    for index in range(2):
        site.pod(f"chat-api-6d4cf56db6-{index}", replicas)


@pytest.mark.parametrize(
    ("make", "workload", "gpus"), [(batch_job, "Job/dedup", 24), (deployment, "Deployment/chat-api", 16)]
)
def test_builtin_kinds_are_workloads(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path, make: Any, workload: str, gpus: int
) -> None:
    test_pods_of_a_job_are_one_workload_with_exact_gpu_seconds(
        api_server, kubectl, namespace, tmp_path, make, workload, gpus
    )


@pytest.mark.usefixtures("custom_resources")
@pytest.mark.parametrize(
    ("make", "workload", "gpus"),
    [
        (pytorchjob, "PyTorchJob/llama", 96),
        (trainjob, "TrainJob/bert", 16),
        (rayjob, "RayJob/tune", 16),
        (mpijob, "MPIJob/allreduce", 17),
        (leader_worker_set, "LeaderWorkerSet/vllm", 16),
        (volcano, "Job/sweep", 16),
        (kueue, "Job/queued-job", 8),
        (unknown, "Sweep/grid", 8),
    ],
)
def test_pods_of_a_job_are_one_workload_with_exact_gpu_seconds(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path, make: Any, workload: str, gpus: int
) -> None:
    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            site = Site(kubectl, namespace)
            make(site)
            site.finish()
            await wait_for_ended(collector, namespace, len(site.pods))
            assert await gpu_seconds(collector, namespace) == {workload: gpus * 100}

    asyncio.run(scenario())


@pytest.mark.usefixtures("custom_resources")
def test_job_of_a_pipeline_is_its_own_workload(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            site = Site(kubectl, namespace)
            pipeline(site)
            site.finish()
            await wait_for_ended(collector, namespace, len(site.pods))
            held = {"Workflow/train-pipeline-8hj2k": 100, "PyTorchJob/step-train": 800}
            assert await gpu_seconds(collector, namespace) == held

    asyncio.run(scenario())


@pytest.mark.usefixtures("custom_resources")
def test_experiment_spans_namespaces_and_attempts(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        other = f"{namespace}-other"
        kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
        async with collecting(api_server, tmp_path / "data") as collector:
            site = Site(kubectl, namespace)
            labels = {"experiment": "scaling-laws"}
            first = site.owner("kubeflow.org/v1", "PyTorchJob", "small", labels=labels)
            site.owner("kubeflow.org/v1", "PyTorchJob", "large", labels=labels, namespace=other)
            large = site.owner("kubeflow.org/v1", "PyTorchJob", "larger", labels=labels, namespace=other)
            site.pod("small-0", first)
            for attempt in range(3):  # each begins when the one before has ended
                pod = site.pod("larger-0", large, namespace=other)
                site.finish()
                await wait_for_ended(collector, namespace, attempt + 2)
                if attempt < 2:
                    kubectl.delete(pod)
                    site.pods.remove(pod)
            assert await gpu_seconds(collector, namespace) == {"PyTorchJob/small": 800, "PyTorchJob/larger": 2400}
            found = await query_rows(
                collector, f"SELECT name, attempt FROM pod WHERE namespace = '{other}' GROUP BY ALL ORDER BY ALL"
            )
            assert found == [("larger-0", 1), ("larger-0", 2), ("larger-0", 3)]
            names = await query_rows(
                collector,
                f"SELECT DISTINCT experiment, experiment_rule FROM workload WHERE namespace LIKE '{namespace}%'",
            )
            assert names == [("scaling-laws", "label:experiment")]

    asyncio.run(scenario())


@pytest.mark.usefixtures("custom_resources")
def test_later_label_of_a_job_changes_its_team(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            site = Site(kubectl, namespace, 1)
            job = site.owner("kubeflow.org/v1", "PyTorchJob", "late")
            site.pod("late-0", job)
            teams = f"SELECT team, team_rule FROM workload WHERE namespace = '{namespace}' ORDER BY time_ms"
            await wait_for_rows(collector, teams, [(namespace, "namespace")])
            kubectl.patch(job, {"metadata": {"labels": {"team": "vision"}}})
            await wait_for_rows(collector, teams, [(namespace, "namespace"), ("vision", "label:team")])

    asyncio.run(scenario())
