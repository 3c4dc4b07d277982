"""The messages of training processes, and parsers that check their values.

Callers (OTLP, files) pass names and values as received. Each invalid message is rejected on its own. Fields have the
names and widths of the records that are made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from pyrometer.model.columns import Float64, Int16, Int32, Int64, IntList, Text, TextList, column_of
from pyrometer.store.batches import NEWEST_MS, OLDEST_MS

MAX_NAME_CHARS = 1024  # of a name or an identifier
MAX_TEXT_CHARS = 64 * 2**10  # of a text such as a stack, which is truncated

Time = Annotated[int, "time"]  # milliseconds UTC
LongText = Annotated[str, "words"]

WRONG_VALUE, WRONG_TIME, TOO_LONG = "wrong value", "wrong time", "too long"


class RejectedMessageError(ValueError):
    """An invalid message. The text is the reason by which it is counted."""


class RankIdentity(NamedTuple):
    """The sending process: one rank of one launch."""

    launch: Text
    rank: Int32 = 0
    ranks: Int32 = 1
    run: Text | None = None
    restart_of: Text | None = None  # the first launch of the same launcher
    experiment: Text | None = None
    local_rank: Int32 | None = None
    host: Text | None = None
    started_ms: Time | None = None
    pod_uid: Text | None = None
    pod_name: Text | None = None
    namespace: Text | None = None
    device: Text | None = None  # cuda, cpu
    gpu_uuid: Text | None = None
    gpu_index: Int16 | None = None
    gpu_model: Text | None = None
    framework: Text | None = None


class RankStatus(NamedTuple):
    """The status of a rank."""

    time_ms: Time
    first_step_ms: Time | None = None
    ended_ms: Time | None = None
    outcome: Text | None = None  # succeeded, failed, killed
    resumed_step: Int64 | None = None


class WindowMessage(NamedTuple):
    """Consecutive steps, aggregated: a StepWindow without the fields of the rank."""

    time_ms: Time
    to_ms: Time
    first_step: Int64 | None = None
    steps: Int32 = 0
    data_ms: Int32 = 0
    copy_ms: Int32 = 0
    forward_ms: Int32 = 0
    backward_ms: Int32 = 0
    comm_ms: Int32 = 0
    optimizer_ms: Int32 = 0
    checkpoint_ms: Int32 = 0
    evaluate_ms: Int32 = 0
    compile_ms: Int32 = 0
    garbage_ms: Int32 = 0
    step_p50_us: Int64 | None = None
    step_max_us: Int64 | None = None
    samples: Int64 | None = None
    tokens: Int64 | None = None
    flops: Int64 | None = None
    memory_peak_mib: Int32 | None = None
    memory_reserved_mib: Int32 | None = None
    step_lengths: IntList | None = None


class SpanMessage(NamedTuple):
    """A span: a piece of one step."""

    time_ms: Time
    duration_us: Int64
    name: Text
    trace_id: Text
    span_id: Text
    parent_id: Text | None = None
    step: Int64 | None = None
    attributes_json: Text | None = None
    after_us: Int32 | None = None


class BatchMessage(NamedTuple):
    """The samples of one micro-batch."""

    time_ms: Time
    loader: Int16
    epoch: Int32
    send_index: Int64
    micro_batch: Int32 = 0
    step: Int64 | None = None
    dataset: Text | None = None
    samples: TextList | None = None
    rows: IntList | None = None


class MetricMessage(NamedTuple):
    """One value of one metric."""

    time_ms: Time
    name: Text
    value: Float64
    step: Int64 | None = None
    goal: Text | None = None
    source: Text | None = None
    first_step: Int64 | None = None
    last_step: Int64 | None = None


class EventMessage(NamedTuple):
    """A single event: of a kind in `model/events.py`, or another."""

    time_ms: Time
    kind: Text
    duration_ms: Int64 | None = None
    step: Int64 | None = None
    reason: LongText | None = None
    message: LongText | None = None


Message = RankStatus | WindowMessage | SpanMessage | BatchMessage | MetricMessage | EventMessage
RankMessages = tuple[RankIdentity, list[Message]]  # one process and its messages
OUTCOMES = ("succeeded", "failed", "killed")

Kind = TypeVar("Kind", bound=tuple[Any, ...])
_REQUIRED = object()


def parser_of(kind: type[Kind]) -> Callable[[Mapping[str, Any]], Kind]:
    """Returns a function that builds such a message from values by name and rejects invalid values."""
    hints = get_type_hints(kind, include_extras=True)
    defaults: dict[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
    columns = [column_of(name, hints[name]) for name in kind._fields]  # type: ignore[attr-defined]
    fields = [
        (column.name, _CONVERTERS[column.type], defaults.get(column.name, _REQUIRED))
        for column in columns
        if not column.type.startswith("list")  # the last ones, which the readers of lists set
    ]

    def read(values: Mapping[str, Any]) -> Kind:
        found = []
        for name, convert, default in fields:
            value = values.get(name)
            if value is not None:
                found.append(convert(value))
            elif default is _REQUIRED:
                raise RejectedMessageError(WRONG_VALUE)
            else:
                found.append(default)
        return kind(*found)

    return read


def _whole(end: int, minimum: int = 0, reason: str = WRONG_VALUE) -> Callable[[Any], int]:
    """Converts integers in a range, which some senders write as strings or floats."""

    def convert(value: Any) -> int:
        if type(value) is not int:
            value = _as_whole(value)
        if not minimum <= value < end:
            raise RejectedMessageError(reason)
        return value  # type: ignore[no-any-return]

    return convert


def _as_whole(value: Any) -> int:
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise RejectedMessageError(WRONG_VALUE)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise RejectedMessageError(WRONG_VALUE)
    if len(value) > MAX_NAME_CHARS:
        raise RejectedMessageError(TOO_LONG)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RejectedMessageError(WRONG_VALUE)
    return value[:MAX_TEXT_CHARS]


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RejectedMessageError(WRONG_VALUE)
    try:
        return float(value)
    except OverflowError:
        return math.inf


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int16": _whole(2**15),
    "int32": _whole(2**31),
    "int64": _whole(2**63),
    "time": _whole(NEWEST_MS, OLDEST_MS, WRONG_TIME),
    "float64": _real,
    "string": _name,
    "words": _text,
}
