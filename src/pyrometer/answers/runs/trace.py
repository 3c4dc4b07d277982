"""One global step over all its ranks, and one sample on its way through steps: the answers of `pyrometer trace`.

Times in this module are whole microseconds. Ranks of one node share a clock. Nodes are aligned at the end of the
synchronization, which all ranks leave at the same time, so their clocks need not agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lineage import NEAREST, batch_name, batches_of_steps, lineage_of_sample, open_run
from pyrometer.store import StoreReader

PHASES = ("data", "copy", "forward", "backward", "sync", "optimizer", "checkpoint", "evaluate", "compile", "garbage")
OF_MICRO_BATCHES = ("data", "copy", "forward", "backward")  # the k-th of them belongs to the k-th micro-batch
STEP, OTHER = "step", "other"
HELD_UP_SHARE = 0.05  # of a step: shorter waits are not reported
HELD_UP_US = 1_000
MAX_SLOW_RANKS = 5
MAX_TRACED_STEPS = 1_000  # traced steps
MAX_TRACED_SAMPLES = 20  # traced steps of a sample that are shown with their spans


class TraceSpan(NamedTuple):
    """A span of a step of a rank."""

    rank: int
    name: str
    start_us: int
    duration_us: int
    span_id: str
    parent_id: str | None
    attributes: dict[str, Any]
    exact: bool  # its start is known to the microsecond, not only to the millisecond

    @property
    def end_us(self) -> int:
        """Where it ends."""
        return self.start_us + self.duration_us


class TraceSlice(NamedTuple):
    """An interval of a rank in one phase."""

    name: str
    start_us: int
    end_us: int


# -- answers ----------------------------------------------------------------------------------------------------------


def trace_step(
    store: StoreReader, run: str, step: int, window: TimeRange, *, zone: tzinfo, attempt: int | None = None
) -> dict[str, Any]:
    """One step over all ranks: spans, what the step waited for, and its data."""
    history = open_run(store, run, window)
    attempts = [
        row[0]
        for row in store.connection.execute(
            "SELECT DISTINCT attempt FROM span WHERE run = ? AND step = ? ORDER BY attempt", [run, step]
        ).fetchall()
    ]
    if not attempts or attempt not in (None, *attempts):
        return {
            "run": run,
            "step": step,
            "attempt": attempt,
            "attempts": attempts,
            "trace_id": None,
            "spans": [],
            "critical_path": [],
            "nearest": _traced_near(store, run, step, attempt),
            "done": _was_done(store, run, step),
        }
    number = attempts[-1] if attempt is None else attempt
    trace_id, spans = _read(store, run, number, step)
    return {
        "run": run,
        "step": step,
        "attempt": number,
        "attempts": attempts,
        "lost": not history.counts(number, step),
        "trace_id": trace_id,
        "ranks_of_run": _size(store, run, number),
        "nearest": [],
        **over_ranks(spans, _nodes(store, run, number), batches_of_steps(store, run, number, step, step), zone),
    }


def over_ranks(
    spans: Sequence[TraceSpan], nodes: dict[int, str | None], batches: Sequence[dict[str, Any]], zone: tzinfo
) -> dict[str, Any]:
    """The spans of one step, aligned: the time of each rank, the last rank, the critical path."""
    ranks, shifts_us = _aligned(_by_rank(spans), nodes)
    start_us = min(span.start_us for each in ranks.values() for span in each)
    end_us = max(span.end_us for each in ranks.values() for span in each)
    reported = {rank: _rank(rank, each, batches, shifts_us.get(rank, 0), start_us) for rank, each in ranks.items()}
    last = _last_ready(reported)
    for row in reported.values():
        row["waited_ms"] = None if row["sync_ms"] is None else round(row["sync_ms"] - reported[last]["sync_ms"], 3)
    return {
        "from": iso(start_us // 1000, zone),
        "to": iso(-(-end_us // 1000), zone),
        "start_ms": _ms(start_us),
        "duration_ms": _ms(end_us - start_us),
        "ranks": sorted(reported.values(), key=_latest_first),
        "waited_for": _waited_for(reported, last, end_us - start_us),
        "spans": [_to_json(span, batches, ranks[span.rank], start_us) for span in _ordered(ranks)],
        "critical_path": [
            {
                "rank": last,
                "name": piece.name,
                "start_ms": _ms(piece.start_us),
                "offset_ms": _ms(piece.start_us - start_us),
                "duration_ms": _ms(piece.end_us - piece.start_us),
            }
            for piece in timeline(ranks[last])
        ],
    }


def trace_sample(store: StoreReader, run: str, sample: str, window: TimeRange, *, zone: tzinfo) -> dict[str, Any]:
    """A sample: every batch that contained it, with the spans of that batch if the step was traced."""
    found = lineage_of_sample(store, run, sample, window, zone=zone)
    traced = set(
        store.connection.execute("SELECT DISTINCT attempt, step, rank FROM span WHERE run = ?", [run]).fetchall()
    )
    ways: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for update in found["updates"]:
        own: list[dict[str, Any]] = []
        trace_id = None
        place = (update["attempt"], update["step"], update["rank"])
        if place in traced and len({way["trace_id"] for way in ways}) <= MAX_TRACED_SAMPLES:
            trace = trace_step(store, run, update["step"], window, zone=zone, attempt=update["attempt"])
            own = [one for one in trace["spans"] if one["rank"] == update["rank"] and _of_batch(one, update["batch"])]
            trace_id = trace["trace_id"]
        own = [{**one, "step": update["step"], "attempt": update["attempt"], "trace_id": trace_id} for one in own]
        ways.append({**update, "trace_id": trace_id, "spans": own})
        spans += own
    traces = [way["trace_id"] for way in ways if way["trace_id"]]
    return {
        "run": run,
        "step": None,
        "sample": sample,
        "trace_id": traces[-1] if traces else None,
        "ways": ways,
        "total": found["total"],
        "batches": found["batches"],
        "unknown_batches": found["unknown_batches"],
        "checkpoints": found["checkpoints"],
        "spans": spans,
        "critical_path": [],
    }


def traced_steps(store: StoreReader, run: str) -> dict[str, Any]:
    """The traced steps: their number, the newest ones, the slowest ones."""
    rows = store.connection.execute(
        f"""
        SELECT attempt, step, count(DISTINCT rank) AS ranks, max(duration_us), arg_max(rank, duration_us), max(time_ms)
        FROM span WHERE run = ? AND name = '{STEP}' AND step IS NOT NULL GROUP BY ALL ORDER BY 6, 1, 2
        """,
        [run],
    ).fetchall()
    named = [
        {"attempt": attempt, "step": step, "ranks": ranks, "duration_ms": _ms(duration_us)}
        for attempt, step, ranks, duration_us, _, _ in rows
    ]
    return {
        "count": len(named),
        "newest": named[-1] if named else None,
        "steps": named[-MAX_TRACED_STEPS:],
        "slowest": sorted(named, key=lambda one: (-one["duration_ms"], one["step"]))[:MAX_SLOW_RANKS],
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(store: StoreReader, run: str, attempt: int, step: int) -> tuple[str, list[TraceSpan]]:
    rows = store.connection.execute(
        "SELECT rank, name, time_ms, after_us, duration_us, span_id, parent_id, attributes_json, trace_id FROM span "
        "WHERE run = ? AND attempt = ? AND step = ?",
        [run, attempt, step],
    ).fetchall()
    spans = [
        TraceSpan(
            rank=rank,
            name=name,
            start_us=time_ms * 1000 + (after_us or 0),
            duration_us=max(0, duration_us),
            span_id=span_id,
            parent_id=parent_id,
            attributes=_attributes(stated),
            exact=after_us is not None,
        )
        for rank, name, time_ms, after_us, duration_us, span_id, parent_id, stated, _ in rows
    ]
    return rows[0][8], spans


def _attributes(text: str | None) -> dict[str, Any]:
    try:
        reported = json.loads(text, parse_constant=str) if text else {}  # JSON has no NaN
    except ValueError:
        return {}
    return reported if isinstance(reported, dict) else {}


def _nodes(store: StoreReader, run: str, attempt: int) -> dict[int, str | None]:
    rows = store.connection.execute(
        "SELECT rank, arg_max(node_uid, time_ms) FROM run WHERE run = ? AND attempt = ? GROUP BY rank", [run, attempt]
    ).fetchall()
    return dict(rows)


def _size(store: StoreReader, run: str, attempt: int) -> int:
    rows = store.connection.execute(
        "SELECT coalesce(max(ranks), 0) FROM run WHERE run = ? AND attempt = ?", [run, attempt]
    ).fetchall()
    return int(rows[0][0])


def _traced_near(store: StoreReader, run: str, step: int, attempt: int | None) -> list[int]:
    rows = store.connection.execute(
        "SELECT DISTINCT step FROM span WHERE run = $1 AND step IS NOT NULL AND coalesce(attempt = $3, true) "
        "ORDER BY abs(step - $2), step LIMIT $4",
        [run, step, attempt, NEAREST],
    ).fetchall()
    return sorted(row[0] for row in rows)


def _was_done(store: StoreReader, run: str, step: int) -> bool:
    """Whether a window covers the step: it was done but not traced."""
    return bool(
        store.connection.execute(
            "SELECT 1 FROM step_window WHERE run = ? AND first_step <= ? AND first_step + steps > ? LIMIT 1",
            [run, step, step],
        ).fetchone()
    )


# -- putting in place -------------------------------------------------------------------------------------------------


def _by_rank(spans: Iterable[TraceSpan]) -> dict[int, list[TraceSpan]]:
    """The spans of each rank in order of time.

    A span that is known to the millisecond starts where the phase before it ended, if that is within the millisecond.
    """
    ranks: dict[int, list[TraceSpan]] = {}
    for span in sorted(spans, key=_place):
        ranks.setdefault(span.rank, []).append(span)
    for each in ranks.values():
        end_us = 0
        for number, span in enumerate(each):
            if span.name not in PHASES:
                continue
            if not span.exact and 0 < end_us - span.start_us < 1000:
                each[number] = span = span._replace(start_us=end_us)
            end_us = max(end_us, span.end_us)
    return dict(sorted(ranks.items()))


def _place(span: TraceSpan) -> tuple[int, bool, int, str]:
    return (span.start_us, span.name != STEP, PHASES.index(span.name) if span.name in PHASES else -1, span.span_id)


def _ordered(ranks: dict[int, list[TraceSpan]]) -> list[TraceSpan]:
    return [span for rank in ranks for span in ranks[rank]]


def _aligned(
    ranks: dict[int, list[TraceSpan]], nodes: dict[int, str | None]
) -> tuple[dict[int, list[TraceSpan]], dict[int, int]]:
    """The ranks with aligned clocks, and by how much each was shifted."""
    left_us = {rank: max((s.end_us for s in each if s.name == "sync"), default=None) for rank, each in ranks.items()}
    ends = {rank: end_us for rank, end_us in left_us.items() if end_us is not None}
    names = {nodes.get(rank) for rank in ranks}
    if len(ends) < 2 or len(names) < 2:
        return ranks, {}
    together_us = round(median(ends.values()))
    of_node: dict[str | None, list[int]] = {}
    for rank, end_us in ends.items():
        of_node.setdefault(nodes.get(rank), []).append(together_us - end_us)
    shift_us = {node: round(median(shifts)) for node, shifts in of_node.items()}
    shifts_us = {rank: shift_us.get(nodes.get(rank), 0) for rank in ranks}
    moved = {
        rank: [span._replace(start_us=span.start_us + shifts_us[rank]) for span in each] for rank, each in ranks.items()
    }
    return moved, shifts_us


def timeline(spans: Sequence[TraceSpan]) -> list[TraceSlice]:
    """The step of a rank, divided into phases without gaps or overlaps. The innermost phase counts."""
    edges = sorted({edge for span in spans for edge in (span.start_us, span.end_us)})
    phases = [span for span in spans if span.name in PHASES]
    pieces: list[TraceSlice] = []
    owner: TraceSpan | None = None
    for start_us, end_us in pairwise(edges):
        inside = [span for span in phases if span.start_us <= start_us and span.end_us >= end_us]
        now = max(inside, key=lambda span: (span.start_us, -span.end_us), default=None)
        if pieces and now is owner:
            pieces[-1] = pieces[-1]._replace(end_us=end_us)
        else:
            pieces.append(TraceSlice(now.name if now else OTHER, start_us, end_us))
        owner = now
    return pieces


# -- telling ----------------------------------------------------------------------------------------------------------


def _rank(
    rank: int, spans: Sequence[TraceSpan], batches: Sequence[dict[str, Any]], shift_us: int, begin_us: int
) -> dict[str, Any]:
    """The step of a rank: its length, its phases, when it was ready, its data."""
    start_us, end_us = min(span.start_us for span in spans), max(span.end_us for span in spans)
    pieces = timeline(spans)
    phases = {name: sum(p.end_us - p.start_us for p in pieces if p.name == name) for name in (*PHASES, OTHER)}
    return {
        "rank": rank,
        "start_ms": _ms(start_us),
        "offset_ms": _ms(start_us - begin_us),
        "duration_ms": _ms(end_us - start_us),
        "sync_ms": _ms(phases["sync"]) if any(span.name == "sync" for span in spans) else None,
        "clock_shift_ms": _ms(shift_us),
        "phases": {name: _ms(spent_us) for name, spent_us in phases.items() if spent_us},
        "timeline": [[p.name, _ms(p.start_us - begin_us), _ms(p.end_us - p.start_us)] for p in pieces],
        "batches": [
            {
                "batch": batch_name(row),
                "micro_batch": row["micro_batch"],
                "epoch": row["epoch"],
                "dataset": row["dataset"],
                "samples": row["samples"],
            }
            for row in batches
            if row["rank"] == rank
        ],
    }


def _last_ready(ranks: dict[int, dict[str, Any]]) -> int:
    """The rank whose gradients were ready last: it waited least. Without synchronization, the slowest rank."""
    synced = [row for row in ranks.values() if row["sync_ms"] is not None]
    if synced:
        return int(min(synced, key=lambda row: (row["sync_ms"], row["rank"]))["rank"])
    return int(min(ranks.values(), key=lambda row: (-row["duration_ms"], row["rank"]))["rank"])


def _latest_first(row: dict[str, Any]) -> tuple[float, float, int]:
    return (-1.0 if row["waited_ms"] is None else row["waited_ms"], -row["duration_ms"], row["rank"])


def _waited_for(ranks: dict[int, dict[str, Any]], last: int, step_us: int) -> dict[str, Any] | None:
    """The rank that the others waited for, and its slow phase; None if no rank waited long."""
    waited = [row["waited_ms"] for row in ranks.values() if row["rank"] != last and row["waited_ms"] is not None]
    if not waited or median(waited) * 1000 < max(HELD_UP_US, HELD_UP_SHARE * step_us):
        return None
    excess = {}
    for name in ranks[last]["phases"]:
        if name not in ("sync", "optimizer"):
            usual = median(row["phases"].get(name, 0.0) for row in ranks.values() if row["rank"] != last)
            excess[name] = round(ranks[last]["phases"][name] - usual, 3)
    phase = max(excess, key=lambda name: excess[name], default=None)
    return {
        "rank": last,
        "ranks": len(waited),
        "waited_ms": round(median(waited), 3),
        "phase": phase,
        "phase_ms": ranks[last]["phases"][phase] if phase else None,
        "excess_ms": excess[phase] if phase else None,
    }


def _to_json(
    span: TraceSpan, batches: Sequence[dict[str, Any]], of_rank: Sequence[TraceSpan], begin_us: int
) -> dict[str, Any]:
    """A span as JSON."""
    micro_batch, batch = _batch_of(span, batches, of_rank)
    return {
        "rank": span.rank,
        "name": span.name,
        "start_ms": _ms(span.start_us),
        "offset_ms": _ms(span.start_us - begin_us),
        "duration_ms": _ms(span.duration_us),
        "batch": batch,
        "micro_batch": micro_batch,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "attributes": span.attributes,
    }


def _batch_of(
    span: TraceSpan, batches: Sequence[dict[str, Any]], of_rank: Sequence[TraceSpan]
) -> tuple[int | None, str | None]:
    """The batch of a span: as reported, or by its index if there are as many spans of that name as batches."""
    stated = span.attributes.get("pyrometer.batch")
    if stated is not None:
        return span.attributes.get("pyrometer.micro_batch"), str(stated)
    if span.name not in OF_MICRO_BATCHES:
        return None, None
    own = [row for row in batches if row["rank"] == span.rank]
    same = [other.span_id for other in of_rank if other.name == span.name]
    if len(same) != len(own):
        return None, None
    row = own[same.index(span.span_id)]
    return row["micro_batch"], batch_name(row)


def _of_batch(span: dict[str, Any], batch: str) -> bool:
    """Whether a span belongs to a batch: its own, or one that covers the whole step."""
    return bool(span["batch"] == batch or (span["name"] in PHASES and span["batch"] is None))


def _ms(us: int) -> float:
    return us / 1000
