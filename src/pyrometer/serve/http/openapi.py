"""The OpenAPI document, made from the tables that check questions."""

from __future__ import annotations

from typing import Any

from pyrometer import __version__
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.sharing import HOW
from pyrometer.questions.cache import MAX_ROWS, PAGED
from pyrometer.questions.registry import (
    COMMON_PARAMETERS,
    DEFAULT_LAST,
    MAX_LIMIT,
    MAX_NAME_LENGTH,
    MAX_SAMPLE_LENGTH,
    MAX_STEP,
    OWN_PARAMETERS,
)
from pyrometer.serve.http.admin import TAR
from pyrometer.serve.http.downloads import DOWNLOADS, FILES, PARQUET

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_STEP}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}
_FLAG: Schema = {"type": "string", "enum": ["1", "true"]}

# Description and schema of each parameter.
_PARAMETERS: dict[str, tuple[str, Schema]] = {
    "last": ("Up to the newest accounted minute: 90m, 12h, 7d.", _TEXT),
    "since": ("Start of the time range: 2026-11-14, 2026-11-14 20:00.", _TEXT),
    "until": ("End of the time range, exclusive.", _TEXT),
    "month": ("One month: 2026-11.", {"type": "string", "pattern": r"^\d{4}-\d{2}$"}),
    "all": ("All data.", _FLAG),
    "tz": ("Time zone of days, hours and months: Europe/Berlin. Default: the server's.", _TEXT),
    "price": (
        "One price in dollars per GPU-hour for all GPUs, instead of the price book.",
        {"type": "number", "minimum": 0},
    ),
    "team": (
        "Only data of this team; `platform`: GPUs without a holder. For a team viewer it is always the viewer's team.",
        _NAME,
    ),
    "experiment": ("Only data of this experiment; for `worth`, the experiment whose runs are compared.", _NAME),
    "workload": ("Only this workload, by its UID. For a pod without one, the UID of the pod.", _NAME),
    "stale": ("ok: returns the last answer at once if a new one takes long.", {"type": "string", "enum": ["ok"]}),
    "by": (f"Groupings, separated by commas: {', '.join(GROUPINGS)}. Default: team.", _TEXT),
    "share_platform": (
        "How the cost of GPUs without a holder is divided. Default: none, the platform pays.",
        {"type": "string", "enum": [*HOW]},
    ),
    "at": ("The minute to show, in the format of `since`. Default: the newest accounted minute.", _TEXT),
    "run": ("The name of a run, as in `runs`.", {"type": "string", "minLength": 1}),
    "without": ("Parts to omit, separated by commas: windows (large), findings (slow).", _TEXT),
    "step": ("A global step.", _WHOLE),
    "sample": ("The ID of a sample in its data set.", {"type": "string", "maxLength": MAX_SAMPLE_LENGTH}),
    "checkpoint": ("The step of a checkpoint.", _WHOLE),
    "spikes": ("The data behind spikes of a metric.", _FLAG),
    "metric": ("The name of a metric. Default: a loss.", _TEXT),
    "target": ("A value for the metric to reach. Needs `experiment`.", {"type": "number"}),
    "attempt": ("The attempt, if several did the step. Default: the last one.", _WHOLE),
    "limit": ("Maximum number of rows.", {"type": "integer", "minimum": 0, "maximum": MAX_LIMIT}),
    "offset": ("Number of rows to skip.", _WHOLE),
}

_SUMMARIES = {
    "why": "GPU time and cost by state, and the findings, each with its culprit, evidence and suggestion.",
    "cost": "GPU-hours and dollars by any groupings. Rows add up to the total exactly.",
    "charges": "Charges by local day, node, team, experiment, workload and price.",
    "closed": "The closed months with their charges.",
    "instances": "Node-hours and dollars by day and instance type, to compare with an invoice.",
    "runs": "The training runs, newest first.",
    "show": "One run: cost, steps by phase, metrics against dollars, lifecycle, findings. For a run of a pipeline its "
    "steps, for a sweep its trials.",
    "signals": "One run over time: GPUs, steps by rank and phase, throughput, memory, checkpoints, lifecycle.",
    "trace": "The lifecycle of a run, one step over all its ranks, or the steps of a sample.",
    "burn": "GPU time and cost by state, over time, by team and experiment, and the current rate. No causes.",
    "cluster": "Every GPU at one minute with its state and holder, and the pods that wait for GPUs.",
    "lineage": "The data behind a step, a checkpoint or a loss spike, or the steps of a sample.",
    "worth": "Experiments with their costs and results, or the runs of one: metric against dollars, Pareto set.",
    "top": "The workloads that hold GPUs now: state, dollars per hour, progress. The most expensive one is first.",
}


