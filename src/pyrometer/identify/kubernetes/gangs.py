"""The number of GPU pods that a job needs before any of them can work, according to its specification.

Every number is a lower bound: a gang that is taken to be too large accuses a job of waiting while it works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

MAX_PODS = 1_000_000  # a larger number is not a gang that anybody waits for

AsksGpus = Callable[[Any], bool]  # of a pod template

# Elastic launchers start with fewer nodes or processes than they can use. A number may come from a variable.
_NUMBER = r"(\d{1,9}|\$\(\w+\)|\$\{\w+\}|\$\w+)"
_NODES = re.compile(rf"--nnodes[=\s]+[\"']?{_NUMBER}:|--min_elastic_nodes[=\s]+[\"']?{_NUMBER}")
_NODES_VARIABLE = re.compile(rf"{_NUMBER}:")
_PROCESSES = re.compile(rf"--min-(?:np|num-proc)[=\s]+[\"']?{_NUMBER}")


class Pods(NamedTuple):
    """The pods of one template."""

    pods: int
    min_pods: int  # the minimum in the specification; else all
    gpus: bool


class Template(NamedTuple):
    """A pod template in a specification."""

    pods: int | None  # None: the specification has no number next to the template
    content: dict[str, Any]


def gang_pods(shape: str | None, spec: Any, requests_gpus: AsksGpus) -> int | None:
    """The number of GPU pods that a job needs to start; 1: it can work with one; None: not specified.

    `shape` names one of the functions below, or is a path to a number of pods of all kinds like `spec.minMember`.
    """
    if shape is None or not isinstance(spec, dict):
        return None
    of_shape = _SHAPES.get(shape)
    count = of_shape(spec, requests_gpus) if of_shape else _at(spec, shape, requests_gpus)
    if count is None or not 1 <= count <= MAX_PODS:
        return None
    return max(min([count, *_elastic_minimums(spec)]), 1)


def _replica_specs(spec: dict[str, Any], requests_gpus: AsksGpus) -> int | None:
    """The jobs of Kubeflow's training operator: `spec.pytorchReplicaSpecs.Worker.replicas` and so on."""
    if spec.get("enableDynamicWorker") is True:  # a TFJob of which workers may come and go
        return 1
    roles = [each for name, value in spec.items() if name.endswith("ReplicaSpecs") for each in _object(value).items()]
    pods = [
        # training works without an evaluator
        one._replace(gpus=one.gpus and role != "Evaluator")
        for role, content in roles
        for one in _pods(_templates({role: content}), requests_gpus)
    ]
    policy = _object(_object(spec.get("runPolicy")).get("schedulingPolicy"))
    needed = _needed(pods, _positive(policy.get("minAvailable")))
    elastic = _positive(_object(spec.get("elasticPolicy")).get("minReplicas"))
    return needed if needed is None or elastic is None else min(needed, elastic)


def _replicated_jobs(spec: dict[str, Any], requests_gpus: AsksGpus) -> int | None:
    """JobSet: jobs of pods. A job that waits for the end of another one is never there together with it."""
    stages: dict[str, int] = {}
    pods_of_stage: dict[int, int] = {}
    jobs = spec.get("replicatedJobs")
    for job in jobs if isinstance(jobs, list) else ():
        if not isinstance(job, dict):
            continue
        after = [_object(each) for each in _listed(job.get("dependsOn"))]
        stage = max(
            (stages.get(str(each.get("name")), 0) + (each.get("status") == "Complete") for each in after), default=0
        )
        stages[str(job.get("name"))] = stage
        count = _needed(_pods(_templates(job), requests_gpus))
        of_job = _object(_object(job.get("template")).get("spec"))
        if count and _count(of_job.get("completions")) > _count(of_job.get("parallelism")):
            count = 1  # its pods take turns
        if count:
            pods_of_stage[stage] = pods_of_stage.get(stage, 0) + count
    return min(pods_of_stage.values(), default=None)


def _volcano_tasks(spec: dict[str, Any], requests_gpus: AsksGpus) -> int | None:
    """Volcano's Job: `minAvailable` counts the pods of all tasks.

    The minimum of each task counts only while they add up to no more than the job's: Volcano's scheduler does the same.
    """
    job_min = _positive(spec.get("minAvailable"))
    tasks = [task for task in _listed(spec.get("tasks")) if isinstance(task, dict)]
    if not tasks:
        return job_min
    pods = []
    for task in tasks:
        count = _count(task.get("replicas"))
        task_min = task.get("minAvailable")
        min_count = min(task_min, count) if _is_count(task_min) else count
        pods.append(Pods(count, min_count, requests_gpus(task.get("template"))))
    sum_of_mins = sum(each.min_pods for each in pods)
    if job_min is None:
        return _needed(pods)
    needed = _needed(pods, job_min)
    if needed is not None and job_min >= sum_of_mins:
        needed = max(needed, _needed(pods) or 1)
    return needed


