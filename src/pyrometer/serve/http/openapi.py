"""The OpenAPI document, made from the tables that check questions."""

from __future__ import annotations

from typing import Any

from pyrometer import __version__
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.sharing import HOW
from pyrometer.questions.cache import MAX_ROWS, PAGED
from pyrometer.questions.parameters import (
    COMMON_PARAMETERS,
    DEFAULT_LAST,
    MAX_LIMIT,
    MAX_NAME_LENGTH,
    MAX_SAMPLE_LENGTH,
    MAX_STEP,
    OWN_PARAMETERS,
)
from pyrometer.serve.http.admin import TAR
from pyrometer.serve.http.answer_schemas import ANSWERS, CLOSED_MONTH, REBUILT_MONTH, TEXT, Schema, list_of, object_of
from pyrometer.serve.http.downloads import DOWNLOADS, FILES, PARQUET

_WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_STEP}


_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}


_FLAG: Schema = {"type": "string", "enum": ["1", "true"]}


# Description and schema of each parameter.
_PARAMETERS: dict[str, tuple[str, Schema]] = {
    "last": ("Up to the newest accounted minute: 90m, 12h, 7d.", TEXT),
    "since": ("Start of the time range: 2026-11-14, 2026-11-14 20:00.", TEXT),
    "until": ("End of the time range, exclusive.", TEXT),
    "month": ("One month: 2026-11.", {"type": "string", "pattern": r"^\d{4}-\d{2}$"}),
    "all": ("All data.", _FLAG),
    "tz": ("Time zone of days, hours and months: Europe/Berlin. Default: the server's.", TEXT),
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
    "by": (f"Groupings, separated by commas: {', '.join(GROUPINGS)}. Default: team.", TEXT),
    "share_platform": (
        "How the cost of GPUs without a holder is divided. Default: none, the platform pays.",
        {"type": "string", "enum": [*HOW]},
    ),
    "at": ("The minute to show, in the format of `since`. Default: the newest accounted minute.", TEXT),
    "run": ("The name of a run, as in `runs`.", {"type": "string", "minLength": 1}),
    "without": ("Parts to omit, separated by commas: windows (large), findings (slow).", TEXT),
    "step": ("A global step.", _WHOLE),
    "sample": ("The ID of a sample in its data set.", {"type": "string", "maxLength": MAX_SAMPLE_LENGTH}),
    "checkpoint": ("The step of a checkpoint.", _WHOLE),
    "spikes": ("The data behind spikes of a metric.", _FLAG),
    "metric": ("The name of a metric. Default: a loss.", TEXT),
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
            "schemas": {"Error": object_of(error=TEXT)},
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
    schema = TEXT if DOWNLOADS[form].suffix == "csv" else {"type": "object"}
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
        "close", "Closes a month. Its charges never change afterwards. For admins.", "The closed month.", CLOSED_MONTH
    )


def _rebuilding() -> dict[str, Any]:
    """The operation that rebuilds a month."""
    return _of_month(
        "rebuild",
        "Rebuilds the ledger of a month under the rules of this version, closed months included. For admins.",
        "GPU time by state, before and after.",
        REBUILT_MONTH,
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
            "content": {"application/json": {"schema": object_of(have=list_of(TEXT))}},
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
            "200": {"description": "The answer.", "content": {"application/json": {"schema": ANSWERS[what]}}},
            "304": {"description": "The client has the current answer."},
            **{status: {"description": text, "content": refused} for status, text in _REFUSALS.items()},
        },
    }


def _parameter(what: str, name: str) -> dict[str, Any]:
    text, schema = _PARAMETERS[name]
    if name == "last":
        text += f" Default: {DEFAULT_LAST[what]}." if what in DEFAULT_LAST else " Default: everything."
    return {"name": name, "in": "query", "required": name == "run", "description": text, "schema": schema}
