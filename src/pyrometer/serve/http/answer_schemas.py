"""The JSON schemas of all answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def nullable(kind: str) -> Schema:
    """A type or null."""
    return {"type": [kind, "null"]}


def object_of(**properties: Schema) -> Schema:
    """An object that has all of these properties and may have more."""
    return {"type": "object", "required": list(properties), "properties": properties}


def list_of(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


_NUMBERS = list_of(nullable("number"))
_FIGURES = object_of(mean=_NUMBERS, min=_NUMBERS, max=_NUMBERS)
_WINDOW = object_of(**{"from": TEXT, "to": TEXT})
_AMOUNTS: dict[str, Schema] = {
    "gpu_ms": {"type": "integer"},
    "gpu_hours": {"type": "number"},
    "usd_micro": nullable("integer"),
    "usd": nullable("number"),
}
_TOTAL = object_of(**_AMOUNTS, unpriced_gpu_ms={"type": "integer"})
_BOOKS: Schema = {
    "anyOf": [
        {"type": "null"},
        object_of(
            basis={"type": "string", "enum": ["closed", "open", "ledger"]},
            month=nullable("string"),
            closed=nullable("string"),
            closed_time={"type": "boolean"},
            adjustments_left_out={"type": "boolean"},
            ledger=_TOTAL,
            adjustments=_TOTAL,
        ),
    ]
}
CLOSED_MONTH = object_of(
    month=TEXT,
    timezone=TEXT,
    **_WINDOW["properties"],
    closed=TEXT,
    closed_by=nullable("string"),
    sha256=nullable("string"),
    total=_TOTAL,
    ledger=_TOTAL,
    adjustments=_TOTAL,
)
REBUILT_MONTH = object_of(
    month=TEXT,
    **_WINDOW["properties"],
    closed=nullable("string"),
    rules={"type": "integer"},
    states=list_of(object_of(state=TEXT, gpu_ms_before={"type": "integer"}, gpu_ms_after={"type": "integer"})),
    changed_gpu_ms={"type": "integer"},
    adjusted={"type": "boolean"},
)
_WHAT_IF = object_of(
    detected=TEXT,
    detect_s={"type": "number"},
    saved_gpu_ms={"type": "integer"},
    saved_usd_micro=nullable("integer"),
    saved_usd=nullable("number"),
    sentence=nullable("string"),
)
_FINDING = object_of(
    id=TEXT,
    cause=TEXT,
    title=TEXT,
    workload=nullable("object"),
    owner_uid=nullable("string"),
    experiment=nullable("string"),
    team=nullable("string"),
    culprit=nullable("object"),
    **{"from": TEXT, "to": TEXT},
    ongoing={"type": "boolean"},
    ended={"type": "boolean"},
    seen=nullable("string"),
    gpu_ms={"type": "integer"},
    usd_micro=nullable("integer"),
    usd=nullable("number"),
    confidence={"type": "number"},
    evidence={"type": "array"},
    suggestion=TEXT,
    what_if=_WHAT_IF,
)
_FAILURE = object_of(
    run=TEXT,
    name=TEXT,
    attempts={"type": "integer"},
    attempt={"type": "integer"},
    rank={"type": "integer"},
    ranks={"type": "integer"},
    at=TEXT,
    error=nullable("string"),
)
_RUN: dict[str, Schema] = {
    "run": TEXT,
    "experiment": nullable("string"),
    "team": nullable("string"),
    "workload": nullable("object"),
    "attempts": {"type": "integer"},
    "ranks": {"type": "integer"},
    "steps": {"type": "integer"},
    "started": TEXT,
    "ended": nullable("string"),
    "outcome": TEXT,
    "gpu_hours": {"type": "number"},
    "usd": nullable("number"),
    "goodput": nullable("number"),
    "progress": nullable("object"),
    "pipeline": nullable("object"),
    "sweep": nullable("object"),
    "failure": nullable("object"),
    "trackers": list_of(object_of(tracker=TEXT, id=TEXT, message=TEXT)),
}
_PART: dict[str, Schema] = {  # of a pipeline's run, or of a sweep
    **_AMOUNTS,
    "wasted_gpu_ms": {"type": "integer"},
    "wasted_usd_micro": nullable("integer"),
    "wasted_usd": nullable("number"),
    "goodput": nullable("number"),
}
_TIMES: dict[str, Schema] = {"started": nullable("string"), "ended": nullable("string")}
_TRY: dict[str, Schema] = {"state": TEXT, "duration_ms": nullable("integer"), **_TIMES, **_PART}
_NONE: Schema = {"type": "null"}
_PIPELINE = object_of(
    run=_NONE,
    sweep=_NONE,
    findings=list_of(_FINDING),
    pipeline=object_of(
        id=TEXT,
        name=TEXT,
        pipeline=TEXT,
        state=TEXT,
        namespace=TEXT,
        **_TIMES,
        teams=list_of(TEXT),
        total=object_of(**_PART),
        steps=list_of(
            object_of(
                step=nullable("string"),
                **_TRY,
                workloads=list_of({"type": "object"}),
                findings=list_of(TEXT),
                attempts=list_of(object_of(attempt={"type": "integer"}, message=nullable("string"), **_TRY)),
            )
        ),
    ),
)
_SWEEP = object_of(
    run=_NONE,
    pipeline=_NONE,
    sweep=object_of(
        uid=TEXT,
        name=TEXT,
        state=TEXT,
        namespace=TEXT,
        metric=nullable("string"),
        goal=nullable("string"),
        target=nullable("number"),
        best_trial=nullable("string"),
        **_TIMES,
        total=object_of(**_PART),
        best_usd_micro=nullable("integer"),
        losers_usd_micro=nullable("integer"),
        early_stopped={"type": "integer"},
        early_stopped_saved_usd_micro=nullable("integer"),
        trials=list_of(
            object_of(
                trial=TEXT,
                state=TEXT,
                best={"type": "boolean"},
                pareto={"type": "boolean"},
                parameters={"type": "object"},
                value=nullable("number"),
                workload=nullable("object"),
                **_TIMES,
                **_PART,
            )
        ),
    ),
)
_AIM: dict[str, Schema] = {
    "metric": nullable("string"),
    "goal": nullable("string"),
    "goal_guessed": {"type": "boolean"},
}
_WHOSE: dict[str, Schema] = {"experiment": nullable("string"), "team": nullable("string"), "teams": list_of(TEXT)}
_EXPERIMENT = object_of(
    **_WHOSE,
    **_AMOUNTS,
    **_AIM,
    runs={"type": "integer"},
    running={"type": "integer"},
    goodput=nullable("number"),
    best=nullable("number"),
    best_run=nullable("string"),
    final=nullable("number"),
    trend=list_of({"type": "number"}),
    improving=nullable("boolean"),
    started=TEXT,
    last_seen=TEXT,
)
_WORTH_OF_RUN = object_of(
    **_AMOUNTS,
    run=TEXT,
    team=nullable("string"),
    outcome=TEXT,
    started=TEXT,
    steps={"type": "integer"},
    goodput=nullable("number"),
    best=nullable("number"),
    best_step=nullable("integer"),
    final=nullable("number"),
    to_target_usd=nullable("number"),
    to_target_gpu_hours=nullable("number"),
    to_target_step=nullable("integer"),
    to_target_ms=nullable("integer"),
    marginal=nullable("object"),
    pareto={"type": "boolean"},
    startup_gpu_ms={"type": "integer"},
    startup_usd=nullable("number"),
    compile_ms=nullable("integer"),
    dominated_since=nullable("string"),
    dominated_after_usd=nullable("number"),
    curve=list_of({"type": "array"}),
)
_TOP_ROW = object_of(
    **_AMOUNTS,
    workload={"type": "object"},
    experiment=nullable("string"),
    team=nullable("string"),
    user=nullable("string"),
    run=nullable("string"),
    gpus={"type": "number"},
    state=nullable("string"),
    states={"type": "object"},
    usd_per_hour=nullable("number"),
    usd_micro_per_hour=nullable("integer"),
    running_ms=nullable("integer"),
    progress=nullable("object"),
    metric=nullable("object"),
    goodput=nullable("number"),
    spark=list_of(nullable("number")),
)
ANSWERS: dict[str, Schema] = {
    "why": object_of(
        window=_WINDOW,
        total=object_of(**_AMOUNTS, unpriced_gpu_ms={"type": "integer"}),
        states=list_of(object_of(state=TEXT, family=TEXT, gpu_ms={"type": "integer"}, usd_micro=nullable("integer"))),
        findings=list_of(_FINDING),
        failures=list_of(_FAILURE),
        waste=object_of(**_AMOUNTS, explained=object_of(**_AMOUNTS), unexplained=object_of(**_AMOUNTS)),
        saved_if_caught=object_of(**_AMOUNTS, sentence=nullable("string")),
        evidence={"type": "object"},
    ),
    "cost": object_of(
        window=_WINDOW,
        by=list_of(TEXT),
        rows=list_of(object_of(**_AMOUNTS, adjusts=nullable("string"))),
        total=_TOTAL,
        books=_BOOKS,
    ),
    "burn": object_of(
        window=_WINDOW,
        total=object_of(**_AMOUNTS, unpriced_gpu_ms={"type": "integer"}),
        states=list_of(object_of(state=TEXT, family=TEXT, **_AMOUNTS)),
        evidence={"type": "object"},
        timeline=object_of(
            bucket_ms={"type": "integer"},
            rows=list_of(
                object_of(
                    **{"from": TEXT},
                    from_ms={"type": "integer"},
                    gpu_ms={"type": "object"},
                    usd_micro=nullable("object"),
                )
            ),
        ),
        rate=object_of(
            usd_micro_per_hour=nullable("integer"),
            usd_per_hour=nullable("number"),
            wasted_usd_micro_per_hour=nullable("integer"),
            wasted_usd_per_hour=nullable("number"),
            held_gpus={"type": "number"},
            gpus={"type": "number"},
        ),
        teams=list_of(object_of(team=nullable("string"), **_AMOUNTS)),
        experiments=list_of(object_of(team=nullable("string"), experiment=nullable("string"), **_AMOUNTS)),
    ),
    "cluster": object_of(
        at=nullable("string"),
        at_ms=nullable("integer"),
        **_WINDOW["properties"],
        states=list_of(TEXT),
        holders=list_of(
            object_of(
                workload=nullable("object"),
                experiment=nullable("string"),
                team=nullable("string"),
                pod=TEXT,
                namespace=nullable("string"),
                user=nullable("string"),
                pod_uid=TEXT,
            )
        ),
        pools=list_of(
            object_of(
                pool=nullable("string"),
                gpu_model=nullable("string"),
                cluster=nullable("string"),
                nodes=list_of(
                    object_of(node=TEXT, instance_type=nullable("string"), cells=list_of(list_of(nullable("integer"))))
                ),
            )
        ),
        counts={"type": "object"},
        queue=list_of(
            object_of(
                workload=nullable("object"),
                pod=TEXT,
                pod_uid=TEXT,
                namespace=TEXT,
                team=nullable("string"),
                experiment=nullable("string"),
                queue=nullable("string"),
                gpus={"type": "number"},
                waiting_since=TEXT,
                waited_ms={"type": "integer"},
                reason=nullable("string"),
            )
        ),
        queue_total={"type": "integer"},
    ),
    "charges": object_of(
        window=_WINDOW, columns=list_of(TEXT), rows=list_of({"type": "array"}), total=_TOTAL, books=_BOOKS
    ),
    "closed": object_of(months=list_of(CLOSED_MONTH), next=nullable("string")),
    "instances": object_of(
        window=_WINDOW,
        rows=list_of(
            object_of(
                day=TEXT,
                instance_type=nullable("string"),
                pool=nullable("string"),
                gpu_model=nullable("string"),
                nodes={"type": "integer"},
                node_ms={"type": "integer"},
                **_AMOUNTS,
                unpriced_gpu_ms={"type": "integer"},
            )
        ),
    ),
    "runs": object_of(rows=list_of(object_of(**_RUN))),
    "show": {
        "anyOf": [
            object_of(
                **_RUN,
                windows={"type": "array"},
                metrics={"type": "object"},
                lifecycle={"type": "array"},
                states=list_of(object_of(state=TEXT, family=TEXT, **_AMOUNTS)),
                findings=list_of(_FINDING),
            ),
            _PIPELINE,
            _SWEEP,
        ]
    },
    "signals": object_of(
        run=TEXT,
        **_WINDOW["properties"],
        bucket_ms={"type": "integer"},
        times_ms=list_of({"type": "integer"}),
        ranks=list_of(
            object_of(
                rank={"type": "integer"},
                node=nullable("string"),
                slot_index=nullable("integer"),
                gpu=nullable("string"),
            )
        ),
        ranks_total={"type": "integer"},
        series={"type": "object", "additionalProperties": _FIGURES},
        heat=object_of(step_ms=list_of(_NUMBERS), wait_ms_share=list_of(_NUMBERS), gpu_util=list_of(_NUMBERS)),
        phases=list_of(object_of(name=TEXT, ms_per_step=_NUMBERS)),
        throughput=object_of(samples_per_s=_NUMBERS, tokens_per_s=_NUMBERS, flops_per_s=_NUMBERS, mfu=_NUMBERS),
        memory=object_of(allocated_mib=_FIGURES, reserved_mib=_FIGURES),
        checkpoints=list_of(
            object_of(at_ms={"type": "integer"}, step=nullable("integer"), attempt={"type": "integer"})
        ),
        attempts=list_of(
            object_of(attempt={"type": "integer"}, from_ms={"type": "integer"}, to_ms={"type": "integer"})
        ),
        lifecycle=list_of(object_of(phase=TEXT, from_ms={"type": "integer"}, to_ms={"type": "integer"})),
    ),
    "trace": object_of(run=TEXT, spans=list_of({"type": "object"})),
    "lineage": object_of(run=TEXT),
    "top": object_of(
        at=TEXT,
        origin=nullable("string"),
        window=_WINDOW,
        rows=list_of(_TOP_ROW),
        others={"type": "integer"},
        rate=object_of(
            usd_per_hour=nullable("number"),
            usd_micro_per_hour=nullable("integer"),
            wasted_usd_per_hour=nullable("number"),
            gpus={"type": "number"},
            held_gpus={"type": "number"},
            free_gpus={"type": "number"},
        ),
        queue=object_of(pods={"type": "integer"}, gpus={"type": "number"}, longest_ms=nullable("integer")),
    ),
    "worth": {
        "anyOf": [
            object_of(window=_WINDOW, rows=list_of(_EXPERIMENT), total=object_of(**_AMOUNTS)),
            object_of(
                **_WHOSE,
                **_AIM,
                window=_WINDOW,
                target=nullable("number"),
                metrics=list_of({"type": "object"}),
                runs=list_of(_WORTH_OF_RUN),
                total=object_of(**_AMOUNTS),
                dominated_usd_micro=nullable("integer"),
                dominated_usd=nullable("number"),
                already_dominated_usd_micro=nullable("integer"),
                already_dominated_usd=nullable("number"),
            ),
        ]
    },
}
