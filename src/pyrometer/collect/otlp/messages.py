"""What training processes say, as plain messages: who speaks, and what about.

Whoever carries them (OTLP, a file) hands in names and values as they came; what does not fit is refused here, one
message at a time. Fields have the names and widths of the records that are made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from pyrometer.model.columns import Float64, Int16, Int32, Int64, IntList, Text, TextList, column_of
from pyrometer.store.batches import NEWEST_MS, OLDEST_MS

MOST_NAME = 1024  # characters of what names something
MOST_WORDS = 64 * 2**10  # characters of what was written for people: a stack. The rest is cut off

Time = Annotated[int, "time"]  # milliseconds UTC
Words = Annotated[str, "words"]

WRONG_VALUE, WRONG_TIME, TOO_LONG = "wrong value", "wrong time", "too long"


class RejectedMessageError(ValueError):
    """A message that cannot be used; the text is the reason by which it is counted."""


class RankIdentity(NamedTuple):
    """The process that speaks: one rank of one launch."""

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
    """How this rank is doing."""

    time_ms: Time
    first_step_ms: Time | None = None
    ended_ms: Time | None = None
    outcome: Text | None = None  # succeeded, failed, killed
    resumed_step: Int64 | None = None


class WindowMessage(NamedTuple):
    """Consecutive steps, folded: a StepWindow without who and where."""

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
    """The data behind one micro-batch."""

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
    """Something that happened once: a kind of `model/events.py`, or another."""

    time_ms: Time
    kind: Text
    duration_ms: Int64 | None = None
    step: Int64 | None = None
    reason: Words | None = None
    message: Words | None = None


Message = RankStatus | WindowMessage | SpanMessage | BatchMessage | MetricMessage | EventMessage
RankMessages = tuple[RankIdentity, list[Message]]  # one process, and what it said
OUTCOMES = ("succeeded", "failed", "killed")

Kind = TypeVar("Kind", bound=tuple[Any, ...])
_REQUIRED = object()


def parser_of(kind: type[Kind]) -> Callable[[Mapping[str, Any]], Kind]:
    """A function that makes such a message of values by name. What is there and does not fit is refused."""
    hints = get_type_hints(kind, include_extras=True)
    defaults: dict[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
    columns = [column_of(name, hints[name]) for name in kind._fields]  # type: ignore[attr-defined]
    fields = [
        (column.name, _FITTING[column.type], defaults.get(column.name, _REQUIRED))
        for column in columns
        if not column.type.startswith("list")  # the last ones: who reads lists brings them
    ]

    def read(values: Mapping[str, Any]) -> Kind:
        found = []
        for name, fitting, default in fields:
            value = values.get(name)
            if value is not None:
                found.append(fitting(value))
            elif default is _REQUIRED:
                raise RejectedMessageError(WRONG_VALUE)
            else:
                found.append(default)
        return kind(*found)

    return read


def _whole(most: int, least: int = 0, reason: str = WRONG_VALUE) -> Callable[[Any], int]:
    """Whole numbers below a limit; some senders write them as texts, others as floats."""

    def fitting(value: Any) -> int:
        if type(value) is not int:
            value = _as_whole(value)
        if not least <= value < most:
            raise RejectedMessageError(reason)
        return value  # type: ignore[no-any-return]

    return fitting


def _as_whole(value: Any) -> int:
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise RejectedMessageError(WRONG_VALUE)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise RejectedMessageError(WRONG_VALUE)
    if len(value) > MOST_NAME:
        raise RejectedMessageError(TOO_LONG)
    return value


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise RejectedMessageError(WRONG_VALUE)
    return value[:MOST_WORDS]


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RejectedMessageError(WRONG_VALUE)
    try:
        return float(value)
    except OverflowError:
        return math.inf


_FITTING: dict[str, Callable[[Any], Any]] = {
    "int16": _whole(2**15),
    "int32": _whole(2**31),
    "int64": _whole(2**63),
    "time": _whole(NEWEST_MS, OLDEST_MS, WRONG_TIME),
    "float64": _real,
    "string": _name,
    "words": _words,
}
