"""From a jump of the loss to the data behind it: `pyrometer lineage RUN --spikes`.

A value jumps when it is far above what the values before it make usual: the running median of those, and the spread
(MAD) of all values around it. Behind a jump are the batches of all ranks at its step. A sample that was behind every
jump, and nowhere else, is where to look first. That is no proof: an update is of all its samples together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrometer.account.sums import Window, iso
from pyrometer.explain.lineage import NotRecordedError, batch_name, batches_of_step, open_run, recorded_near
from pyrometer.store import Reading

BEFORE = 25  # values that say what is usual
LEAST_BEFORE = 5
LEAST_SCORE = 8.0  # spreads above the usual: of well-behaved noise, one value in 10¹⁵
LEAST_SHARE = 0.01  # of the usual value: a curve without noise has no spread
MAD_TO_SIGMA = 1.4826
MOST_SPIKES = 5
MOST_PLACES = 200  # jumps whose samples are compared
MOST_SUSPECTS = 20
_CHUNK = 65_536
Floats = NDArray[np.float64]


class Point(NamedTuple):
    """A value of the metric: over the ranks that reported it, and the rank with the worst one if several did."""

    attempt: int
    step: int
    time_ms: int
    value: float
    worst_rank: int | None


class Spike(NamedTuple):
    """Values that lie far above the usual, one after the other: where they begin, and the farthest of them."""

    first: Point
    peak: Point
    last: Point
    usual: float | None
    score: float | None  # None: not a number


def lineage_of_spikes(
    store: Reading, run: str, window: Window, *, zone: tzinfo, metric: str | None = None, most: int = MOST_SPIKES
) -> dict[str, Any]:
    """The largest jumps of a run's loss, the data behind each, and the samples that are behind all of them."""
    open_run(store, run, window)
    name, goal = _metric(store, run, metric)
    points = _points(store, run, name, goal)
    found: list[Spike] = []
    for attempt in sorted({point.attempt for point in points}):
        found += spikes([point for point in points if point.attempt == attempt], up=goal != "max")
    broken = sorted((s for s in found if s.score is None), key=lambda s: s.first.time_ms)[:1]
    jumps = sorted((s for s in found if s.score is not None), key=lambda s: -(s.score or 0.0))[:most]
    chosen = sorted([*broken, *jumps], key=lambda s: (s.first.time_ms, s.first.step))
    told = [_told(store, run, spike, zone) for spike in chosen]
    largest = sorted(found, key=lambda s: -(s.score or math.inf))[:MOST_PLACES]
    return {
        "run": run, "step": None, "metric": name, "goal": goal, "values": len(points),
        "logged_every": _every(points), "found": len(found), "spikes": told,
        "suspects": _suspects(store, run, name, [(spike.first.attempt, spike.first.step) for spike in largest]),
        "updates": [], "checkpoints": [],
    }  # fmt: skip


def spikes(points: Sequence[Point], *, up: bool = True) -> list[Spike]:
    """Where the values of one attempt jump. Values that follow a jump without a usual one between are part of it."""
    values = np.array([point.value for point in points], np.float64) * (1.0 if up else -1.0)
    finite = np.isfinite(values)
    usual = np.full(len(values), np.nan)
    usual[finite] = _running_median(values[finite])
    beyond = values - usual
    known = beyond[np.isfinite(beyond)]
    spread = MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0
    limit = np.maximum(spread * LEAST_SCORE, LEAST_SHARE * np.abs(usual))
    out = ~finite | (np.nan_to_num(beyond, nan=0.0) > np.nan_to_num(limit, nan=np.inf))
    found: list[Spike] = []
    previous = -2
    for place in np.flatnonzero(out).tolist():
        score = float(beyond[place] / max(spread, limit[place] / LEAST_SCORE)) if finite[place] else None
        same_kind = found and (found[-1].score is None) == (score is None)
        if previous == place - 1 and same_kind:
            peak = found[-1]
            higher = score is not None and score > (peak.score or 0.0)
            if higher:
                peak = peak._replace(peak=points[place], score=score, usual=_plain(usual[place], up))
            found[-1] = peak._replace(last=points[place])
        else:
            found.append(Spike(points[place], points[place], points[place], _plain(usual[place], up), score))
        previous = place
    return found


def _plain(value: float, up: bool) -> float | None:
    return (float(value) if up else -float(value)) if math.isfinite(value) else None


def _running_median(values: Floats) -> Floats:
    """For each value, the median of those before it; not a number for the first few."""
    usual = np.full(len(values), np.nan)
    for place in range(LEAST_BEFORE, min(BEFORE, len(values))):
        usual[place] = np.median(values[:place])
    if len(values) > BEFORE:
        before = np.lib.stride_tricks.sliding_window_view(values, BEFORE)[:-1]
        for begin in range(0, len(before), _CHUNK):  # a median copies what it looks at
            chunk = before[begin : begin + _CHUNK]
            usual[BEFORE + begin : BEFORE + begin + len(chunk)] = np.median(chunk, axis=1)
    return usual


# -- reading ----------------------------------------------------------------------------------------------------------


def _metric(store: Reading, run: str, named: str | None) -> tuple[str, str]:
    """The metric to look at and whether less of it is better: the one that was named, else the loss."""
    rows = store.connection.execute(
        "SELECT name, max(goal), count(*) FROM metric WHERE run = ? AND step IS NOT NULL GROUP BY name ORDER BY name",
        [run],
    ).fetchall()
    goals = {name: goal or "min" for name, goal, _ in rows}
    if named is not None:
        if named not in goals:
            raise NotRecordedError(f"{run} has no metric {named!r} with steps. It has: {', '.join(goals) or 'none'}.")
        return named, goals[named]
    losses = [(name != "loss", "val" in name, -count, name) for name, _, count in rows if "loss" in name.lower()]
    if not losses:
        raise NotRecordedError(
            f"{run} has no metric that is called a loss and has steps. "
            f"Name one with --metric: {', '.join(goals) or 'there is none'}."
        )
    name = min(losses)[-1]
    return name, goals[name]


