"""A run as one trace: its attempts and what happened in each, as reported by its ranks and the cluster."""

from __future__ import annotations

import hashlib
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import WEIGHED, open_ranks
from pyrometer.answers.runs.lineage import open_run
from pyrometer.answers.runs.trace import traced_steps
from pyrometer.findings.run_failures import ERRORS, error_line, failure_json, first_failures
from pyrometer.model import events
from pyrometer.store import StoreReader

# Events with a duration, reported at their end, or lasting until their counterpart.
PIECES = {
    events.IMAGE_PULLED: "image_pull",
    events.RENDEZVOUS: "rendezvous",
    events.COMPILED: "compile",
    events.RESTORED: "restore",
    events.CHECKPOINT_SAVED: "checkpoint",
}
OPENED = {
    events.STUCK: ("hang", events.UNSTUCK),
    events.NONFINITE_LOSS: ("diverged", events.FINITE_LOSS),
    events.LOOP_ENDED: ("loop_ended", events.LOOP_RESUMED),
}
CLOSING = tuple(closes for _, closes in OPENED.values())
REPORTED = ("rendezvous", "compile", "restore")  # by a process that starts
STARTUP, IMPORTS, FIRST_STEP, TRAINING, EVALUATE = "startup", "imports", "first_step", "training", "evaluate"


class _Attempt(NamedTuple):
    """An attempt over all its ranks."""

    number: int
    launch: str | None
    ranks: int
    started_ms: int
    first_step_ms: int | None
    ended_ms: int | None  # all its ranks have
    seen_ms: int
    outcome: str | None
    resumed_step: int | None


class _Piece(NamedTuple):
    name: str
    from_ms: int
    to_ms: int
    step: int | None = None
    ranks: tuple[int, ...] = ()
    reason: str | None = None
    message: str | None = None


def trace_run(store: StoreReader, run: str, window: TimeRange, *, zone: tzinfo) -> dict[str, Any]:
    """The lifecycle of a run, and which of its steps have traces of their own."""
    history = open_run(store, run, window)
    attempts = _attempts(store, run, window)
    open_ranks(store, window.to_ms)
    failed = {one.attempt: failure_json(one, zone) for one in first_failures(store, window, run)}
    trace_id = _id(run, 32)
    reported: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for attempt in attempts:
        pieces = _pieces(store, run, attempt)
        begin_ms = min([attempt.started_ms, *(piece.from_ms for piece in pieces)])  # its image may be pulled before
        end_ms = _end_ms(attempt, pieces)
        marks = _marks(store, run, attempt)
        own = _span(f"attempt {attempt.number}", begin_ms, end_ms, run, _id(run, 16), attempt.number)
        spans += [own, *(_piece_span(piece, run, own, attempt.number) for piece in pieces)]
        reported.append(
            {
                "attempt": attempt.number,
                "from": iso(begin_ms, zone),
                "to": iso(end_ms, zone),
                "start_ms": begin_ms,
                "duration_ms": end_ms - begin_ms,
                "started": iso(attempt.started_ms, zone),
                "ended": attempt.ended_ms is not None,
                "outcome": attempt.outcome or "running",
                "ranks": attempt.ranks,
                "resumed_step": attempt.resumed_step,
                **_steps_of(store, run, attempt.number),
                "lost_steps": _lost(store, history.begins, run, attempt.number),
                "failure": failed.get(attempt.number),
                "pieces": [_to_json(piece, zone) for piece in pieces],
                "marks": [_to_json(mark, zone) for mark in marks],
            }
        )
    from_ms = min(one["start_ms"] for one in reported)
    to_ms = max(one["start_ms"] + one["duration_ms"] for one in reported)
    whole = _span(run, from_ms, to_ms, run, None, None, span_id=_id(run, 16))
    return {
        "run": run,
        "step": None,
        "trace_id": trace_id,
        "from": iso(from_ms, zone),
        "to": iso(to_ms, zone),
        "start_ms": from_ms,
        "duration_ms": to_ms - from_ms,
        "attempts": reported,
        "traced": traced_steps(store, run),
        "spans": [whole, *spans],
        "critical_path": [],
    }


class Lifecycle(NamedTuple):
    """The attempts of a run by number, with their phases."""

    attempts: dict[int, dict[str, Any]]
    pieces: list[dict[str, Any]]


