"""Why attempts of runs failed: the rank that failed first, and its exception in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model import events
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import StoreReader

MAX_HEADLINE = 300  # characters
ENDS = (events.EXCEPTION, events.EXIT)  # events with the reason why a rank failed
ERRORS = (*ENDS, events.SDK_ERROR)  # events whose message is shown as one line
# The end of a killed rank is when it was last seen alive: up to a second before its end.
KILLED_BEFORE_MS = 2_000
_TRACEBACK = re.compile(r"(\+ )?(Exception Group )?Traceback \(most recent call last\):")
_MARGIN = " |+-"  # of the exceptions of a group

_AROUND_MS = MS_PER_HOUR  # ranks of one attempt fail within this

_FIRST = f"""
WITH raised AS (
    SELECT run, attempt, rank, min(time_ms) AS at_ms, arg_min(reason, time_ms) AS reason,
        arg_min(message, time_ms) AS message
    FROM event
    WHERE kind IN {ENDS} AND time_ms BETWEEN $1 - {_AROUND_MS} AND $2
        AND coalesce(run = $3, run IS NOT NULL)
    GROUP BY ALL
), failed AS (
    SELECT run, attempt, rank, coalesce(at_ms, ended_ms) AS at_ms, at_ms IS NOT NULL OR outcome = 'failed' AS exact,
        reason, message, last_attempt
    FROM (SELECT *, max(attempt) OVER (PARTITION BY run) AS last_attempt FROM the_run WHERE coalesce(run = $3, true))
    LEFT JOIN raised USING (run, attempt, rank)
    WHERE coalesce(at_ms, ended_ms) BETWEEN $1 - {_AROUND_MS} AND $2 AND outcome IS DISTINCT FROM 'succeeded'
)
SELECT run, attempt, rank, at_ms, reason, message, (count(*) OVER of_attempt)::INTEGER AS ranks, last_attempt
FROM failed WINDOW of_attempt AS (PARTITION BY run, attempt)
QUALIFY bool_or(exact) OVER of_attempt AND row_number() OVER (
    PARTITION BY run, attempt ORDER BY at_ms + CASE WHEN exact THEN 0 ELSE {KILLED_BEFORE_MS} END, rank
) = 1
ORDER BY at_ms DESC, run, attempt
"""


class Failure(NamedTuple):
    """The first failure of an attempt."""

    run: str
    attempt: int
    rank: int
    ranks: int  # that failed or were killed
    at_ms: int
    error: str | None
    is_last: bool  # there was no later attempt


def first_failures(store: StoreReader, window: TimeRange, run: str | None = None) -> list[Failure]:
    """The first failure of each attempt that failed in a time range, newest first. Requires `the_run` and `event`."""
    rows = store.connection.execute(_FIRST, [*window, run]).fetchall()
    return [
        Failure(
            run=name,
            attempt=attempt,
            rank=rank,
            ranks=ranks,
            at_ms=at_ms,
            error=error_line(reason, message),
            is_last=attempt == last,
        )
        for name, attempt, rank, at_ms, reason, message, ranks, last in rows
        if at_ms >= window.from_ms
    ]


def failure_json(failure: Failure, zone: tzinfo) -> dict[str, Any]:
    """A failure as JSON."""
    reported = failure._asdict()
    del reported["run"], reported["is_last"], reported["at_ms"]
    return {**reported, "at": iso(failure.at_ms, zone)}


def error_line(reason: str | None, message: str | None) -> str | None:
    """An exception in one line, with its type: "RuntimeError: CUDA error"."""
    lines = [line for line in (message or "").splitlines() if line.strip()]
    first = lines[0] if lines else ""
    line = _last_raised(lines, reason) if _TRACEBACK.match(first.strip()) else first
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())
    if reason and not line.partition(":")[0].endswith(reason):
        line = f"{reason}: {line}" if line else reason
    return (line if len(line) <= MAX_HEADLINE else f"{line[: MAX_HEADLINE - 1]}…") or None


def _last_raised(lines: list[str], reason: str | None) -> str:
    """The line of a traceback with the type and message of the exception that was raised last."""
    bare = [line.lstrip(_MARGIN) for line in lines]
    named = [line for line in bare if reason and line.partition(":")[0].rpartition(".")[2] == reason]
    return named[-1] if named else bare[-1]


def failure_text(failure: Mapping[str, Any]) -> str:
    """A failure as text: "rank 1 failed first, of 3 ranks: RuntimeError: CUDA error"."""
    first = f" first, of {failure['ranks']} ranks" if failure["ranks"] > 1 else ""
    error = f": {failure['error']}" if failure["error"] else ""
    return f"rank {failure['rank']} failed{first}{error}"
