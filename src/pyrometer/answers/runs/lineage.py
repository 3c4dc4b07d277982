"""Which data made which update, and which checkpoints contain it: the answers of `pyrometer lineage`.

After an all-reduce, an update depends on all samples of all ranks. The answers are therefore sets: they show that a
sample was in an update, not that it caused anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.effective_steps import RunHistory, RunPart, SavedCheckpoint, history_of
from pyrometer.answers.runs.overview import RunNotFoundError
from pyrometer.store import StoreReader

MAX_UPDATES = 1_000  # of an answer, by default
NEAREST = 4

_UPDATES = """
SELECT attempt, step, rank, micro_batch, epoch, loader, send_index, dataset,
    coalesce(samples, rows::VARCHAR[]) AS samples, time_ms
FROM batch WHERE run = $run
"""


class NotRecordedError(LookupError):
    """The requested data was not recorded. The text lists what was."""


def open_run(store: StoreReader, run: str, window: TimeRange) -> RunHistory:
    """Open the records of a run and return its history."""
    store.expose_all(("run", "event"))
    store.expose(("step_window", "batch", "span", "metric"), *window)
    recorded = store.connection.execute("SELECT 1 FROM run WHERE run = ? LIMIT 1", [run]).fetchone()
    if recorded is None:
        raise RunNotFoundError(run)
    return history_of(store, run)


def lineage_of_step(
    store: StoreReader,
    run: str,
    step: int,
    window: TimeRange,
    *,
    zone: tzinfo,
    attempt: int | None = None,
    limit: int = MAX_UPDATES,
    offset: int = 0,
) -> dict[str, Any]:
    """A step → the batches of all ranks, of every attempt that did it → the checkpoints that contain the update."""
    history = open_run(store, run, window)
    values = {"run": run, "step": step, "attempt": attempt}
    where = "step = $step AND coalesce(attempt = $attempt, true)"
    total, rows = _page(store, where, values, "attempt, rank, micro_batch, loader, send_index", limit, offset)
    attempts = sorted({row["attempt"] for row in rows})
    checkpoints = [
        (saved, number) for number in (attempts or sorted(history.begins)) for saved in history.containing(number, step)
    ]
    return {
        "run": run,
        "step": step,
        "updates": [_update(row, history, zone) for row in rows],
        **_paging(total, limit, offset),
        "unknown_batches": sum(row["samples"] is None for row in rows),
        "ranks_without_batches": _silent(store, run, rows, attempts) if total <= limit and not offset else [],
        "nearest": [] if rows else recorded_near(store, run, step),
        "checkpoints": [_saved(saved, zone, of_attempt=number) for saved, number in checkpoints],
    }


def lineage_of_sample(
    store: StoreReader,
    run: str,
    sample: str,
    window: TimeRange,
    *,
    zone: tzinfo,
    limit: int = MAX_UPDATES,
    offset: int = 0,
) -> dict[str, Any]:
    """A sample → every step, rank, epoch and micro-batch that consumed it, and the first checkpoint with it."""
    history = open_run(store, run, window)
    where, values = holding(sample)
    values["run"] = run
    total, rows = _page(store, where, values, "time_ms, attempt, rank, micro_batch", limit, offset)
    updates = [
        {
            **_update(row, history, zone, samples=False),
            "batch_size": None if row["samples"] is None else len(row["samples"]),
            "checkpoint": _first(history, row["attempt"], row["step"], zone),
        }
        for row in rows
    ]
    recorded = {
        saved for row in rows if row["step"] is not None for saved in history.containing(row["attempt"], row["step"])
    }
    return {
        "run": run,
        "step": None,
        "sample": sample,
        "updates": updates,
        **_paging(total, limit, offset),
        **_how_much(store, run),
        "checkpoints": [_saved(saved, zone) for saved in history.checkpoints if saved in recorded],
    }


def lineage_of_checkpoint(
    store: StoreReader,
    run: str,
    step: int,
    window: TimeRange,
    *,
    zone: tzinfo,
    attempt: int | None = None,
    limit: int = MAX_UPDATES,
    offset: int = 0,
) -> dict[str, Any]:
    """A checkpoint → the steps in it, by the attempt that did them, and how many samples of which epochs."""
    history = open_run(store, run, window)
    saved = [one for one in history.checkpoints if one.step == step and attempt in (None, one.attempt)]
    if not saved:
        raise NotRecordedError(_no_checkpoint(history, run, step))
    chosen = saved[-1]
    parts = list(history.line(chosen.attempt, chosen.step))[::-1]
    where, values = _inside(parts)
    values["run"] = run
    total, rows = _page(store, where, values, "step, attempt, rank, micro_batch, loader, send_index", limit, offset)
    return {
        "run": run,
        "step": step,
        "checkpoint": _saved(chosen, zone),
        "also_saved_by": [one.attempt for one in saved if one != chosen],
        "parts": [_part(store, run, part) for part in parts],
        "epochs": _epochs(store, where, values),
        "updates": [_update(row, history, zone) for row in rows],
        **_paging(total, limit, offset),
        "checkpoints": [_saved(one, zone) for one in history.checkpoints if one.step >= step and one != chosen],
    }


def holding(sample: str) -> tuple[str, dict[str, Any]]:
    """The SQL condition for batches that contain a sample, and its values."""
    if sample.removeprefix("-").isdecimal() and str(int(sample)) == sample and abs(int(sample)) < 2**63:
        number = int(sample)
        return "(list_contains(rows, $number) OR list_contains(samples, $sample))", {"number": number, "sample": sample}
    return "list_contains(samples, $sample)", {"sample": sample}


def recorded_near(store: StoreReader, run: str, step: int) -> list[int]:
    """The nearest steps whose data was recorded."""
    rows = store.connection.execute(
        "SELECT DISTINCT step FROM batch WHERE run = ? AND step IS NOT NULL ORDER BY abs(step - ?), step LIMIT ?",
        [run, step, NEAREST],
    ).fetchall()
    return sorted(row[0] for row in rows)


def batches_of_steps(
    store: StoreReader, run: str, attempt: int, first: int, last: int, *, limit: int | None = None
) -> list[dict[str, Any]]:
    """The batches of all ranks that an attempt consumed from one step to another, in order."""
    where = "step BETWEEN $first AND $last AND attempt = $attempt"
    order = "step, rank, micro_batch, loader, send_index" + ("" if limit is None else f" LIMIT {int(limit)}")
    values = {"run": run, "first": first, "last": last, "attempt": attempt}
    return _rows(store, f"{_UPDATES} AND {where} ORDER BY {order}", values)


# -- reading ----------------------------------------------------------------------------------------------------------


def _page(
    store: StoreReader, where: str, values: dict[str, Any], order: str, limit: int, offset: int
) -> tuple[int, list[dict[str, Any]]]:
    """The number of batches, and one page of them."""
    page = f"{_UPDATES} AND {where} ORDER BY {order} LIMIT {int(limit)} OFFSET {int(offset)}"
    rows = _rows(store, page, values)
    if len(rows) < limit and (rows or not offset):
        return offset + len(rows), rows
    counted = store.connection.execute(f"SELECT count(*) FROM batch WHERE run = $run AND {where}", values).fetchall()
    return counted[0][0], rows


def _rows(store: StoreReader, query: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    found = store.connection.execute(query, values)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _inside(parts: Sequence[RunPart]) -> tuple[str, dict[str, Any]]:
    """The SQL condition for batches of a line of attempts."""
    pieces = [
        f"(attempt = {part.attempt} AND step >= {part.from_step} AND step < {part.to_step})"
        for part in parts
        if part.to_step is not None
    ]
    return f"({' OR '.join(pieces) or 'false'})", {}


def _part(store: StoreReader, run: str, part: RunPart) -> dict[str, Any]:
    """The part of an attempt that is in a checkpoint.

    `recorded_steps` is the number of its steps whose data is known.
    """
    where, values = _inside([part])
    counted = store.connection.execute(
        f"SELECT count(DISTINCT step), count(*) FROM batch WHERE run = $run AND {where}", {**values, "run": run}
    ).fetchall()
    steps = (part.to_step or part.from_step) - part.from_step
    return {
        "attempt": part.attempt,
        "from_step": part.from_step,
        "to_step": part.to_step,
        "steps": steps,
        "recorded_steps": counted[0][0],
        "batches": counted[0][1],
    }


def _epochs(store: StoreReader, where: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return _rows(
        store,
        f"""
        SELECT loader, dataset, epoch, min(step) AS first_step, max(step) AS last_step, count(*) AS batches,
            coalesce(sum(len(coalesce(rows, []))) + sum(len(coalesce(samples, []))), 0)::BIGINT AS samples,
            count(*) FILTER (WHERE rows IS NULL AND samples IS NULL) AS unknown_batches
        FROM batch WHERE run = $run AND {where} GROUP BY ALL ORDER BY loader, dataset, epoch
        """,
        values,
    )


def _how_much(store: StoreReader, run: str) -> dict[str, int]:
    """How many batches were searched for a sample, and how many of them have unknown samples."""
    return _rows(
        store,
        "SELECT count(*) AS batches, count(*) FILTER (WHERE rows IS NULL AND samples IS NULL) AS unknown_batches "
        "FROM batch WHERE run = $run",
        {"run": run},
    )[0]


def _silent(
    store: StoreReader, run: str, rows: Sequence[dict[str, Any]], attempts: Sequence[int]
) -> list[dict[str, int]]:
    """Ranks of these attempts that reported no batch: their part of the update is not known."""
    seen = {(row["attempt"], row["rank"]) for row in rows}
    sizes = store.connection.execute(
        "SELECT attempt, max(ranks) FROM run WHERE run = ? GROUP BY attempt ORDER BY attempt", [run]
    ).fetchall()
    return [
        {"attempt": attempt, "rank": rank}
        for attempt, ranks in sizes
        if attempt in attempts
        for rank in range(ranks)
        if (attempt, rank) not in seen
    ]


# -- telling ----------------------------------------------------------------------------------------------------------


def _update(row: dict[str, Any], history: RunHistory, zone: tzinfo, *, samples: bool = True) -> dict[str, Any]:
    reported = {
        "attempt": row["attempt"],
        "step": row["step"],
        "rank": row["rank"],
        "micro_batch": row["micro_batch"],
        "epoch": row["epoch"],
        "dataset": row["dataset"],
        "loader": row["loader"],
        "batch": batch_name(row),
        "at": iso(row["time_ms"], zone),
        "lost": None if row["step"] is None else not history.counts(row["attempt"], row["step"]),
    }
    return {**reported, "samples": row["samples"]} if samples else reported


def batch_name(row: dict[str, Any]) -> str:
    """The identity of a batch in spans: its loader, epoch and index."""
    return f"{row['loader']}/{row['epoch']}/{row['send_index']}"


def _saved(saved: SavedCheckpoint, zone: tzinfo, *, of_attempt: int | None = None) -> dict[str, Any]:
    reported = {
        "step": saved.step,
        "attempt": saved.attempt,
        "at": iso(saved.saved_ms, zone),
        "duration_ms": saved.duration_ms,
    }
    return reported if of_attempt is None else {**reported, "of_attempt": of_attempt}


def _first(history: RunHistory, attempt: int, step: int | None, zone: tzinfo) -> dict[str, Any] | None:
    """The first checkpoint that contains an update."""
    found = [] if step is None else history.containing(attempt, step)
    return _saved(found[0], zone) if found else None


def _paging(total: int, limit: int, offset: int) -> dict[str, int]:
    return {"total": total, "limit": limit, "offset": offset}


def _no_checkpoint(history: RunHistory, run: str, step: int) -> str:
    near = sorted(sorted({saved.step for saved in history.checkpoints}, key=lambda one: abs(one - step))[:NEAREST])
    if not near:
        return f"{run} has saved no checkpoint."
    return f"{run} has saved no checkpoint of step {step:,}. The nearest: {', '.join(f'{one:,}' for one in near)}."