def _nullable(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def _object(**properties: Schema) -> Schema:
    """An object that has all of these properties and may have more."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_NUMBERS = _list(_nullable("number"))
_FIGURES = _object(mean=_NUMBERS, min=_NUMBERS, max=_NUMBERS)
_WINDOW = _object(**{"from": _TEXT, "to": _TEXT})
_AMOUNTS: dict[str, Schema] = {
    "gpu_ms": {"type": "integer"},
    "gpu_hours": {"type": "number"},
    "usd_micro": _nullable("integer"),
    "usd": _nullable("number"),
}
_TOTAL = _object(**_AMOUNTS, unpriced_gpu_ms={"type": "integer"})
_BOOKS: Schema = {
    "anyOf": [
        {"type": "null"},
        _object(
            basis={"type": "string", "enum": ["closed", "open", "ledger"]},
            month=_nullable("string"),
            closed=_nullable("string"),
            closed_time={"type": "boolean"},
            adjustments_left_out={"type": "boolean"},
            ledger=_TOTAL,
            adjustments=_TOTAL,
        ),
    ]
}
_CLOSED = _object(
    month=_TEXT,
    timezone=_TEXT,
    **_WINDOW["properties"],
    closed=_TEXT,
    closed_by=_nullable("string"),
    sha256=_nullable("string"),
    total=_TOTAL,
    ledger=_TOTAL,
    adjustments=_TOTAL,
)
_REBUILT = _object(
    month=_TEXT,
    **_WINDOW["properties"],
    closed=_nullable("string"),
    rules={"type": "integer"},
    states=_list(_object(state=_TEXT, gpu_ms_before={"type": "integer"}, gpu_ms_after={"type": "integer"})),
    changed_gpu_ms={"type": "integer"},
    adjusted={"type": "boolean"},
)
_WHAT_IF = _object(
    detected=_TEXT,
    detect_s={"type": "number"},
    saved_gpu_ms={"type": "integer"},
    saved_usd_micro=_nullable("integer"),
    saved_usd=_nullable("number"),
    sentence=_nullable("string"),
)
_FINDING = _object(
    id=_TEXT,
    cause=_TEXT,
    title=_TEXT,
    workload=_nullable("object"),
    owner_uid=_nullable("string"),
    experiment=_nullable("string"),
    team=_nullable("string"),
    culprit=_nullable("object"),
    **{"from": _TEXT, "to": _TEXT},
    ongoing={"type": "boolean"},
    ended={"type": "boolean"},
    seen=_nullable("string"),
    gpu_ms={"type": "integer"},
    usd_micro=_nullable("integer"),
    usd=_nullable("number"),
    confidence={"type": "number"},
    evidence={"type": "array"},
    suggestion=_TEXT,
    what_if=_WHAT_IF,
)
_FAILURE = _object(
    run=_TEXT,
    name=_TEXT,
    attempts={"type": "integer"},
    attempt={"type": "integer"},
    rank={"type": "integer"},
    ranks={"type": "integer"},
    at=_TEXT,
    error=_nullable("string"),
)
_RUN: dict[str, Schema] = {
    "run": _TEXT,
    "experiment": _nullable("string"),
    "team": _nullable("string"),
    "workload": _nullable("object"),
    "attempts": {"type": "integer"},
    "ranks": {"type": "integer"},
    "steps": {"type": "integer"},
    "started": _TEXT,
    "ended": _nullable("string"),
    "outcome": _TEXT,
    "gpu_hours": {"type": "number"},
    "usd": _nullable("number"),
    "goodput": _nullable("number"),
    "progress": _nullable("object"),
    "pipeline": _nullable("object"),
    "sweep": _nullable("object"),
    "failure": _nullable("object"),
    "trackers": _list(_object(tracker=_TEXT, id=_TEXT, message=_TEXT)),
}
_PART: dict[str, Schema] = {  # of a pipeline's run, or of a sweep
    **_AMOUNTS,
    "wasted_gpu_ms": {"type": "integer"},
    "wasted_usd_micro": _nullable("integer"),
    "wasted_usd": _nullable("number"),
    "goodput": _nullable("number"),
}
_TIMES: dict[str, Schema] = {"started": _nullable("string"), "ended": _nullable("string")}
_TRY: dict[str, Schema] = {"state": _TEXT, "duration_ms": _nullable("integer"), **_TIMES, **_PART}
_NONE: Schema = {"type": "null"}
_PIPELINE = _object(
    run=_NONE,
    sweep=_NONE,
    findings=_list(_FINDING),
    pipeline=_object(
        id=_TEXT,
        name=_TEXT,
        pipeline=_TEXT,
        state=_TEXT,
        namespace=_TEXT,
        **_TIMES,
        teams=_list(_TEXT),
        total=_object(**_PART),
        steps=_list(
            _object(
                step=_nullable("string"),
                **_TRY,
                workloads=_list({"type": "object"}),
                findings=_list(_TEXT),
                attempts=_list(_object(attempt={"type": "integer"}, message=_nullable("string"), **_TRY)),
            )
        ),
    ),
)
_SWEEP = _object(
    run=_NONE,
    pipeline=_NONE,
    sweep=_object(
        uid=_TEXT,
        name=_TEXT,
        state=_TEXT,
        namespace=_TEXT,
        metric=_nullable("string"),
        goal=_nullable("string"),
        target=_nullable("number"),
        best_trial=_nullable("string"),
        **_TIMES,
        total=_object(**_PART),
        best_usd_micro=_nullable("integer"),
        losers_usd_micro=_nullable("integer"),
        early_stopped={"type": "integer"},
        early_stopped_saved_usd_micro=_nullable("integer"),
        trials=_list(
            _object(
                trial=_TEXT,
                state=_TEXT,
                best={"type": "boolean"},
                pareto={"type": "boolean"},
                parameters={"type": "object"},
                value=_nullable("number"),
                workload=_nullable("object"),
                **_TIMES,
                **_PART,
            )
        ),
    ),
)
_AIM: dict[str, Schema] = {
    "metric": _nullable("string"),
    "goal": _nullable("string"),
    "goal_guessed": {"type": "boolean"},
}
_WHOSE: dict[str, Schema] = {"experiment": _nullable("string"), "team": _nullable("string"), "teams": _list(_TEXT)}
_EXPERIMENT = _object(
    **_WHOSE,
    **_AMOUNTS,
    **_AIM,
    runs={"type": "integer"},
    running={"type": "integer"},
    goodput=_nullable("number"),
    best=_nullable("number"),
    best_run=_nullable("string"),
    final=_nullable("number"),
    trend=_list({"type": "number"}),
    improving=_nullable("boolean"),
    started=_TEXT,
    last_seen=_TEXT,
)
_WORTH_OF_RUN = _object(
    **_AMOUNTS,
    run=_TEXT,
    team=_nullable("string"),
    outcome=_TEXT,
    started=_TEXT,
    steps={"type": "integer"},
    goodput=_nullable("number"),
    best=_nullable("number"),
    best_step=_nullable("integer"),
    final=_nullable("number"),
    to_target_usd=_nullable("number"),
    to_target_gpu_hours=_nullable("number"),
    to_target_step=_nullable("integer"),
    to_target_ms=_nullable("integer"),
    marginal=_nullable("object"),
    pareto={"type": "boolean"},
    startup_gpu_ms={"type": "integer"},
    startup_usd=_nullable("number"),
    compile_ms=_nullable("integer"),
    dominated_since=_nullable("string"),
    dominated_after_usd=_nullable("number"),
    curve=_list({"type": "array"}),
)
_TOP_ROW = _object(
    **_AMOUNTS,
    workload={"type": "object"},
    experiment=_nullable("string"),
    team=_nullable("string"),
    user=_nullable("string"),
    run=_nullable("string"),
    gpus={"type": "number"},
    state=_nullable("string"),
    states={"type": "object"},
    usd_per_hour=_nullable("number"),
    usd_micro_per_hour=_nullable("integer"),
    running_ms=_nullable("integer"),
    progress=_nullable("object"),
    metric=_nullable("object"),
    goodput=_nullable("number"),
    spark=_list(_nullable("number")),
)
_ANSWERS: dict[str, Schema] = {
    "why": _object(
        window=_WINDOW,
        total=_object(**_AMOUNTS, unpriced_gpu_ms={"type": "integer"}),
        states=_list(_object(state=_TEXT, family=_TEXT, gpu_ms={"type": "integer"}, usd_micro=_nullable("integer"))),
        findings=_list(_FINDING),
        failures=_list(_FAILURE),
        waste=_object(**_AMOUNTS, explained=_object(**_AMOUNTS), unexplained=_object(**_AMOUNTS)),
        saved_if_caught=_object(**_AMOUNTS, sentence=_nullable("string")),
        evidence={"type": "object"},
    ),
    "cost": _object(
        window=_WINDOW,
        by=_list(_TEXT),
        rows=_list(_object(**_AMOUNTS, adjusts=_nullable("string"))),
        total=_TOTAL,
        books=_BOOKS,
    ),
    "burn": _object(
        window=_WINDOW,
        total=_object(**_AMOUNTS, unpriced_gpu_ms={"type": "integer"}),
        states=_list(_object(state=_TEXT, family=_TEXT, **_AMOUNTS)),
        evidence={"type": "object"},
        timeline=_object(
            bucket_ms={"type": "integer"},
            rows=_list(
                _object(
                    **{"from": _TEXT},
                    from_ms={"type": "integer"},
                    gpu_ms={"type": "object"},
                    usd_micro=_nullable("object"),
                )
            ),
        ),
        rate=_object(
            usd_micro_per_hour=_nullable("integer"),
            usd_per_hour=_nullable("number"),
            wasted_usd_micro_per_hour=_nullable("integer"),
            wasted_usd_per_hour=_nullable("number"),
            held_gpus={"type": "number"},
            gpus={"type": "number"},
        ),
        teams=_list(_object(team=_nullable("string"), **_AMOUNTS)),
        experiments=_list(_object(team=_nullable("string"), experiment=_nullable("string"), **_AMOUNTS)),
    ),
    "cluster": _object(
        at=_nullable("string"),
        at_ms=_nullable("integer"),
        **_WINDOW["properties"],
        states=_list(_TEXT),
        holders=_list(
            _object(
                workload=_nullable("object"),
                experiment=_nullable("string"),
                team=_nullable("string"),
                pod=_TEXT,
                namespace=_nullable("string"),
                user=_nullable("string"),
                pod_uid=_TEXT,
            )
        ),
        pools=_list(
            _object(
                pool=_nullable("string"),
                gpu_model=_nullable("string"),
                cluster=_nullable("string"),
                nodes=_list(
                    _object(node=_TEXT, instance_type=_nullable("string"), cells=_list(_list(_nullable("integer"))))
                ),
            )
        ),
        counts={"type": "object"},
        queue=_list(
            _object(
                workload=_nullable("object"),
                pod=_TEXT,
                pod_uid=_TEXT,
                namespace=_TEXT,
                team=_nullable("string"),
                experiment=_nullable("string"),
                queue=_nullable("string"),
                gpus={"type": "number"},
                waiting_since=_TEXT,
                waited_ms={"type": "integer"},
                reason=_nullable("string"),
            )
        ),
        queue_total={"type": "integer"},
    ),
    "charges": _object(window=_WINDOW, columns=_list(_TEXT), rows=_list({"type": "array"}), total=_TOTAL, books=_BOOKS),
    "closed": _object(months=_list(_CLOSED), next=_nullable("string")),
    "instances": _object(
        window=_WINDOW,
        rows=_list(
            _object(
                day=_TEXT,
                instance_type=_nullable("string"),
                pool=_nullable("string"),
                gpu_model=_nullable("string"),
                nodes={"type": "integer"},
                node_ms={"type": "integer"},
                **_AMOUNTS,
                unpriced_gpu_ms={"type": "integer"},
            )
        ),
    ),
    "runs": _object(rows=_list(_object(**_RUN))),
    "show": {
        "anyOf": [
            _object(
                **_RUN,
                windows={"type": "array"},
                metrics={"type": "object"},
                lifecycle={"type": "array"},
                states=_list(_object(state=_TEXT, family=_TEXT, **_AMOUNTS)),
                findings=_list(_FINDING),
            ),
            _PIPELINE,
            _SWEEP,
        ]
    },
    "signals": _object(
        run=_TEXT,
        **_WINDOW["properties"],
        bucket_ms={"type": "integer"},
        times_ms=_list({"type": "integer"}),
        ranks=_list(
            _object(
                rank={"type": "integer"},
                node=_nullable("string"),
                slot_index=_nullable("integer"),
                gpu=_nullable("string"),
            )
        ),
        ranks_total={"type": "integer"},
        series={"type": "object", "additionalProperties": _FIGURES},
        heat=_object(step_ms=_list(_NUMBERS), wait_ms_share=_list(_NUMBERS), gpu_util=_list(_NUMBERS)),
        phases=_list(_object(name=_TEXT, ms_per_step=_NUMBERS)),
        throughput=_object(samples_per_s=_NUMBERS, tokens_per_s=_NUMBERS, flops_per_s=_NUMBERS, mfu=_NUMBERS),
        memory=_object(allocated_mib=_FIGURES, reserved_mib=_FIGURES),
        checkpoints=_list(_object(at_ms={"type": "integer"}, step=_nullable("integer"), attempt={"type": "integer"})),
        attempts=_list(_object(attempt={"type": "integer"}, from_ms={"type": "integer"}, to_ms={"type": "integer"})),
        lifecycle=_list(_object(phase=_TEXT, from_ms={"type": "integer"}, to_ms={"type": "integer"})),
    ),
    "trace": _object(run=_TEXT, spans=_list({"type": "object"})),
    "lineage": _object(run=_TEXT),
    "top": _object(
        at=_TEXT,
        origin=_nullable("string"),
        window=_WINDOW,
        rows=_list(_TOP_ROW),
        others={"type": "integer"},
        rate=_object(
            usd_per_hour=_nullable("number"),
            usd_micro_per_hour=_nullable("integer"),
            wasted_usd_per_hour=_nullable("number"),
            gpus={"type": "number"},
            held_gpus={"type": "number"},
            free_gpus={"type": "number"},
        ),
        queue=_object(pods={"type": "integer"}, gpus={"type": "number"}, longest_ms=_nullable("integer")),
    ),
    "worth": {
        "anyOf": [
            _object(window=_WINDOW, rows=_list(_EXPERIMENT), total=_object(**_AMOUNTS)),
            _object(
                **_WHOSE,
                **_AIM,
                window=_WINDOW,
                target=_nullable("number"),
                metrics=_list({"type": "object"}),
                runs=_list(_WORTH_OF_RUN),
                total=_object(**_AMOUNTS),
                dominated_usd_micro=_nullable("integer"),
                dominated_usd=_nullable("number"),
                already_dominated_usd_micro=_nullable("integer"),
                already_dominated_usd=_nullable("number"),
            ),
        ]
    },
}
_PAGE = (
    {
        "name": "limit",
        "in": "query",
        "description": "Maximum number of rows. `next` is the next cursor.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
    },
    {
        "name": "cursor",
        "in": "query",
        "description": "The value of `next`: continues the same answer.",
        "schema": {"type": "string", "minLength": 1},
    },
)
_AS = {
    "name": "as",
    "in": "query",
    "description": "File format. Default: csv.",
    "schema": {"type": "string", "enum": [*FILES]},
}
_REFUSALS = {
    "400": "Invalid question. The text names the parameter and what to do.",
    "401": "Not authenticated. A token, a session or a trusted proxy is needed.",
    "403": "Not permitted: wrong role, or data of another team.",
    "404": "Team, experiment, run, step or sample not found.",
    "409": "There is no data yet; for `close`, the month cannot be closed.",
    "410": "The answer of a cursor is no longer available. Start again.",
    "429": "Too many questions or wrong tokens at once. `Retry-After` has the seconds to wait.",
}
_OF_CLOSING = ("400", "401", "403", "409")
_OF_BACKUPS = {
    "400": "The body is not a list of parts.",
    "409": "Another backup is in progress.",
    "413": "The list of parts is too long.",
}


def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pyrometer",
            "version": __version__,
            "description": "The same answers as the commands of the same name with `-o json`. "
            "Money is an integer `usd_micro` next to a rounded `usd`, null where nothing is priced. "
            "An `ETag` has the revision of the ledger. With `If-None-Match`, the response for an unchanged answer "
            "is 304.",
        },
        "security": [{"token": []}, {}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object(error=_TEXT)},
        },
        "paths": {
            **{f"/api/v1/{what}": {"get": _operation(what)} for what in _SUMMARIES},
            **{f"/api/v1/export/{form}": {"get": _download(form)} for form in DOWNLOADS},
            "/api/v1/close": {"post": _closing()},
            "/api/v1/rebuild": {"post": _rebuilding()},
            "/api/v1/backup": {"post": _backup()},
        },
    }


def _download(form: str) -> dict[str, Any]:
    """The operation that downloads an answer as a file."""
    operation = _operation(DOWNLOADS[form].what)
    parameters = [one for one in operation["parameters"] if one not in _PAGE and one["name"] != "stale"]
    schema = _TEXT if DOWNLOADS[form].suffix == "csv" else {"type": "object"}
    content: dict[str, Any] = {DOWNLOADS[form].kind: {"schema": schema}}
    if DOWNLOADS[form].parquet is not None:
        _, kind, _ = DOWNLOADS[form].written_as(PARQUET)
        content[kind] = {"schema": {"type": "string", "format": "binary"}}
        parameters.append(_AS)
    answered = {"description": "A file.", "content": content}
    responses = {
        status: response for status, response in operation["responses"].items() if status not in ("304", "410")
    }
    named = {"operationId": f"export_{form}", "summary": f"{operation['summary']} As a file: {form}."}
    return {**operation, **named, "parameters": parameters, "responses": {**responses, "200": answered}}


def _closing() -> dict[str, Any]:
    """The operation that closes a month."""
    return _of_month(
        "close", "Closes a month. Its charges never change afterwards. For admins.", "The closed month.", _CLOSED
    )


def _rebuilding() -> dict[str, Any]:
    """The operation that rebuilds a month."""
    return _of_month(
        "rebuild",
        "Rebuilds the ledger of a month under the rules of this version, closed months included. For admins.",
        "GPU time by state, before and after.",
        _REBUILT,
    )


def _of_month(operation: str, summary: str, description: str, schema: Schema) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    parameters = [_parameter("closed", "month") | {"required": True}, _parameter("closed", "tz")]
    return {
        "operationId": operation,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": description, "content": {"application/json": {"schema": schema}}},
            **{status: {"description": _REFUSALS[status], "content": refused} for status in _OF_CLOSING},
        },
    }


def _backup() -> dict[str, Any]:
    """The operation that takes a backup."""
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    reasons = {**{status: _REFUSALS[status] for status in ("401", "403")}, **_OF_BACKUPS}
    tar = {TAR: {"schema": {"type": "string", "format": "binary"}}}
    return {
        "operationId": "backup",
        "summary": "A backup of all data as a tar. Parts that the client has are omitted. For admins; "
        "used by `pyrometer backup --server`.",
        "requestBody": {
            "description": "Paths of the parts that the client has. No body: none.",
            "content": {"application/json": {"schema": _object(have=_list(_TEXT))}},
        },
        "responses": {
            "200": {
                "description": "A tar. Its last file is `backup.json` with the SHA-256 of all files.",
                "content": tar,
            },
            **{status: {"description": text, "content": refused} for status, text in reasons.items()},
        },
    }


def _operation(what: str) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "operationId": what,
        "summary": _SUMMARIES[what],
        "parameters": [
            *(
                _parameter(what, name)
                for name in dict.fromkeys((*COMMON_PARAMETERS, *OWN_PARAMETERS.get(what, ()), "stale"))
            ),
            *(_PAGE if what in PAGED else ()),
        ],
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": _ANSWERS[what]}}},
            "304": {"description": "The client has the current answer."},
            **{status: {"description": text, "content": refused} for status, text in _REFUSALS.items()},
        },
    }


def _parameter(what: str, name: str) -> dict[str, Any]:
    text, schema = _PARAMETERS[name]
    if name == "last":
        text += f" Default: {DEFAULT_LAST[what]}." if what in DEFAULT_LAST else " Default: everything."
    return {"name": name, "in": "query", "required": name == "run", "description": text, "schema": schema}
