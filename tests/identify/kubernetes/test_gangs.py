"""How many GPU pods a job needs, according to its specification: never more than it can start with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.identify.gpus.gpu_requests import requests_gpus
from pyrometer.identify.kubernetes.gangs import gang_pods


def template(gpus: int | None = 8, **container: Any) -> dict[str, Any]:
    limits = {} if gpus is None else {"nvidia.com/gpu": gpus}
    return {"spec": {"containers": [{"name": "m", "resources": {"limits": limits}, **container}]}}


def replicas(count: int | None, gpus: int | None = 8, **container: Any) -> dict[str, Any]:
    return {"template": template(gpus, **container)} | ({} if count is None else {"replicas": count})


def task(name: str, count: int | None, gpus: int | None, enough: int | None = None) -> dict[str, Any]:
    return {"name": name, **replicas(count, gpus)} | ({} if enough is None else {"minAvailable": enough})


def kubeflow(kind: str = "pytorch", **spec: Any) -> dict[str, Any]:
    return {f"{kind}ReplicaSpecs": {"Master": replicas(1), "Worker": replicas(3)}, **spec}


def job(name: str, count: int, gpus: int | None = 8, after: str = "", **spec: Any) -> dict[str, Any]:
    depends = [{"name": after.partition(":")[0], "status": after.partition(":")[2]}] if after else []
    return {
        "name": name,
        "dependsOn": depends,
        "template": {"spec": {"parallelism": count, "template": template(gpus), **spec}},
    }


def size(shape: str, spec: dict[str, Any]) -> int | None:
    return gang_pods(shape, spec, requests_gpus)


LAUNCHER = template(None, command=["sh", "-c", "horovodrun -np 32 --min-np 8 python train.py"])


class TestVolcano:
    """`minAvailable` counts the pods of all tasks."""

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            # volcano's MindSpore example: a master without GPUs and two workers
            ({"minAvailable": 3, "tasks": [task("mpimaster", 1, None), task("mpiworker", 2, 1)]}, 2),
            ({"minAvailable": 3, "tasks": [task("master", 1, 0), task("worker", 2, 1)]}, 2),  # asks for zero GPUs
            ({"minAvailable": 6, "tasks": [task("ps", 2, None), task("chief", 1, 8), task("worker", 3, 8)]}, 4),
            # elastic: fewer than all replicas are enough
            ({"minAvailable": 3, "tasks": [task("master", 1, None), task("worker", 4, 8)]}, 2),
            ({"minAvailable": 2, "tasks": [task("worker", 4, 8)]}, 2),
            ({"minAvailable": 1, "tasks": [task("ps", 2, None), task("worker", 4, 8)]}, 1),
            # minimums of tasks count while they add up to no more than the job's
            ({"minAvailable": 3, "tasks": [task("ps", 2, None, 1), task("worker", 4, 8, 2)]}, 2),
            ({"minAvailable": 5, "tasks": [task("ps", 2, None, 1), task("worker", 4, 8, 2)]}, 3),
            ({"minAvailable": 2, "tasks": [task("ps", 1, None, 1), task("worker", 4, 8, 4)]}, 1),
            ({"tasks": [task("ps", 2, None), task("worker", 4, 8, 3)]}, 3),  # the job's default: their sum
            ({"tasks": [task("master", None, None), task("worker", 4, 8)]}, 4),
            ({"minAvailable": 3, "tasks": [task("worker", 3, None)]}, None),  # nothing asks for GPUs
            ({"minAvailable": 3}, 3),  # no task says what it asks for
            # how many processes a pod has is not known: eight may be one pod
            ({"tasks": [{"name": "l", "template": LAUNCHER}, task("worker", 4, 8)]}, 1),
        ],
    )
    def test_volcano_gang_counts_only_tasks_with_gpus(self, spec: dict[str, Any], expected: int | None) -> None:
        assert size("volcano_tasks", spec) == expected


class TestKubeflow:
    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            (kubeflow(), 4),
            (kubeflow(elasticPolicy={"minReplicas": 2, "maxReplicas": 4}), 2),
            (kubeflow(elasticPolicy={"minReplicas": 1, "maxReplicas": 4}), 1),
            (kubeflow(elasticPolicy={"maxReplicas": 4}), 4),
            (kubeflow("paddle", elasticPolicy={"minReplicas": 3}), 3),
            (kubeflow(runPolicy={"schedulingPolicy": {"minAvailable": 2}}), 2),
            ({"tfReplicaSpecs": {"PS": replicas(2, None), "Worker": replicas(4)}}, 4),
            (
                {
                    "tfReplicaSpecs": {"PS": replicas(2, None), "Worker": replicas(4)},
                    "runPolicy": {"schedulingPolicy": {"minAvailable": 4}},
                },
                2,
            ),
            ({"tfReplicaSpecs": {"Worker": replicas(4)}, "enableDynamicWorker": True}, 1),
            ({"tfReplicaSpecs": {"Chief": replicas(1), "Worker": replicas(2), "Evaluator": replicas(1)}}, 3),
            (
                {
                    "tfReplicaSpecs": {"Worker": replicas(3), "Evaluator": replicas(1)},
                    "runPolicy": {"schedulingPolicy": {"minAvailable": 3}},  # the evaluator may be one of them
                },
                2,
            ),
            ({"mpiReplicaSpecs": {"Launcher": replicas(1, None), "Worker": replicas(2)}}, 2),
            ({"pytorchReplicaSpecs": {"Worker": replicas(None)}}, 1),
            ({"pytorchReplicaSpecs": {"Worker": replicas(4, command=["torchrun", "--nnodes=2:4", "train.py"])}}, 2),
            ({"pytorchReplicaSpecs": {"Worker": replicas(4, env=[{"name": "PET_NNODES", "value": "3:4"}])}}, 3),
            ({"pytorchReplicaSpecs": {"Worker": replicas(4, env=[{"name": "PET_NNODES", "value": "4"}])}}, 4),
            *(
                ({"pytorchReplicaSpecs": {"Worker": replicas(4, args=[command], env=env)}}, expected)
                for command in (
                    "torchrun --nnodes=$MIN:$MAX t.py",
                    "torchrun --nnodes ${MIN}:4 t.py",
                    'torchrun --nnodes "$(MIN):$(MAX)" t.py',
                    "deepspeed --elastic_training --min_elastic_nodes $MIN t.py",
                )
                for env, expected in (([{"name": "MIN", "value": "2"}], 2), ([], 1))
            ),
            ({"pytorchReplicaSpecs": {"Worker": replicas(4, args=["torchrun --nnodes=2:$MAX t.py"])}}, 2),
            ({"pytorchReplicaSpecs": {"Worker": replicas(4, args=["torchrun --nnodes=$NODES t.py"])}}, 4),
            ({"pytorchReplicaSpecs": {"Worker": replicas(4, env=[{"name": "PET_NNODES", "value": "$(MIN):4"}])}}, 1),
            (
                {
                    "slotsPerWorker": 2,
                    "mpiReplicaSpecs": {
                        "Launcher": replicas(1, None, args=["-c", "horovodrun -np 8 --min-np 5 python train.py"]),
                        "Worker": replicas(4),
                    },
                },
                3,
            ),
        ],
    )
    def test_kubeflow_gang_is_the_minimum_of_its_replicas(self, spec: dict[str, Any], expected: int | None) -> None:
        assert size("replica_specs", spec) == expected


class TestJobSet:
    @pytest.mark.parametrize(
        ("jobs", "expected"),
        [
            ([job("workers", 4), job("driver", 1, None)], 4),
            ([{**job("workers", 4), "replicas": 2}], 8),
            ([job("workers", 4, completions=2)], 2),  # no more pods than completions
            ([job("workers", 4, completions=6)], 1),  # its pods take turns: two of them are the last
            ([job("workers", 4, completions=6), job("server", 2)], 3),
            ([job("warm", 1), job("workers", 4, after="warm:Complete")], 1),  # never there at once
            ([job("warm", 2), job("workers", 4, after="warm:Complete")], 2),
            ([job("leader", 1), job("workers", 4, after="leader:Ready")], 5),
            ([job("download", 1, None), job("workers", 4, after="download:Complete")], 4),
            ([job("cpu", 4, None)], None),
        ],
    )
    def test_jobset_gang_counts_jobs_that_run_together(self, jobs: list[dict[str, Any]], expected: int | None) -> None:
        assert size("replicated_jobs", {"replicatedJobs": jobs}) == expected


class TestPaths:
    """A number of pods of all kinds, as rules of one's own name it."""

    @pytest.mark.parametrize(
        ("path", "spec", "expected"),
        [
            ("spec.workers", {"workers": 5}, 5),  # nothing says what asks for GPUs
            ("spec.minMember", {"minMember": 4, "roles": [replicas(1, None), replicas(3)]}, 3),
            ("spec.minMember", {"minMember": 3, "roles": [replicas(1, None), replicas(3)]}, 2),
            ("spec.minMember", {"minMember": 9, "roles": [replicas(1, None), replicas(3)]}, 3),
            ("spec.minMember", {"minMember": 9, "roles": [replicas(3, None)]}, 9),
            ("spec.worker.replicas", {"worker": replicas(4), "master": replicas(1, None)}, 4),
            ("spec.workers", {"workers": 4, "template": template()}, 4),
            ("spec.size", {"size": 5, "leaderTemplate": template(None), "workerTemplate": template()}, 4),
            ("spec.minMember", {"minMember": True}, None),
            ("spec.minMember", {"minMember": "4"}, None),
            ("spec.a.b", {"a": 3}, None),
        ],
    )
    def test_path_gang_ignores_pods_without_gpus(self, path: str, spec: dict[str, Any], expected: int | None) -> None:
        assert size(path, spec) == expected


