"""Runs of pipelines (Argo Workflows, and Kubeflow Pipelines on top of them): which pods and jobs are part of which
step, and the progress of each step, according to the Workflow."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ms
from pyrometer.identify.kubernetes.change_times import MAX_TEXT_CHARS, iso_ms, stamped
from pyrometer.identify.kubernetes.workload_identity import at, ungenerated
from pyrometer.identify.kubernetes.workload_kinds import FieldRef
from pyrometer.model.records import PipelineRun, PipelineStep

WORKFLOW = ("argoproj.io", "Workflow")
RUN_ID = FieldRef(
    "label", "pipeline/runid"
)  # on the Workflow and its pods; on jobs of a step where its author passed it on
RUN_NAME = FieldRef("annotation", "pipelines.kubeflow.org/run_name")
STEP = FieldRef("annotation", "workflows.argoproj.io/node-name")
OWN_STEPS = (FieldRef("label", "pyrometer.io/pipeline-step"), FieldRef("annotation", "pyrometer.io/pipeline-step"))
PIPELINES = (
    FieldRef("label", "pyrometer.io/pipeline"),
    FieldRef("annotation", "pyrometer.io/pipeline"),
    FieldRef("label", "workflows.argoproj.io/workflow-template"),
    FieldRef("label", "workflows.argoproj.io/cluster-workflow-template"),
    FieldRef("label", "workflows.argoproj.io/cron-workflow"),
)
PLACES = (RUN_ID, RUN_NAME, STEP, *OWN_STEPS, *PIPELINES)

MAX_STEPS = 2_000  # of one run
MAX_UNPACKED_BYTES = 16 * 1024 * 1024  # bytes of the status of one Workflow: Argo packs what is large
UNKNOWN = "unknown"
_STATES = {
    "Pending": "pending",
    "Running": "running",
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Error": "failed",
    "Skipped": "skipped",
    "Omitted": "skipped",
}
_WORKS = ("Pod", "Skipped", "Suspend", "HTTP", "Plugin")  # nodes that do something; others hold them together
_OF_KUBEFLOW = "system-"  # templates that Kubeflow Pipelines adds: a driver before every step
_TRY = re.compile(r"\((\d+)\)$")
_GROUP = re.compile(r"\[\d+\]")
_ITERATION = re.compile(r"\.iteration-iterations\((\d+):[^)]*\)\.iteration-item\b")


class StepAttempt(NamedTuple):
    """A step of a pipeline, and the number of its attempt; a child without a step is called by its own name."""

    name: str
    attempt: int


class PipelinePart(NamedTuple):
    """The run that a pod belongs to, and the step if it is known."""

    run_id: str
    step: StepAttempt | None
    own: bool  # the Workflow made the pod itself: no job stands between them
    workflow: objects.Meta | None  # where it could be read


class WorkflowStatus(NamedTuple):
    """The state and the steps of a Workflow; nothing else of its status is kept."""

    state: str
    started_ms: int | None
    ended_ms: int | None
    tries: tuple[PipelineStep, ...]  # without time and run


def step_of(node_name: str, workflow: str) -> StepAttempt:
    """The step that a node of a Workflow is: `retrain-9k2lx.root.train.executor(1)` is the second try of `train`."""
    path = node_name.removeprefix(workflow).removeprefix(".")
    tried = _TRY.search(path)
    path = _TRY.sub("", path)
    if path.startswith("root."):  # Kubeflow Pipelines puts every step into a graph of its own
        path = _ITERATION.sub(r"(\1)", path.removeprefix("root.")).removesuffix(".executor")
    path = _GROUP.sub("", path).strip(".")
    return StepAttempt((path or "main")[:MAX_TEXT_CHARS], int(tried[1]) + 1 if tried and len(tried[1]) < 5 else 1)


def read_workflow_status(workflow: objects.OwnerObject) -> WorkflowStatus:
    """The status of a Workflow: its steps, without their containers and the steps that Kubeflow adds."""
    status = workflow.status if isinstance(workflow.status, dict) else {}
    name = workflow.metadata.name
    tries: dict[StepAttempt, PipelineStep] = {}
    for node in _nodes(status):
        kind, phase, node_name = node.get("type"), node.get("phase"), node.get("name")
        template = str(node.get("templateName") or "")
        if kind not in _WORKS or not isinstance(node_name, str) or len(tries) >= MAX_STEPS:
            continue
        if template.startswith(_OF_KUBEFLOW) and template.endswith("-driver"):
            continue
        step = step_of(node_name, name)
        state = _STATES.get(str(phase), "pending")
        if kind == "Skipped" and node_name.endswith(".executor"):  # skipped because its result is known already
            state = "cached"
        began_ms, ended_ms = iso_ms(node.get("startedAt")), iso_ms(node.get("finishedAt"))
        message = str(node.get("message") or "")[:MAX_TEXT_CHARS] or None
        tries[step] = PipelineStep(
            time_ms=0,
            run_id="",
            step=step.name,
            attempt=step.attempt,
            state=state,
            started_ms=began_ms,
            ended_ms=ended_ms,
            message=message,
        )
    state = _STATES.get(str(status.get("phase")), UNKNOWN)
    return WorkflowStatus(
        state, iso_ms(status.get("startedAt")), iso_ms(status.get("finishedAt")), tuple(tries.values())
    )


def _nodes(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    nodes = status.get("nodes")
    packed = status.get("compressedNodes")
    if not nodes and isinstance(packed, str) and packed:
        try:
            reader = zlib.decompressobj(wbits=31)  # gzip
            nodes = msgspec.json.decode(reader.decompress(base64.b64decode(packed), MAX_UNPACKED_BYTES))
        except (binascii.Error, zlib.error, msgspec.DecodeError, ValueError):
            nodes = None
    yield from (node for node in (nodes.values() if isinstance(nodes, dict) else ()) if isinstance(node, dict))


class Pipelines:
    """The runs of pipelines in one cluster, with their last records."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._known: dict[str, objects.OwnerObject] = {}  # Workflows, by UID
        self._ids: dict[tuple[str, str], str] = {}  # their UIDs, by namespace and run
        self._runs: dict[str, PipelineRun] = {}  # those that use GPUs, as they were last recorded
        self._tries: dict[str, dict[StepAttempt, PipelineStep]] = {}
        self._resumed: set[str] = set()  # runs that used GPUs before this process began

    def resume(self, run_ids: set[str]) -> None:
        """Runs whose pods were recorded before: they are followed to their end, though those may be gone."""
        self._resumed = run_ids

    def part_of(self, pod: objects.PodObject, chain: Sequence[objects.OwnerObject]) -> PipelinePart | None:
        """The run and the step that a pod belongs to: by its owners, else by the label or the reference of its job."""
        metas = [pod.metadata, *(owner.metadata for owner in chain)]  # the nearest first
        workflow = self._above(chain) or self._referred(metas) or self._labeled(metas)
        named = next((found for meta in metas if (found := at(RUN_ID, meta))), None)
        run_id = run_id_of(workflow) if workflow else named
        if run_id is None:
            return None
        path = next((found for place in (*OWN_STEPS, STEP) for meta in metas if (found := at(place, meta))), None)
        name = workflow.name if workflow else at(FieldRef("label", "workflows.argoproj.io/workflow"), pod.metadata)
        step = step_of(path, name or "") if path else None
        if step is None:  # a job created by a step that it does not name
            job = next((owner for owner in reversed(chain) if (owner.group, owner.kind) != WORKFLOW), None)
            step = StepAttempt(ungenerated(job.metadata.name), 1) if job else None
        own = bool(chain) and (chain[0].group, chain[0].kind) == WORKFLOW
        return PipelinePart(run_id, step, own, workflow)

    def _above(self, chain: Sequence[objects.OwnerObject]) -> objects.Meta | None:
        workflow = next((owner for owner in chain if (owner.group, owner.kind) == WORKFLOW), None)
        if workflow is None:
            return None
        self._learn(workflow)  # a pod may be seen before its Workflow
        return workflow.metadata

    def _learn(self, workflow: objects.OwnerObject) -> None:
        meta = workflow.metadata
        self._known[meta.uid] = workflow
        self._ids[meta.namespace, run_id_of(meta)] = meta.uid

    def _referred(self, metas: Sequence[objects.Meta]) -> objects.Meta | None:
        """Argo's own example writes the reference into the manifest, and not as that of a controller."""
        for meta in metas:
            for reference in meta.owner_references or ():
                if (reference.group, reference.kind) == WORKFLOW:
                    known = self._known.get(reference.uid)
                    named = objects.Meta(name=reference.name, uid=reference.uid, namespace=meta.namespace)
                    return known.metadata if known else named
        return None

    def _labeled(self, metas: Sequence[objects.Meta]) -> objects.Meta | None:
        for meta in metas:
            uid = self._ids.get((meta.namespace, at(RUN_ID, meta) or ""))
            if uid is not None:
                return self._known[uid].metadata
        return None

    def see(self, workflow: objects.OwnerObject, seen_ms: int, *, gone: bool) -> list[PipelineRun | PipelineStep]:
        """A Workflow has changed, or is gone."""
        meta = workflow.metadata
        run_id = run_id_of(meta)
        if gone:
            self._known.pop(meta.uid, None)
            self._ids.pop((meta.namespace, run_id), None)
            return []
        self._learn(workflow)
        return self._news(run_id, workflow, seen_ms) if run_id in self._runs or run_id in self._resumed else []

    def use(self, part: PipelinePart, namespace: str, seen_ms: int) -> list[PipelineRun | PipelineStep]:
        """A pod with GPUs belongs to a run: from now on the run is recorded."""
        if part.run_id in self._runs:
            return []
        workflow = self._known.get(part.workflow.uid) if part.workflow else None
        if workflow is not None:
            return self._news(part.run_id, workflow, seen_ms)
        meta = part.workflow or objects.Meta(name=part.run_id, namespace=namespace)
        return self._news(part.run_id, objects.OwnerObject(meta), seen_ms)

    def forget(self, used: set[str]) -> None:
        """Runs of which neither a pod nor the Workflow is there any more."""
        present = {run_id_of(workflow.metadata) for workflow in self._known.values()}
        for run_id in [run_id for run_id in self._runs if run_id not in used and run_id not in present]:
            del self._runs[run_id]
            self._tries.pop(run_id, None)

    def _news(self, run_id: str, workflow: objects.OwnerObject, seen_ms: int) -> list[PipelineRun | PipelineStep]:
        meta = workflow.metadata
        status = (
            workflow.status if isinstance(workflow.status, WorkflowStatus) else WorkflowStatus(UNKNOWN, None, None, ())
        )
        created_ms = ms(meta.creation_timestamp)
        before = self._runs.get(run_id)
        run = PipelineRun(
            time_ms=0,
            cluster=self.cluster,
            run_id=run_id,
            workflow_uid=meta.uid or (before.workflow_uid if before else ""),
            namespace=meta.namespace,
            name=at(RUN_NAME, meta) or meta.name,
            pipeline=pipeline_of(meta),
            state=status.state,
            started_ms=status.started_ms or created_ms,
            ended_ms=status.ended_ms,
        )
        written: list[PipelineRun | PipelineStep] = []
        fresh = stamped(run, before, max(run.started_ms or 0, run.ended_ms or 0), seen_ms)
        if fresh is not None:
            self._runs[run_id] = fresh
            written.append(fresh)
        tries = self._tries.setdefault(run_id, {})
        for each in status.tries:
            step = StepAttempt(each.step, each.attempt)
            one = each._replace(run_id=run_id)
            news = stamped(one, tries.get(step), max(one.started_ms or 0, one.ended_ms or 0), seen_ms)
            if news is not None:
                tries[step] = news
                written.append(news)
        return written


def run_id_of(workflow: objects.Meta) -> str:
    """The identity of a run: its ID in Kubeflow Pipelines, else the UID of the Workflow."""
    return at(RUN_ID, workflow) or workflow.uid


def pipeline_of(workflow: objects.Meta) -> str:
    """The pipeline that a Workflow is a run of: the one that it names, else its name without what was generated."""
    named = next((found for place in PIPELINES if (found := at(place, workflow))), None)
    return named or workflow.generate_name.rstrip("-") or ungenerated(workflow.name)
