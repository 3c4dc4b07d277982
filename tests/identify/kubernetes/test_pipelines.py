"""Pipelines and sweeps as Kubeflow's objects tell of them: which step and trial a pod is of, and how each is doing.

`kubeflow/made.json` are real objects, made by Kubeflow's own packages (`kubeflow/make.py`); what only a controller
writes (an Argo Workflow's nodes) is written by hand, in the form of its source.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.collect.otlp.messages import RankIdentity, WindowMessage
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.identify.kubernetes.pipelines import StepTry, step_of
from pyrometer.identify.kubernetes.sweeps import EXPERIMENT, TRIAL
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import RunRegistry
from pyrometer.model.records import PipelineRun, PipelineStep, Pod, Run, Sweep, Trial, Workload
from pyrometer.model.settings import Settings

FOLDER = Path(__file__).parents[1] / "kubeflow"
MADE = json.loads((FOLDER / "made.json").read_text())
OF_ITS_OWN = Path(__file__).parents[3] / ".venv-kubeflow" / "bin" / "python"
PYTHON = Path(os.environ.get("PYROMETER_KUBEFLOW_PYTHON", OF_ITS_OWN))
WORKFLOW = "retrain-ranker-9k2lx"
RUN = {"pipeline/runid": "run-17"}
T0 = 1_790_000_000_000


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str, gpus: int = 2) -> objects.PodObject:
    """A pod that waits for a node."""
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    meta = {"name": name, "namespace": "ns", "uid": f"{name}-uid", "creationTimestamp": iso(T0)}
    thing = {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}
    return msgspec.json.decode(json.dumps(thing), type=objects.PodObject)


def node(name: str, kind: str = "Pod", phase: str = "Succeeded", **more: Any) -> dict[str, Any]:
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
    node("", "DAG", "Running"),
    node("root", "DAG", "Running"),
    node("root-driver", templateName="system-dag-driver"),
    node("root.prepare-driver", templateName="system-container-driver"),
    node("root.prepare", "DAG"),
    node("root.prepare.executor", "Skipped", "Skipped"),
    node("root.train", "DAG", "Running"),
    node("root.train.executor", "Retry", "Running"),
    node("root.train.executor(0)", phase="Failed", message="main: Error (exit code 137)"),
    node("root.train.executor(1)", phase="Running"),
    node("root.condition-1", "Skipped", "Skipped"),
    node("root.for-loop-3.iteration-iterations(0:0).iteration-item.train-2.executor", phase="Pending", startedAt=None),
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


class Watched:
    """A cluster that is told of objects as the watch decodes them: from the bytes that an API server sends."""

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


def step_pod(watched: Watched, name: str, node_name: str, **more: Any) -> list[Any]:
    annotations = {"workflows.argoproj.io/node-name": f"{WORKFLOW}.{node_name}"}
    labels = RUN | {"pipelines.kubeflow.org/v2_component": "true", "workflows.argoproj.io/workflow": WORKFLOW}
    return watched.see(pod(name, **more), workflow(), labels=labels, annotations=annotations)


def only(records: list[Any], kind: type) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("root.train.executor", StepTry("train", 1)),
        ("root.train.executor(2)", StepTry("train", 3)),
        ("root.condition-1.evaluate.executor", StepTry("condition-1.evaluate", 1)),
        ("root.loop-3.iteration-iterations(1:1).iteration-item.train-2.executor(0)", StepTry("loop-3(1).train-2", 1)),
        ("train", StepTry("train", 1)),
        ("train(1)", StepTry("train", 2)),
        ("train(0:lr:0.1)", StepTry("train(0:lr:0.1)", 1)),
        ("[0].prepare", StepTry("prepare", 1)),
        ("[1].train(0)", StepTry("train", 1)),
        ("", StepTry("main", 1)),
    ],
)
def test_a_node_is_a_try_of_a_step(name: str, step: StepTry) -> None:
    whole = f"{WORKFLOW}{name}" if name.startswith("[") else f"{WORKFLOW}.{name}" if name else WORKFLOW
    assert step_of(whole, WORKFLOW) == step


@given(st.text(max_size=80))
def test_every_node_has_a_step_and_a_try(name: str) -> None:
    step = step_of(name, WORKFLOW)
    assert step.name
    assert step.attempt >= 1


def test_the_tasks_of_a_compiled_pipeline_are_its_steps() -> None:
    tasks = MADE["pipeline"]["tasks"]
    assert {"prepare", "train"} <= set(tasks)
    assert [step_of(f"{WORKFLOW}.root.{task}.executor", WORKFLOW).name for task in tasks] == tasks


def test_a_run_is_written_down_with_all_its_steps_once_one_of_them_has_gpus() -> None:
    watched = Watched()
    assert watched.changed(workflow()) == []  # nothing of it uses GPUs so far
    records = step_pod(watched, "retry-0", "root.train.executor(0)")
    (run,) = only(records, PipelineRun)
    assert (run.run_id, run.name, run.pipeline) == ("run-17", "nightly retrain", MADE["pipeline"]["name"])
    assert (run.state, run.started_ms, run.workflow_uid) == ("running", T0, "wf-1")
    assert {(one.step, one.attempt): one.state for one in only(records, PipelineStep)} == {
        ("prepare", 1): "cached",
        ("train", 1): "failed",
        ("train", 2): "running",
        ("condition-1", 1): "skipped",
        ("for-loop-3(0).train-2", 1): "pending",
    }
    (held,) = only(records, Pod)
    assert (held.pipeline_run, held.pipeline_step, held.pipeline_attempt) == ("run-17", "train", 1)
    assert only(records, Workload)[0].kind == "Workflow"


def test_only_what_changed_is_written_again() -> None:
    watched = Watched()
    watched.changed(workflow())
    step_pod(watched, "retry-0", "root.train.executor(0)")
    assert watched.changed(workflow()) == []
    done = {"phase": "Succeeded", "finishedAt": iso(T0 + 90_000)}
    over = [one | done if one["name"].endswith("(1)") else one for one in NODES]
    records = watched.changed(workflow(over, phase="Succeeded", finishedAt=iso(T0 + 95_000)))
    (run,), (step,) = only(records, PipelineRun), only(records, PipelineStep)
    assert (run.state, run.ended_ms, run.time_ms) == ("succeeded", T0 + 95_000, T0 + 95_000)
    assert (step.step, step.attempt, step.state, step.ended_ms) == ("train", 2, "succeeded", T0 + 90_000)
    assert len(records) == 2


def test_what_argo_packs_is_read_and_what_is_no_status_is_passed_over() -> None:
    watched = Watched()
    packed = base64.b64encode(gzip.compress(json.dumps({one["id"]: one for one in NODES}).encode())).decode()
    watched.changed(workflow(nodes=[], compressedNodes=packed))
    steps = only(step_pod(watched, "retry-0", "root.train.executor(0)"), PipelineStep)
    assert len(steps) == 5
    for nonsense in ({"nodes": "none"}, {"nodes": {"a": 3}}, {"compressedNodes": "%%%"}, {"compressedNodes": "aGk="}):
        other = workflow([])
        other["status"] |= nonsense
        assert watched.owner(other).status.tries == ()


def pytorchjob(**meta: Any) -> dict[str, Any]:
    made = MADE["pytorchjob"]
    return made | {"metadata": made["metadata"] | {"creationTimestamp": iso(T0)} | meta}


OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": WORKFLOW, "uid": "wf-1"}
STEP_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "step",
        "namespace": "ns",
        "uid": "step-uid",
        "ownerReferences": [OWNER | {"controller": True}],
        "annotations": {"workflows.argoproj.io/node-name": f"{WORKFLOW}.root.train.executor(1)"},
    },
}


@pytest.mark.parametrize(
    ("job", "above", "step"),
    [
        (pytorchjob(ownerReferences=[OWNER | {"controller": True}]), [workflow()], "ranker-train"),  # setOwnerReference
        (pytorchjob(ownerReferences=[OWNER]), [], "ranker-train"),  # written into the manifest
        (pytorchjob(labels=RUN), [], "ranker-train"),
        (pytorchjob(labels=RUN | {"pyrometer.io/pipeline-step": "train"}), [], "train"),
        (pytorchjob(labels=RUN, annotations={"workflows.argoproj.io/node-name": f"{WORKFLOW}.train"}), [], "train"),
        (pytorchjob(), [STEP_POD, workflow()], "train"),  # the step's pod owns it
    ],
    ids=["controller", "owner", "label", "own-label", "node-name", "pod"],
)
def test_a_job_that_a_step_makes_is_a_workload_of_its_own_and_part_of_the_run(
    job: dict[str, Any], above: list[dict[str, Any]], step: str
) -> None:
    watched = Watched()
    watched.changed(workflow())
    records = watched.see(pod("worker-0", gpus=8), job, *above)
    (held,), (workload,) = only(records, Pod), only(records, Workload)
    assert (held.pipeline_run, held.pipeline_step, held.pipeline_attempt) == ("run-17", step, None)
    assert (workload.kind, workload.name, workload.gang_pods) == ("PyTorchJob", "ranker-train-9k2lx", 2)
    assert workload.experiment == "nightly retrain"
    assert only(records, PipelineRun)[0].name == "nightly retrain"


def test_a_job_whose_workflow_nobody_has_seen_is_still_part_of_its_run() -> None:
    records = Watched().see(pod("worker-0"), pytorchjob(labels=RUN))
    (run,) = only(records, PipelineRun)
    assert (run.run_id, run.name, run.state) == ("run-17", "run-17", "unknown")


def test_a_workflow_of_nobody_s_pipeline_is_a_run_by_itself() -> None:
    watched = Watched()
    plain = workflow([node("train"), node("[0].prepare")])
    plain["metadata"] |= {"labels": {}, "annotations": {}}
    annotations = {"workflows.argoproj.io/node-name": f"{WORKFLOW}.train"}
    watched.changed(plain)
    records = watched.see(pod("p0"), plain, annotations=annotations)
    (run,) = only(records, PipelineRun)
    assert (run.run_id, run.name, run.pipeline) == ("wf-1", WORKFLOW, "retrain-ranker")
    assert only(records, Pod)[0].pipeline_step == "train"


def test_a_pod_that_is_of_no_pipeline_is_of_none() -> None:
    records = Watched().see(pod("p0"), pytorchjob())
    assert only(records, Pod)[0][-4:] == (None, None, None, None)
    assert not only(records, PipelineRun)


def test_every_step_that_trains_is_a_run_of_its_own() -> None:
    watched = Watched()
    watched.changed(workflow())
    held = [only(step_pod(watched, name, f"root.{name}.executor"), Pod)[0] for name in ("train", "distil")]
    jobs = [only(watched.see(pod("w"), pytorchjob(labels=RUN)), Pod)[0]]
    names = []
    for number, one in enumerate([*held, *jobs]):
        who = RankIdentity(f"launch-{number}", 0, started_ms=T0, pod_uid=one.pod_uid, device="cuda", gpu_index=0)
        known = RunContext(pods=[one._replace(node_uid="n0")])
        names += [
            run.run
            for run in only(RunRegistry().take([(who, [WindowMessage(T0, T0 + 10_000, 0, 10)])], known).records, Run)
        ]
    assert names == ["wf-1/train", "wf-1/distil", "pt-9"]


def resumed(*pods: Pod) -> Watched:
    """A new process that has read what was written down of pods which are gone."""
    watched = Watched()
    watched.cluster.resume([], pods, [], [], [])
    return watched


def test_a_run_whose_pods_are_gone_is_followed_to_its_end_by_a_new_process() -> None:
    (held,) = only(step_pod(Watched(), "retry-0", "root.train.executor(0)"), Pod)
    watched = resumed(held._replace(ended_ms=T0 + 50_000, phase="Succeeded"))
    watched.cluster.tick(T0 + 200_000_000)
    records = watched.changed(workflow(phase="Succeeded", finishedAt=iso(T0 + 95_000)))
    (run,) = only(records, PipelineRun)
    assert (run.run_id, run.state, run.ended_ms) == ("run-17", "succeeded", T0 + 95_000)
    assert only(records, PipelineStep)
    assert resumed().changed(workflow()) == []


# -- sweeps -----------------------------------------------------------------------------------------------------------

EXPERIMENT_OWNER = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "name": "lr-search", "uid": "exp-1"}


def trial(**status: Any) -> dict[str, Any]:
    made = MADE["trial"]
    meta = made["metadata"] | {"ownerReferences": [EXPERIMENT_OWNER | {"controller": True}]}
    return made | {"metadata": meta, "status": made["status"] | status}


def test_a_trial_and_its_sweep_are_written_down_with_what_they_say() -> None:
    watched = Watched()
    records = watched.see(pod("worker-0"), pytorchjob(), trial(), MADE["experiment"])
    (sweep,), (one,), (held,) = only(records, Sweep), only(records, Trial), only(records, Pod)
    assert sweep[2:] == (
        "exp-1",
        "ns",
        "lr-search",
        "running",
        "validation-loss",
        "min",
        0.2,
        "bayesianoptimization",
        "lr-search-abc12345",
        1_793_527_200_000,
        None,
    )
    assert (one.name, one.sweep_uid, one.state) == ("lr-search-abc12345", "exp-1", "early_stopped")
    assert json.loads(one.parameters_json) == {"lr": "0.0003", "layers": "4"}
    assert one.value == 0.33  # the last one, as the objective's strategy says; without one it would be the least
    assert json.loads(one.metrics_json) == {"validation-loss": {"min": 0.31, "max": 2.4, "latest": 0.33}}
    assert (one.started_ms, one.ended_ms) == (1_793_527_200_000, 1_793_528_400_000)
    assert held.trial_uid == "trial-1"
    assert only(records, Workload)[0].kind == "PyTorchJob"
    assert only(watched.see(pod("worker-1"), pytorchjob(), trial(), MADE["experiment"]), Trial) == []


def test_other_trials_of_a_sweep_follow_and_changes_are_written() -> None:
    watched = Watched()
    assert watched.changed(trial()) == []
    watched.see(pod("worker-0"), pytorchjob(), trial(), MADE["experiment"])
    other = trial(conditions=[{"type": "Created", "status": "True", "lastUpdateTime": iso(T0)}], observation=None)
    other["metadata"] = other["metadata"] | {"uid": "trial-2", "name": "lr-search-zzz"}
    (pending,) = only(watched.changed(other), Trial)
    assert (pending.state, pending.value) == ("created", None)
    assert watched.changed(other) == []


@pytest.mark.parametrize("first", ["experiment", "trial"])
def test_a_sweep_whose_pods_are_gone_is_followed_to_its_end_by_a_new_process(first: str) -> None:
    (held,) = only(Watched().see(pod("worker-0"), pytorchjob(), trial(), MADE["experiment"]), Pod)
    watched = resumed(held._replace(ended_ms=T0 + 50_000, phase="Succeeded"))
    assert {EXPERIMENT, TRIAL} <= set(watched.cluster.followed_kinds())
    things = {"experiment": MADE["experiment"], "trial": trial()}
    second = next(name for name in things if name != first)
    records = watched.changed(things[first]) + watched.changed(things[second])
    assert [one.sweep_uid for one in only(records, Sweep)] == ["exp-1"]
    assert [one.trial_uid for one in only(records, Trial)] == ["trial-1"]
    assert not {EXPERIMENT, TRIAL} & set(resumed().cluster.followed_kinds())  # where nobody has Katib, nobody asks


@pytest.mark.parametrize("latest", ["unavailable", None, "nan", {"a": 1}])
def test_a_metric_that_is_no_number_is_none(latest: Any) -> None:
    told = trial(observation={"metrics": [{"name": "validation-loss", "latest": latest, "min": latest, "max": latest}]})
    (one,) = only(Watched().see(pod("w"), pytorchjob(), told, MADE["experiment"]), Trial)
    assert (one.value, one.metrics_json) == (None, None)


@pytest.mark.heavy
def test_kubeflow_s_own_packages_still_make_such_objects() -> None:
    if not PYTHON.exists():
        pytest.skip("needs Kubeflow's packages in an environment of their own: make peers")
    made = subprocess.run([PYTHON, "-W", "ignore", FOLDER / "make.py"], capture_output=True, text=True, check=True)
    now = json.loads(made.stdout)
    assert {name: value for name, value in now.items() if name != "made_with"} == {
        name: value for name, value in MADE.items() if name != "made_with"
    }