@pytest.mark.parametrize(
    ("content", "asks"),
    [
        (template(8), True),
        (template(0), False),
        (template(None), False),
        (template(None) | {"metadata": {"annotations": {"gpu-fraction": "0.5"}}}, True),
        (template(None) | {"metadata": {"annotations": {"gpu-memory": "8000"}}}, True),
        ({"spec": {"containers": [], "resourceClaims": [{"name": "gpu"}]}}, True),
        ({"spec": {"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}, False),
        ({"spec": {"containers": 3}}, False),
        ("template", False),
        (None, False),
    ],
)
def test_requests_gpus_agrees_with_the_pods_of_a_template(content: Any, asks: bool) -> None:
    assert requests_gpus(content) is asks


counts = st.integers(0, 5)
tasks = st.lists(
    st.tuples(counts, st.sampled_from([None, 0, 1, 8]), st.one_of(st.none(), counts)), min_size=1, max_size=4
)


@given(tasks, st.integers(0, 12))
def test_volcano_gang_is_complete_when_volcano_would_start_it(rows: list[Any], job_min: int) -> None:
    """Whatever pods satisfy Volcano's own rule, there are as many GPU pods among them as the gang has."""
    listed = [task(f"t{n}", count, gpus, enough) for n, (count, gpus, enough) in enumerate(rows)]
    spec = {"tasks": listed} | ({"minAvailable": job_min} if job_min else {})
    gang = size("volcano_tasks", spec)
    mins = [count if enough is None else min(enough, count) for count, _, enough in rows]
    needed = job_min or sum(mins)
    fewest = None  # GPU pods among any set of pods that Volcano accepts: those without GPUs come first
    if needed <= sum(count for count, _, _ in rows):
        floors = mins if needed >= sum(mins) else [0] * len(rows)
        left = max(needed - sum(floors), 0)
        spare = sum(count - floor for (count, gpus, _), floor in zip(rows, floors, strict=True) if not gpus)
        fewest = sum(floor for (_, gpus, _), floor in zip(rows, floors, strict=True) if gpus) + max(left - spare, 0)
    if gang is not None and fewest is not None:
        assert gang <= max(fewest, 1)
        assert gang >= 1


nested = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "tasks",
                    "template",
                    "replicas",
                    "minAvailable",
                    "containers",
                    "replicatedJobs",
                    "dependsOn",
                    "name",
                    "parallelism",
                    "completions",
                    "env",
                    "args",
                    "pytorchReplicaSpecs",
                    "elasticPolicy",
                    "runPolicy",
                    "resources",
                    "limits",
                    "metadata",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=25,
)


@given(nested, st.sampled_from(["volcano_tasks", "replica_specs", "replicated_jobs", "spec.minAvailable"]))
def test_invalid_specification_has_no_gang(spec: Any, shape: str) -> None:
    found = gang_pods(shape, spec, requests_gpus)
    assert found is None or found >= 1
