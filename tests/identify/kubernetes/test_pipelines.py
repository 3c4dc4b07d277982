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
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.otlp.messages import RankIdentity, WindowMessage
from pyrometer.identify.kubernetes.pipelines import StepAttempt, step_of
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import RunRegistry
from pyrometer.model.records import PipelineRun, PipelineStep, Pod, Run, Workload
from tests.support.watched_workflows import (
    FOLDER,
    MADE,
    NODES,
    RUN,
    T0,
    WORKFLOW,
    WatchedPipelines,
    iso,
    of_kind,
    pending_pod,
    pytorchjob,
    resumed,
    step_pod,
    workflow,
    workflow_node,
)

OF_ITS_OWN = Path(__file__).parents[3] / ".venv-kubeflow" / "bin" / "python"
PYTHON = Path(os.environ.get("PYROMETER_KUBEFLOW_PYTHON", OF_ITS_OWN))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("root.train.executor", StepAttempt("train", 1)),
        ("root.train.executor(2)", StepAttempt("train", 3)),
        ("root.condition-1.evaluate.executor", StepAttempt("condition-1.evaluate", 1)),
        (
            "root.loop-3.iteration-iterations(1:1).iteration-item.train-2.executor(0)",
            StepAttempt("loop-3(1).train-2", 1),
        ),
        ("train", StepAttempt("train", 1)),
        ("train(1)", StepAttempt("train", 2)),
        ("train(0:lr:0.1)", StepAttempt("train(0:lr:0.1)", 1)),
        ("[0].prepare", StepAttempt("prepare", 1)),
        ("[1].train(0)", StepAttempt("train", 1)),
        ("", StepAttempt("main", 1)),
    ],
)
def test_step_of_reads_step_and_attempt_from_a_node_name(name: str, step: StepAttempt) -> None:
    whole = f"{WORKFLOW}{name}" if name.startswith("[") else f"{WORKFLOW}.{name}" if name else WORKFLOW
    assert step_of(whole, WORKFLOW) == step


@given(st.text(max_size=80))
def test_step_of_any_name_has_a_step_and_an_attempt(name: str) -> None:
    step = step_of(name, WORKFLOW)
    assert step.name
    assert step.attempt >= 1


def test_step_of_reads_the_tasks_of_a_compiled_pipeline() -> None:
    tasks = MADE["pipeline"]["tasks"]
    assert {"prepare", "train"} <= set(tasks)
    assert [step_of(f"{WORKFLOW}.root.{task}.executor", WORKFLOW).name for task in tasks] == tasks


def test_run_is_recorded_with_all_steps_once_a_step_has_gpus() -> None:
    watched = WatchedPipelines()
    assert watched.changed(workflow()) == []  # none of its pods uses GPUs so far
    records = step_pod(watched, "retry-0", "root.train.executor(0)")
    (run,) = of_kind(records, PipelineRun)
    assert (run.run_id, run.name, run.pipeline) == ("run-17", "nightly retrain", MADE["pipeline"]["name"])
    assert (run.state, run.started_ms, run.workflow_uid) == ("running", T0, "wf-1")
    assert {(one.step, one.attempt): one.state for one in of_kind(records, PipelineStep)} == {
        ("prepare", 1): "cached",
        ("train", 1): "failed",
        ("train", 2): "running",
        ("condition-1", 1): "skipped",
        ("for-loop-3(0).train-2", 1): "pending",
    }
    (held,) = of_kind(records, Pod)
    assert (held.pipeline_run, held.pipeline_step, held.pipeline_attempt) == ("run-17", "train", 1)
    assert of_kind(records, Workload)[0].kind == "Workflow"


def test_only_changed_steps_are_recorded_again() -> None:
    watched = WatchedPipelines()
    watched.changed(workflow())
    step_pod(watched, "retry-0", "root.train.executor(0)")
    assert watched.changed(workflow()) == []
    done = {"phase": "Succeeded", "finishedAt": iso(T0 + 90_000)}
    over = [one | done if one["name"].endswith("(1)") else one for one in NODES]
    records = watched.changed(workflow(over, phase="Succeeded", finishedAt=iso(T0 + 95_000)))
    (run,), (step,) = of_kind(records, PipelineRun), of_kind(records, PipelineStep)
    assert (run.state, run.ended_ms, run.time_ms) == ("succeeded", T0 + 95_000, T0 + 95_000)
    assert (step.step, step.attempt, step.state, step.ended_ms) == ("train", 2, "succeeded", T0 + 90_000)
    assert len(records) == 2


