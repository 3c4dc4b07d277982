"""Objects that are recorded when they change: with the time of Kubernetes' own clock, and never twice."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, TypeVar

MAX_TEXT_CHARS = 1_000  # of messages; labels of one object are at most four times that

Record = TypeVar("Record", bound=tuple[Any, ...])


def stamped(record: Record, before: Record | None, own_ms: int, seen_ms: int) -> Record | None:
    """A record with its own time, or with the time when a change without one was seen. None: no news."""
    last: Any = before
    now: Any = record
    if last is not None and now == last._replace(time_ms=now.time_ms):
        return None
    at_ms = own_ms or seen_ms
    if last is not None and at_ms <= last.time_ms:
        at_ms = max(seen_ms, last.time_ms + 1)
    return now._replace(time_ms=at_ms)  # type: ignore[no-any-return]


def finite(value: Any) -> float | None:
    """A number, also where it is written as text; None if it is not a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def iso_ms(text: Any) -> int | None:
    """An ISO time in milliseconds; None if it is not a time."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