def life_of(store: StoreReader, run: str, window: TimeRange) -> Lifecycle:
    """How each attempt ended, and the spans of the run in a time range. Requires the records of the run."""
    attempts = _attempts(store, run, window)
    return Lifecycle(
        {one.number: {"outcome": one.outcome or "running", "resumed_step": one.resumed_step} for one in attempts},
        [
            {"phase": piece.name, "from_ms": piece.from_ms, "to_ms": piece.to_ms, "attempt": attempt.number}
            for attempt in attempts
            for piece in _pieces(store, run, attempt)
            if piece.from_ms < window.to_ms and piece.to_ms > window.from_ms
        ],
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def _attempts(store: StoreReader, run: str, window: TimeRange) -> list[_Attempt]:
    rows = store.connection.execute(
        f"""
        WITH newest AS (
            SELECT * FROM run WHERE run = $1 AND time_ms <= $2
            QUALIFY row_number() OVER (PARTITION BY attempt, rank ORDER BY time_ms DESC) = 1
        ), seen AS (SELECT attempt, max(to_ms) AS seen_ms FROM step_window WHERE run = $1 GROUP BY attempt)
        SELECT attempt, any_value(launch), max(ranks), min(started_ms), max(first_step_ms),
            CASE WHEN count(ended_ms) = count(*) THEN max(ended_ms) END,
            greatest(max(time_ms), max(started_ms), max(coalesce(ended_ms, 0)), coalesce(any_value(seen_ms), 0)),
            arg_max_null(outcome, weight), min(resumed_step)
        FROM {WEIGHED.replace("the_run", "newest")} newest LEFT JOIN seen USING (attempt)
        GROUP BY attempt ORDER BY attempt
        """,
        [run, max(window.to_ms, 0)],
    ).fetchall()
    return [_Attempt(*row) for row in rows]


def _pieces(store: StoreReader, run: str, attempt: _Attempt) -> list[_Piece]:
    """Phases in order. What several ranks did at the same time is one phase."""
    pieces = [*_timed(store, run, attempt), *_opened(store, run, attempt), *_evaluations(store, run, attempt)]
    if attempt.first_step_ms is not None:
        until_ms = max(_trained_until(store, run, attempt), attempt.first_step_ms)
        pieces.append(_Piece(TRAINING, attempt.first_step_ms, until_ms))
    pieces += _starting(attempt, pieces)
    return sorted((p for p in pieces if p.to_ms > p.from_ms), key=lambda p: (p.from_ms, -p.to_ms, p.name))


def _starting(attempt: _Attempt, pieces: list[_Piece]) -> list[_Piece]:
    """Unreported phases: imports before the first report of a process, the first step after the last report.

    Without reports in between, the whole time is one startup.
    """
    until_ms = attempt.first_step_ms or attempt.seen_ms
    stated = [p for p in pieces if p.name in REPORTED and attempt.started_ms < p.to_ms and p.from_ms < until_ms]
    if not stated:
        return [_Piece(STARTUP, attempt.started_ms, until_ms)]
    imports = _Piece(IMPORTS, attempt.started_ms, min(piece.from_ms for piece in stated))
    if attempt.first_step_ms is None:
        return [imports]
    return [imports, _Piece(FIRST_STEP, max(piece.to_ms for piece in stated), until_ms)]


def _timed(store: StoreReader, run: str, attempt: _Attempt) -> list[_Piece]:
    """Events with a duration. Events of the cluster belong to the attempt by its pods."""
    rows = store.connection.execute(
        f"""
        SELECT kind, min(time_ms - duration_ms), max(time_ms), step, list(DISTINCT rank ORDER BY rank)
            FILTER (WHERE rank IS NOT NULL), any_value(reason), any_value(message)
        FROM event
        WHERE duration_ms > 0 AND kind IN ({_listed(tuple(PIECES))}) AND (
            (run = $1 AND attempt = $2)
            OR (kind = '{events.IMAGE_PULLED}' AND pod_uid IN (SELECT pod_uid FROM run WHERE run = $1 AND attempt = $2))
        )
        GROUP BY kind, step ORDER BY 2
        """,
        [run, attempt.number],
    ).fetchall()
    return [
        _Piece(PIECES[kind], from_ms, to_ms, step, tuple(ranks or ()), reason, message)
        for kind, from_ms, to_ms, step, ranks, reason, message in rows
    ]


def _opened(store: StoreReader, run: str, attempt: _Attempt) -> list[_Piece]:
    """Phases between two events. One without an end lasts until the end of the attempt."""
    rows = store.connection.execute(
        f"""
        SELECT kind, time_ms, step, rank, reason, message FROM event
        WHERE run = $1 AND attempt = $2 AND kind IN ({_listed((*OPENED, *CLOSING))}) ORDER BY time_ms, kind
        """,
        [run, attempt.number],
    ).fetchall()
    pieces: list[_Piece] = []
    for opens, (name, closes) in OPENED.items():
        now: _Piece | None = None
        for kind, time_ms, step, rank, reason, message in rows:
            of_rank = () if rank is None else (rank,)
            if kind == opens and now is None:
                now = _Piece(name, time_ms, attempt.seen_ms, step, of_rank, reason, message)
            elif kind == opens and now is not None:
                now = now._replace(ranks=tuple(sorted({*now.ranks, *of_rank})))
            elif kind == closes and now is not None:
                pieces.append(now._replace(to_ms=time_ms))
                now = None
        if now is not None:
            pieces.append(now)
    return pieces


def _evaluations(store: StoreReader, run: str, attempt: _Attempt) -> list[_Piece]:
    """Windows without steps in which the model was evaluated."""
    rows = store.connection.execute(
        "SELECT min(time_ms), max(to_ms) FROM step_window WHERE run = ? AND attempt = ? AND steps = 0 "
        "AND evaluate_ms > 0 GROUP BY time_ms // 60000 ORDER BY 1",
        [run, attempt.number],
    ).fetchall()
    joined: list[_Piece] = []
    for from_ms, to_ms in rows:
        if joined and from_ms <= joined[-1].to_ms:
            joined[-1] = joined[-1]._replace(to_ms=max(to_ms, joined[-1].to_ms))
        else:
            joined.append(_Piece(EVALUATE, from_ms, to_ms))
    return joined


def _marks(store: StoreReader, run: str, attempt: _Attempt) -> list[_Piece]:
    """Events at one moment: the exception that ended a rank, a preemption, and events of other sources."""
    recorded = (*PIECES, *OPENED, *CLOSING, events.CONFIGURED, events.ALIVE)
    rows = store.connection.execute(
        f"""
        SELECT kind, min(time_ms), step, list(DISTINCT rank ORDER BY rank) FILTER (WHERE rank IS NOT NULL),
            arg_min(reason, time_ms), arg_min(message, time_ms)
        FROM event WHERE run = $1 AND attempt = $2 AND kind NOT IN ({_listed(recorded)})
        GROUP BY kind, step ORDER BY 2
        """,
        [run, attempt.number],
    ).fetchall()
    return [
        _Piece(kind, at_ms, at_ms, step, tuple(ranks or ()), reason, message)
        for kind, at_ms, step, ranks, reason, message in rows
    ]


def _trained_until(store: StoreReader, run: str, attempt: _Attempt) -> int:
    rows = store.connection.execute(
        "SELECT max(to_ms) FROM step_window WHERE run = ? AND attempt = ? AND steps > 0", [run, attempt.number]
    ).fetchall()
    return int(rows[0][0] or attempt.first_step_ms or attempt.started_ms)


def _steps_of(store: StoreReader, run: str, attempt: int) -> dict[str, int | None]:
    rows = store.connection.execute(
        "SELECT min(first_step), max(first_step + steps) FROM step_window WHERE run = ? AND attempt = ? AND steps > 0",
        [run, attempt],
    ).fetchall()
    return {"from_step": rows[0][0], "to_step": rows[0][1]}


def _lost(store: StoreReader, begins: dict[int, int], run: str, attempt: int) -> int:
    """How many steps of an attempt a later one repeated."""
    later = min((begin for number, begin in begins.items() if number > attempt), default=None)
    steps = _steps_of(store, run, attempt)
    if later is None or steps["to_step"] is None:
        return 0
    return max(0, steps["to_step"] - max(later, steps["from_step"] or 0))


def _end_ms(attempt: _Attempt, pieces: list[_Piece]) -> int:
    ended_ms = attempt.seen_ms if attempt.ended_ms is None else attempt.ended_ms
    return max([ended_ms, attempt.started_ms, *(piece.to_ms for piece in pieces)])


# -- telling ----------------------------------------------------------------------------------------------------------


def _to_json(piece: _Piece, zone: tzinfo) -> dict[str, Any]:
    return {
        "name": piece.name,
        "at": iso(piece.from_ms, zone),
        "start_ms": piece.from_ms,
        "duration_ms": piece.to_ms - piece.from_ms,
        "step": piece.step,
        "ranks": list(piece.ranks),
        "reason": piece.reason,
        "message": piece.message,
        "error": error_line(piece.reason, piece.message) if piece.name in ERRORS else None,
    }


def _piece_span(piece: _Piece, run: str, parent: dict[str, Any], attempt: int) -> dict[str, Any]:
    stated = {"step": piece.step, "reason": piece.reason, "ranks": len(piece.ranks) or None}
    span = _span(piece.name, piece.from_ms, piece.to_ms, run, parent["span_id"], attempt)
    return {**span, "attributes": {f"pyrometer.{name}": value for name, value in stated.items() if value is not None}}


def _span(
    name: str,
    from_ms: int,
    to_ms: int,
    run: str,
    parent_id: str | None,
    attempt: int | None,
    *,
    span_id: str | None = None,
) -> dict[str, Any]:
    return {
        "rank": None,
        "attempt": attempt,
        "name": name,
        "start_ms": from_ms,
        "duration_ms": to_ms - from_ms,
        "batch": None,
        "span_id": span_id or _id(f"{run}:{attempt}:{name}:{from_ms}", 16),
        "parent_id": parent_id,
        "attributes": {},
    }


def _id(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _listed(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)