def test_packed_status_is_read_and_invalid_status_is_ignored() -> None:
    watched = WatchedPipelines()
    packed = base64.b64encode(gzip.compress(json.dumps({one["id"]: one for one in NODES}).encode())).decode()
    watched.changed(workflow(nodes=[], compressedNodes=packed))
    steps = of_kind(step_pod(watched, "retry-0", "root.train.executor(0)"), PipelineStep)
    assert len(steps) == 5
    for nonsense in ({"nodes": "none"}, {"nodes": {"a": 3}}, {"compressedNodes": "%%%"}, {"compressedNodes": "aGk="}):
        other = workflow([])
        other["status"] |= nonsense
        assert watched.owner(other).status.tries == ()


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
def test_job_created_by_a_step_is_a_workload_and_part_of_the_run(
    job: dict[str, Any], above: list[dict[str, Any]], step: str
) -> None:
    watched = WatchedPipelines()
    watched.changed(workflow())
    records = watched.see(pending_pod("worker-0", gpus=8), job, *above)
    (held,), (workload,) = of_kind(records, Pod), of_kind(records, Workload)
    assert (held.pipeline_run, held.pipeline_step, held.pipeline_attempt) == ("run-17", step, None)
    assert (workload.kind, workload.name, workload.gang_pods) == ("PyTorchJob", "ranker-train-9k2lx", 2)
    assert workload.experiment == "nightly retrain"
    assert of_kind(records, PipelineRun)[0].name == "nightly retrain"


def test_job_with_an_unknown_workflow_is_part_of_its_run() -> None:
    records = WatchedPipelines().see(pending_pod("worker-0"), pytorchjob(labels=RUN))
    (run,) = of_kind(records, PipelineRun)
    assert (run.run_id, run.name, run.state) == ("run-17", "run-17", "unknown")


def test_workflow_without_a_pipeline_is_its_own_run() -> None:
    watched = WatchedPipelines()
    plain = workflow([workflow_node("train"), workflow_node("[0].prepare")])
    plain["metadata"] |= {"labels": {}, "annotations": {}}
    annotations = {"workflows.argoproj.io/node-name": f"{WORKFLOW}.train"}
    watched.changed(plain)
    records = watched.see(pending_pod("p0"), plain, annotations=annotations)
    (run,) = of_kind(records, PipelineRun)
    assert (run.run_id, run.name, run.pipeline) == ("wf-1", WORKFLOW, "retrain-ranker")
    assert of_kind(records, Pod)[0].pipeline_step == "train"


def test_pod_without_a_pipeline_has_no_run() -> None:
    records = WatchedPipelines().see(pending_pod("p0"), pytorchjob())
    assert of_kind(records, Pod)[0][-4:] == (None, None, None, None)
    assert not of_kind(records, PipelineRun)


def test_each_training_step_is_a_separate_run() -> None:
    watched = WatchedPipelines()
    watched.changed(workflow())
    held = [of_kind(step_pod(watched, name, f"root.{name}.executor"), Pod)[0] for name in ("train", "distil")]
    jobs = [of_kind(watched.see(pending_pod("w"), pytorchjob(labels=RUN)), Pod)[0]]
    names = []
    for number, one in enumerate([*held, *jobs]):
        who = RankIdentity(f"launch-{number}", 0, started_ms=T0, pod_uid=one.pod_uid, device="cuda", gpu_index=0)
        known = RunContext(pods=[one._replace(node_uid="n0")])
        names += [
            run.run
            for run in of_kind(RunRegistry().take([(who, [WindowMessage(T0, T0 + 10_000, 0, 10)])], known).records, Run)
        ]
    assert names == ["wf-1/train", "wf-1/distil", "pt-9"]


def test_run_without_pods_is_followed_to_its_end_after_a_restart() -> None:
    (held,) = of_kind(step_pod(WatchedPipelines(), "retry-0", "root.train.executor(0)"), Pod)
    watched = resumed(held._replace(ended_ms=T0 + 50_000, phase="Succeeded"))
    watched.cluster.tick(T0 + 200_000_000)
    records = watched.changed(workflow(phase="Succeeded", finishedAt=iso(T0 + 95_000)))
    (run,) = of_kind(records, PipelineRun)
    assert (run.run_id, run.state, run.ended_ms) == ("run-17", "succeeded", T0 + 95_000)
    assert of_kind(records, PipelineStep)
    assert resumed().changed(workflow()) == []


# -- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_fixtures_match_the_packages_of_kubeflow() -> None:
    if not PYTHON.exists():
        pytest.skip("needs Kubeflow's packages in an environment of their own: make peers")
    made = subprocess.run([PYTHON, "-W", "ignore", FOLDER / "make.py"], capture_output=True, text=True, check=True)
    now = json.loads(made.stdout)
    assert {name: value for name, value in now.items() if name != "made_with"} == {
        name: value for name, value in MADE.items() if name != "made_with"
    }
