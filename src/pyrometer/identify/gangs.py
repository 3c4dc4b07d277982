"""How many pods of a job must be there before any of them can work, as its own specification says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_PODS = 1_000_000  # beyond, it is no gang that anybody waits for


def gang_pods(shape: str | None, spec: Any, asks_gpus: Callable[[Any], bool]) -> int | None:
    """The size of a gang; None when it is none, or nobody says. Only pods that ask for GPUs count.

    `shape` names one of the functions below, or is a path into the object like `spec.minAvailable`.
    """
    if shape is None or not isinstance(spec, dict):
        return None
    count = _SHAPES[shape](spec, asks_gpus) if shape in _SHAPES else _at(spec, shape)
    return count if isinstance(count, int) and not isinstance(count, bool) and 1 < count <= MOST_PODS else None


def _replica_specs(spec: dict[str, Any], asks_gpus: Callable[[Any], bool]) -> int:
    """The jobs of Kubeflow's training operator: `spec.pytorchReplicaSpecs.Worker.replicas` and so on."""
    return sum(
        _count(replicas.get("replicas"))
        for name, kinds in spec.items()
        if name.endswith("ReplicaSpecs") and isinstance(kinds, dict)
        for replicas in kinds.values()
        if isinstance(replicas, dict) and asks_gpus(_pod_of(replicas.get("template")))
    )


def _replicated_jobs(spec: dict[str, Any], asks_gpus: Callable[[Any], bool]) -> int:
    """JobSet: jobs of pods."""
    total = 0
    jobs = spec.get("replicatedJobs")
    for job in jobs if isinstance(jobs, list) else ():
        of_job = _pod_of(job.get("template")) if isinstance(job, dict) else None
        if isinstance(of_job, dict) and asks_gpus(_pod_of(of_job.get("template"))):
            total += _count(job.get("replicas")) * _count(of_job.get("parallelism"))
    return total


_SHAPES: dict[str, Callable[[dict[str, Any], Callable[[Any], bool]], int]] = {
    "replica_specs": _replica_specs,
    "replicated_jobs": _replicated_jobs,
}


def _pod_of(template: Any) -> Any:
    return template.get("spec") if isinstance(template, dict) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 1


def _at(spec: dict[str, Any], path: str) -> Any:
    value: Any = {"spec": spec}
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value
