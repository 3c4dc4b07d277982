"""Makes real objects of Kubeflow, with Kubeflow's own packages: what fixtures of this folder take their fields from.

It runs in an environment of its own (`make peers`): kfp, kubeflow-katib and kubeflow-training pin what others pin
otherwise. It writes JSON: the tasks of a compiled pipeline, a Katib Experiment and Trial, a PyTorchJob.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import yaml
from kfp import compiler, dsl
from kubernetes import client


@dsl.component(base_image="python:3.11")
def prepare() -> str:
    return "s3://data"


@dsl.component(base_image="python:3.11")
def train(data: str, lr: float) -> float:
    return lr


@dsl.component(base_image="python:3.11")
def evaluate(loss: float) -> None:
    print(loss)


@dsl.pipeline(name="retrain-ranker")
def retrain(lr: float = 1e-3) -> None:
    data = prepare()
    task = train(data=data.output, lr=lr).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(8)
    task.set_retry(num_retries=2)
    with dsl.If(task.output < 0.5):
        evaluate(loss=task.output)
    with dsl.ParallelFor([1e-3, 1e-4]) as rate:
        train(data=data.output, lr=rate)


def pipeline() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(retrain, str(path))
        spec = yaml.safe_load(path.read_text())
    inside = {name: sorted(one["dag"]["tasks"]) for name, one in spec["components"].items() if "dag" in one}
    retry = spec["root"]["dag"]["tasks"]["train"]["retryPolicy"]["maxRetryCount"]
    return {
        "name": spec["pipelineInfo"]["name"],
        "tasks": sorted(spec["root"]["dag"]["tasks"]),
        "inside": inside,
        "retries": retry,
        "schema": spec["schemaVersion"],
    }


def plain(thing: object) -> dict:
    return client.ApiClient().sanitize_for_serialization(thing)


def of_katib() -> dict:
    from kubeflow import katib as k

    objective = k.V1beta1ObjectiveSpec(
        type="minimize",
        goal=0.2,
        objective_metric_name="validation-loss",
        metric_strategies=[k.V1beta1MetricStrategy(name="validation-loss", value="latest")],
    )
    assigned = [
        k.V1beta1ParameterAssignment(name="lr", value="0.0003"),
        k.V1beta1ParameterAssignment(name="layers", value="4"),
    ]
    observed = k.V1beta1Observation(
        metrics=[k.V1beta1Metric(name="validation-loss", min="0.31", max="2.4", latest="0.33")]
    )
    at = "2026-11-01T10:00:00Z"
    condition = k.V1beta1TrialCondition(type="Running", status="False", last_transition_time=at, last_update_time=at)
    stopped = k.V1beta1TrialCondition(
        type="EarlyStopped",
        status="True",
        reason="TrialEarlyStopped",
        message="Trial is early stopped",
        last_transition_time="2026-11-01T10:20:00Z",
        last_update_time="2026-11-01T10:20:00Z",
    )
    trial = k.V1beta1Trial(
        api_version="kubeflow.org/v1beta1",
        kind="Trial",
        metadata=client.V1ObjectMeta(name="lr-search-abc12345", namespace="ns", uid="trial-1"),
        spec=k.V1beta1TrialSpec(objective=objective, parameter_assignments=assigned),
        status=k.V1beta1TrialStatus(
            start_time=at, completion_time="2026-11-01T10:20:00Z", conditions=[condition, stopped], observation=observed
        ),
    )
    running = k.V1beta1ExperimentCondition(type="Running", status="True", last_transition_time=at, last_update_time=at)
    experiment = k.V1beta1Experiment(
        api_version="kubeflow.org/v1beta1",
        kind="Experiment",
        metadata=client.V1ObjectMeta(name="lr-search", namespace="ns", uid="exp-1"),
        spec=k.V1beta1ExperimentSpec(
            objective=objective,
            algorithm=k.V1beta1AlgorithmSpec(algorithm_name="bayesianoptimization"),
            max_trial_count=10,
            parallel_trial_count=4,
        ),
        status=k.V1beta1ExperimentStatus(
            start_time=at,
            conditions=[running],
            trials=1,
            trials_early_stopped=1,
            current_optimal_trial=k.V1beta1OptimalTrial(
                best_trial_name="lr-search-abc12345", parameter_assignments=assigned, observation=observed
            ),
        ),
    )
    return {"experiment": plain(experiment), "trial": plain(trial)}


def of_training() -> dict:
    from kubeflow import training as t

    container = client.V1Container(
        name="pytorch", image="train", resources=client.V1ResourceRequirements(limits={"nvidia.com/gpu": "8"})
    )
    replicas = t.KubeflowOrgV1ReplicaSpec(
        replicas=2,
        restart_policy="OnFailure",
        template=client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[container])),
    )
    job = t.KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1",
        kind="PyTorchJob",
        metadata=client.V1ObjectMeta(name="ranker-train-9k2lx", namespace="ns", uid="pt-9"),
        spec=t.KubeflowOrgV1PyTorchJobSpec(
            pytorch_replica_specs={"Worker": replicas}, run_policy=t.KubeflowOrgV1RunPolicy(clean_pod_policy="None")
        ),
    )
    return {"pytorchjob": plain(job)}


if __name__ == "__main__":
    made = {"pipeline": pipeline(), **of_katib(), **of_training()}
    made["made_with"] = {name: version(name) for name in ("kfp", "kubeflow-katib", "kubeflow-training")}
    json.dump(made, sys.stdout, indent=1, sort_keys=True)
    print()