def _points(store: Reading, run: str, name: str, goal: str) -> list[Point]:
    worst = "arg_max" if goal != "max" else "arg_min"
    rows = store.connection.execute(
        f"""
        SELECT attempt, step, max(time_ms),
            CASE WHEN bool_and(isfinite(value)) THEN avg(value) ELSE 'nan'::DOUBLE END,
            CASE WHEN count(DISTINCT rank) > 1 THEN coalesce(
                min(rank) FILTER (WHERE NOT isfinite(value)), {worst}(rank, value) FILTER (WHERE isfinite(value))
            ) END
        FROM metric WHERE run = ? AND name = ? AND step IS NOT NULL GROUP BY attempt, step ORDER BY attempt, step
        """,
        [run, name],
    ).fetchall()
    return [Point(*row) for row in rows]


def _every(points: Sequence[Point]) -> int | None:
    """How many steps usually lie between two values."""
    gaps = [b.step - a.step for a, b in itertools.pairwise(points) if a.attempt == b.attempt]
    return int(np.median(gaps)) if gaps else None


def _suspects(store: Reading, run: str, metric: str, places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Samples behind the jumps: those behind most of them first, and of those the ones least often elsewhere.

    `consumed` is how often in all, `measured` at how many of those steps the metric is known: it may be logged seldom.
    """
    if not places:
        return {"total": 0, "spikes": 0, "rows": []}
    listed = ", ".join(f"({int(attempt)}, {int(step)})" for attempt, step in places)
    store.connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE suspect AS
        SELECT dataset, sample, count(DISTINCT (attempt, step)) AS behind,
            CASE WHEN try_cast(sample AS BIGINT)::VARCHAR = sample THEN try_cast(sample AS BIGINT) END AS number
        FROM (
            SELECT dataset, attempt, step, unnest(coalesce(samples, rows::VARCHAR[])) AS sample
            FROM batch WHERE run = $1 AND (attempt, step) IN ({listed})
        ) GROUP BY ALL
        """,
        [run],
    )
    counted = store.connection.execute("SELECT count(*), max(behind) FROM suspect").fetchall()
    total, most = counted[0]
    none_shared = len(places) > 1 and (most or 0) < 2
    if not total or none_shared:
        return {"total": total, "spikes": len(places), "rows": []}
    # Where some are behind several jumps, the others are of no interest.
    store.connection.execute(f"DELETE FROM suspect WHERE behind < {min(most, 2)}")
    rows = _consumed(store, run, metric)
    return {
        "total": rows[0][5],
        "spikes": len(places),
        "rows": [
            {
                "sample": sample, "dataset": dataset, "spikes": behind, "of": len(places), "consumed": consumed,
                "measured": measured,
            }
            for sample, dataset, behind, consumed, measured, _ in rows
        ],
    }  # fmt: skip


def _consumed(store: Reading, run: str, metric: str) -> list[tuple[Any, ...]]:
    """The suspects, each with how often it was consumed. Numbers are compared as such: that is much faster."""
    return store.connection.execute(
        f"""
        WITH eaten AS (
            SELECT suspect.*, attempt, step
            FROM (SELECT dataset, attempt, step, unnest(rows) AS number FROM batch WHERE run = $run) batch
            JOIN suspect ON suspect.number = batch.number AND suspect.dataset IS NOT DISTINCT FROM batch.dataset
            UNION ALL
            SELECT suspect.*, attempt, step
            FROM (SELECT dataset, attempt, step, unnest(samples) AS sample FROM batch WHERE run = $run) batch
            JOIN suspect ON suspect.sample = batch.sample AND suspect.dataset IS NOT DISTINCT FROM batch.dataset
        ), known AS (SELECT DISTINCT attempt, step, true AS known FROM metric WHERE run = $run AND name = $metric)
        SELECT sample, dataset, behind, count(DISTINCT (attempt, step)) AS consumed,
            count(DISTINCT (attempt, step)) FILTER (WHERE known) AS measured, count(*) OVER () AS found
        FROM eaten LEFT JOIN known USING (attempt, step)
        GROUP BY sample, dataset, behind, number
        ORDER BY behind DESC, measured - behind, number, sample LIMIT {MOST_SUSPECTS}
        """,
        {"run": run, "metric": metric},
    ).fetchall()


def _told(store: Reading, run: str, spike: Spike, zone: tzinfo) -> dict[str, Any]:
    batches = batches_of_step(store, run, spike.first.attempt, spike.first.step)
    return {
        "kind": "nonfinite" if spike.score is None else "spike",
        "attempt": spike.first.attempt,
        "step": spike.first.step,
        "to_step": spike.last.step,
        "peak_step": spike.peak.step,
        "at": iso(spike.first.time_ms, zone),
        "value": spike.peak.value if spike.score is not None else None,
        "usual": spike.usual,
        "score": None if spike.score is None else round(spike.score, 1),
        "worst_rank": spike.first.worst_rank,
        "updates": [
            {
                "rank": row["rank"], "micro_batch": row["micro_batch"], "epoch": row["epoch"],
                "dataset": row["dataset"], "batch": batch_name(row), "samples": row["samples"],
            }
            for row in batches
        ],
        "nearest": [] if batches else recorded_near(store, run, spike.first.step),
    }  # fmt: skip
