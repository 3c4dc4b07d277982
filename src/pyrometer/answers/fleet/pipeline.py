"""A pipeline run: its steps with their attempts, progress, cost and findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso, time_range_json, workload_json
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.fleet.part_costs import HeldTime, held_by, spent, together
from pyrometer.answers.why import why
from pyrometer.model.settings import Settings
from pyrometer.store import StoreReader

OVER = ("succeeded", "failed", "retried", "skipped", "cached")
_OF_PODS = {"Pending": "pending", "Running": "running", "Succeeded": "succeeded", "Failed": "failed"}


class PipelineNotFoundError(LookupError):
    """There is no pipeline run of that name. `recorded` are the existing ones."""

    def __init__(self, name: str, recorded: Sequence[str]) -> None:
        super().__init__(name)
        self.recorded = list(recorded)


class _Pod(NamedTuple):
    uid: str
    step: str | None
    attempt: int
    phase: str
    started_ms: int | None
    ended_ms: int | None
    workload_uid: str | None
    kind: str | None
    namespace: str | None
    name: str | None


class _StepAttempt(NamedTuple):
    state: str
    started_ms: int | None
    ended_ms: int | None
    message: str | None = None


_RUNS = """
SELECT run_id, shown, name, pipeline, workflow_uid, namespace, cluster, state, started_ms, ended_ms
FROM the_pipeline_run WHERE $1 IN (run_id, shown, name) ORDER BY started_ms DESC NULLS LAST, run_id
"""

_PODS = """
SELECT pod.pod_uid, holder_name.pipeline_step, holder_name.pipeline_attempt, phase,
    coalesce(started_ms, scheduled_ms, created_ms), ended_ms, holder_name.workload_uid, workload_kind,
    workload_namespace, workload_name