def _at(spec: dict[str, Any], path: str, requests_gpus: AsksGpus) -> int | None:
    """A number in the object: it counts the pods of all templates next to and below it."""
    parent: Any = {"spec": spec}
    *above, last = path.split(".")
    for step in above:
        parent = _object(parent).get(step)
    number = _positive(_object(parent).get(last))
    if number is None:
        return None
    templates = list(_templates(parent))
    asking = [template for template in templates if requests_gpus(template.content)]
    if not asking:  # the specification does not show which pods get GPUs
        return number
    if any(template.pods is None for template in asking):
        others = sum(each.pods for each in _pods(templates, requests_gpus) if not each.gpus)
        return max(number - others, 1)
    return _needed(_pods(templates, requests_gpus), number)


_SHAPES: dict[str, Callable[[dict[str, Any], AsksGpus], int | None]] = {
    "replica_specs": _replica_specs,
    "replicated_jobs": _replicated_jobs,
    "volcano_tasks": _volcano_tasks,
}


def _needed(pods: Sequence[Pods], min_of_all: int | None = None) -> int | None:
    """How many GPU pods must be there: all, or what is left of a number of all pods without those that request none."""
    gpus = sum(each.pods for each in pods if each.gpus)
    if not gpus:
        return None
    if min_of_all is None:
        return max(sum(each.min_pods for each in pods if each.gpus), 1)
    others = sum(each.pods for each in pods if not each.gpus)
    return min(gpus, max(min_of_all - others, 1))


def _pods(templates: Iterable[Template], requests_gpus: AsksGpus) -> list[Pods]:
    counted = [(1 if count is None else count, content) for count, content in templates]
    return [Pods(count, count, requests_gpus(content)) for count, content in counted]


def _templates(value: Any, times: int = 1) -> Iterator[Template]:
    """The pod templates of a specification, with how many pods each has; jobs of jobs multiply."""
    if isinstance(value, list):
        for each in value:
            yield from _templates(each, times)
    if not isinstance(value, dict):
        return
    size = _size(value)
    for child in value.values():
        inner = child.get("spec") if isinstance(child, dict) else None
        if not isinstance(inner, dict):
            yield from _templates(child, times)
        elif isinstance(inner.get("containers"), list):
            yield Template(times * size if size is not None else times if times > 1 else None, child)
        else:
            yield from _templates(inner, times * (1 if size is None else size))


def _size(value: dict[str, Any]) -> int | None:
    """The number of pods or jobs that an object requests of its template."""
    if "replicas" in value:
        return _count(value["replicas"])
    if "parallelism" in value:
        most = value.get("completions")
        parallelism = _count(value["parallelism"])
        return min(parallelism, most) if _is_count(most) else parallelism
    return None


def _elastic_minimums(spec: dict[str, Any]) -> list[int]:
    """With how many nodes elastic launchers start, according to their commands and variables."""
    found = []
    # Other jobs do not specify the number of processes per pod.
    slots = (_positive(spec.get("slotsPerWorker")) or 1) if "mpiReplicaSpecs" in spec else MAX_PODS
    for _, template in _templates(spec):
        for container in map(_object, _listed(_object(template.get("spec")).get("containers"))):
            words = [*_listed(container.get("command")), *_listed(container.get("args"))]
            command = " ".join(word for word in words if isinstance(word, str))
            variables = {
                str(one.get("name")): str(one.get("value")) for one in map(_object, _listed(container.get("env")))
            }
            written = ["".join(numbers) for numbers in _NODES.findall(command)]
            nodes = _NODES_VARIABLE.match(variables.get("PET_NNODES", ""))
            written += [nodes[1]] if nodes else []
            found += [_number(text, variables) for text in written]
            found += [-(-_number(text, variables) // slots) for text in _PROCESSES.findall(command)]
    return found


def _number(text: str, variables: Mapping[str, str]) -> int:
    """A number in a command, or that of its variable; 1 if it is not specified."""
    value = variables.get(text.strip("${}()"), "") if text.startswith("$") else text
    return int(value) if value.isdecimal() and len(value) < 10 else 1


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(value: Any) -> int:
    return value if _is_count(value) else 1


def _positive(value: Any) -> int | None:
    return value if _is_count(value) and value > 0 else None