FROM (FROM pod WHERE pipeline_run = $1 QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1) pod
JOIN holder_name USING (pod_uid) ORDER BY 5, 1
"""

_TRIES = """
SELECT step, attempt, state, started_ms, ended_ms, message FROM pipeline_step WHERE run_id = $1
QUALIFY row_number() OVER (PARTITION BY step, attempt ORDER BY time_ms DESC) = 1 ORDER BY step, attempt
"""


def show_pipeline(
    store: StoreReader,
    name: str,
    window: TimeRange,
    settings: Settings,
    *,
    zone: tzinfo,
    price_usd_micro: int | None = None,
    findings: bool = True,
) -> dict[str, Any]:
    """The answer of `pyrometer show` about a pipeline run, by id or name; the newest run of a name."""
    open_names(store)
    ask = store.connection.execute
    found = ask(_RUNS, [name]).fetchall()
    if not found:
        raise PipelineNotFoundError(name, [row[0] for row in ask("SELECT shown FROM the_pipeline_run").fetchall()])
    run_id, shown, _, pipeline, workflow_uid, namespace, cluster, state, started_ms, ended_ms = found[0]
    store.expose_all(["pipeline_step"])
    pods = [_Pod(*row) for row in ask(_PODS, [run_id]).fetchall()]
    tries: dict[tuple[str | None, int], _StepAttempt] = {
        (row[0], row[1]): _StepAttempt(*row[2:]) for row in ask(_TRIES, [run_id]).fetchall()
    }
    held = held_by(
        store, window, ("pipeline_step", "pipeline_attempt", "team"), "pipeline_run_id = $1", run_id, price_usd_micro
    )
    steps = _steps(pods, tries, held, zone)
    reported = why(store, window, settings, zone=zone, price_usd_micro=price_usd_micro)["findings"] if findings else []
    _place(reported, pods, steps)
    whole = together(list(held.values()))
    (total,) = spent([whole])
    return {
        "run": None,
        "sweep": None,
        "pipeline": {
            "id": run_id,
            "name": shown,
            "pipeline": pipeline,
            "namespace": namespace,
            "cluster": cluster,
            "workflow_uid": workflow_uid or None,
            "state": state,
            "started": None if started_ms is None else iso(started_ms, zone),
            "ended": None if ended_ms is None else iso(ended_ms, zone),
            "teams": sorted({key[2] for key in held if key[2]}),
            "window": time_range_json(window, zone),
            "total": total,
            "steps": steps,
        },
        "findings": [finding for finding in reported if finding["workload"]],
    }


def _steps(
    pods: Sequence[_Pod],
    tries: dict[tuple[str | None, int], _StepAttempt],
    held: dict[tuple[Any, ...], HeldTime],
    zone: tzinfo,
) -> list[dict[str, Any]]:
    of_pods: dict[tuple[str | None, int], list[_Pod]] = defaultdict(list)
    for pod in pods:
        of_pods[pod.step, pod.attempt].append(pod)
    names = dict.fromkeys([*(step for step, _ in tries), *(pod.step for pod in pods)])
    rows = []
    for name in names:
        numbers = sorted({attempt for step, attempt in (*tries, *of_pods) if step == name})
        each = [
            (number, tries.get((name, number)) or _seen(of_pods[name, number]), _sum(held, name, number))
            for number in numbers
        ]
        attempts = [
            {
                "attempt": number,
                "state": _tried(one.state, number == numbers[-1]),
                **_times(one, zone),
                "message": one.message,
            }
            | cost
            for (number, one, _), cost in zip(each, spent([part for *_, part in each]), strict=True)
        ]
        state = attempts[-1]["state"]
        starts = [one.started_ms for _, one, _ in each if one.started_ms is not None]
        ends = [one.ended_ms for _, one, _ in each if one.ended_ms is not None]
        whole = _StepAttempt(state, min(starts, default=None), max(ends, default=None) if state in OVER else None)
        of_step = [pod for pod in pods if pod.step == name]
        workloads = {pod[6:]: workload_json(*pod[6:]) for pod in of_step if pod.workload_uid}
        rows.append((whole, name, [part for *_, part in each], attempts, [*workloads.values()]))
    rows.sort(key=lambda row: (row[0].started_ms is None, row[0].started_ms or 0, row[1] or ""))
    costs = spent([together(parts) for _, _, parts, _, _ in rows])
    return [
        {
            "step": name,
            "state": whole.state,
            **_times(whole, zone),
            **cost,
            "attempts": attempts,
            "workloads": workloads,
            "findings": [],
        }
        for (whole, name, _, attempts, workloads), cost in zip(rows, costs, strict=True)
    ]


def _sum(held: dict[tuple[Any, ...], HeldTime], step: str | None, attempt: int) -> HeldTime:
    return together([part for key, part in held.items() if key[:2] == (step, attempt)])


def _seen(pods: Sequence[_Pod]) -> _StepAttempt:
    """An attempt that is known only from its pods, without a report of its Workflow."""
    states = [_OF_PODS.get(pod.phase, "pending") for pod in pods]
    state = next((one for one in ("running", "pending", "failed") if one in states), "succeeded")
    starts = [pod.started_ms for pod in pods if pod.started_ms is not None]
    ends = [pod.ended_ms for pod in pods if pod.ended_ms is not None]
    return _StepAttempt(state, min(starts, default=None), max(ends, default=None) if len(ends) == len(pods) else None)


def _tried(state: str, last: bool) -> str:
    return "retried" if state == "failed" and not last else state


def _times(one: _StepAttempt, zone: tzinfo) -> dict[str, Any]:
    took_ms = None if one.started_ms is None or one.ended_ms is None else max(0, one.ended_ms - one.started_ms)
    return {
        "started": None if one.started_ms is None else iso(one.started_ms, zone),
        "ended": None if one.ended_ms is None else iso(one.ended_ms, zone),
        "duration_ms": took_ms,
    }


def _place(findings: list[dict[str, Any]], pods: Sequence[_Pod], steps: Sequence[dict[str, Any]]) -> None:
    """The findings of each step: those of its workload, if all its pods at that time belonged to one step."""
    rows = {row["step"]: row for row in steps}
    mine: dict[str, list[_Pod]] = defaultdict(list)
    for pod in pods:
        mine[pod.workload_uid or pod.uid].append(pod)
    kept = []
    for finding in findings:
        theirs = mine.get(finding["owner_uid"] or "")
        if not theirs:
            continue
        from_ms, to_ms = (datetime.fromisoformat(finding[end]).timestamp() * 1000 for end in ("from", "to"))
        then = {
            pod.step
            for pod in theirs
            if (pod.started_ms or 0) < to_ms and (pod.ended_ms is None or pod.ended_ms > from_ms)
        }
        of = then or {pod.step for pod in theirs}
        finding["step"] = of.pop() if len(of) == 1 else None
        if finding["step"] in rows:
            rows[finding["step"]]["findings"].append(finding["id"])
        kept.append(finding)
    findings[:] = kept
