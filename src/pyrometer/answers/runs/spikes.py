"""From a jump of the loss to the data behind it: `pyrometer lineage RUN --spikes`.

A value jumps when it is far above what the values before it make usual: the running median of those, and the spread
(MAD) of all values around it. Behind a jump are the batches of all ranks in the training steps that the value covers:
one step, or all steps of a mean. The number that a program or a framework gives a value is not the number of a training
step, so where the covered steps are not recorded, no batch is behind the jump. A sample that was behind every jump, and
nowhere else, is where to look first. That does not prove it: an update depends on all its samples together.

Values of one name from different sources are different series: the loss of a backward and the mean that a framework
logs. Each is searched by itself, and an event that is found in both counts once, with the fewest steps.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lineage import NotRecordedError, batch_name, batches_of_steps, open_run, recorded_near
from pyrometer.answers.runs.metric_curves import NOT_OWN, OWN_LOSS, is_evaluation, is_training_loss
from pyrometer.store import StoreReader

BEFORE = 25  # values that say what is usual
MIN_BEFORE = 5
MIN_SCORE = 8.0  # spreads above the usual: of well-behaved noise, one value in 10¹⁵
MIN_SHARE = 0.01  # of the usual value: a curve without noise has no spread
MAD_TO_SIGMA = 1.4826
GAP_QUANTILE = 0.1  # of the steps from one value to the next: that much where no value is left out
MAX_GAPS = 2  # gaps without a value that may be within one jump
MAX_SPIKES = 5
MAX_COMPARED_JUMPS = 200  # jumps whose samples are compared
MAX_SUSPECTS = 200
MAX_STEPS = 100  # that a value covers: of more steps, no samples are named
MAX_BATCHES = 1_000  # listed for a jump whose value covers several steps
MAX_INNOCENT = 0.5  # samples that would be behind as many jumps by chance, for one to stand out
_CHUNK = 65_536
Floats = NDArray[np.float64]


class LossPoint(NamedTuple):
    """A value of the metric over the ranks that reported it, and the rank with the worst value."""

    attempt: int
    step: int  # as numbered by the program or its framework
    time_ms: int
    value: float
    worst_rank: int | None
    source: str | None = None
    steps: tuple[int, int] | None = None  # the training steps that it covers, both included; None: not known

    @property
    def length(self) -> float:
        """The number of training steps that it covers."""
        return math.inf if self.steps is None else self.steps[1] - self.steps[0] + 1


class Spike(NamedTuple):
    """Consecutive values far above the usual: their start, and the largest."""

    first: LossPoint
    peak: LossPoint
    last: LossPoint
    usual: float | None
    score: float | None  # None: not a number


def lineage_of_spikes(
    store: StoreReader, run: str, window: TimeRange, *, zone: tzinfo, metric: str | None = None, most: int = MAX_SPIKES
) -> dict[str, Any]:
    """The largest jumps of a run's loss, the data behind each, and the samples that are behind all of them."""
    open_run(store, run, window)
    name, goal = _metric(store, run, metric)
    series = _series(_points(store, run, name, goal))
    found = _once(spike for points in series for spike in spikes(points, up=goal != "max"))
    broken = sorted((s for s in found if s.score is None), key=lambda s: s.first.time_ms)[:1]
    jumps = sorted((s for s in found if s.score is not None), key=lambda s: -(s.score or 0.0))[:most]
    chosen = sorted([*broken, *jumps], key=lambda s: (s.first.time_ms, s.first.step))
    reported = [_to_json(store, run, name, spike, zone) for spike in chosen]
    mapped = [spike for spike in found if spike.first.length <= MAX_STEPS]
    largest = sorted(mapped, key=lambda s: -(s.score or math.inf))[:MAX_COMPARED_JUMPS]
    return {
        "run": run,
        "step": None,
        "metric": name,
        "goal": goal,
        "values": sum(map(len, series)),
        "logged_every": _every(max(series, key=len)) if series else None,
        "found": len(found),
        "spikes": reported,
        "reason": reported[0]["reason"] if reported and not mapped else None,
        "suspects": _suspects(store, run, [point for points in series for point in points], largest),
        "updates": [],
        "checkpoints": [],
    }


def _series(points: Iterable[LossPoint]) -> list[list[LossPoint]]:
    """The values of each source and attempt. Those that cover no known steps are left out where others of the same
    name, whose steps are known, last as long: they are the same curve."""
    of_source: dict[str | None, list[LossPoint]] = defaultdict(list)
    for point in points:
        of_source[point.source].append(point)
    until_ms = max((point.time_ms for points in of_source.values() for point in points if point.steps), default=0)
    found: list[list[LossPoint]] = []
    for own in of_source.values():
        times = [point.time_ms for point in own]
        if any(point.steps for point in own) or until_ms < (min(times) + max(times)) / 2:
            attempts = sorted({point.attempt for point in own})
            found += [[point for point in own if point.attempt == attempt] for attempt in attempts]
    return found


def _once(found: Iterable[Spike]) -> list[Spike]:
    """Of jumps of several sources that are one event, the one with the fewest steps."""
    kept: list[Spike] = []
    for spike in sorted(found, key=lambda spike: spike.first.length):
        if not any(_is_same(spike.first, other.first) for other in kept):
            kept.append(spike)
    return kept


def _is_same(wide: LossPoint, narrow: LossPoint) -> bool:
    if wide.source == narrow.source or wide.attempt != narrow.attempt or wide.steps is None or narrow.steps is None:
        return False
    return wide.steps[0] <= narrow.steps[0] and narrow.steps[1] <= wide.steps[1]


def spikes(points: Sequence[LossPoint], *, up: bool = True) -> list[Spike]:
    """Where the values of one attempt jump. Values that follow a jump without a usual one between belong to it.

    Where losses come fast, usual values are left out and jumps are kept: after a long gap, a jump is another one.
    """
    values = np.array([point.value for point in points], np.float64) * (1.0 if up else -1.0)
    finite = np.isfinite(values)
    usual = np.full(len(values), np.nan)
    usual[finite] = _running_median(values[finite])
    beyond = values - usual
    recorded = beyond[np.isfinite(beyond)]
    spread = MAD_TO_SIGMA * float(np.median(np.abs(recorded - np.median(recorded)))) if len(recorded) else 0.0
    limit = np.maximum(spread * MIN_SCORE, MIN_SHARE * np.abs(usual))
    out = ~finite | (np.nan_to_num(beyond, nan=0.0) > np.nan_to_num(limit, nan=np.inf))
    found: list[Spike] = []
    begins = np.array([point.steps[0] if point.steps else point.step for point in points], np.int64)
    gaps = np.diff(begins)
    longest_gap = MAX_GAPS * float(np.quantile(gaps[gaps > 0], GAP_QUANTILE)) if np.any(gaps > 0) else math.inf
    previous = -2
    for place in np.flatnonzero(out).tolist():
        score = float(beyond[place] / max(spread, limit[place] / MIN_SCORE)) if finite[place] else None
        same_kind = found and (found[-1].score is None) == (score is None)
        if previous == place - 1 and same_kind and gaps[previous] <= longest_gap:
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
    for place in range(MIN_BEFORE, min(BEFORE, len(values))):
        usual[place] = np.median(values[:place])
    if len(values) > BEFORE:
        before = np.lib.stride_tricks.sliding_window_view(values, BEFORE)[:-1]
        for begin in range(0, len(before), _CHUNK):  # a median copies what it looks at
            chunk = before[begin : begin + _CHUNK]
            usual[BEFORE + begin : BEFORE + begin + len(chunk)] = np.median(chunk, axis=1)
    return usual


# -- reading ----------------------------------------------------------------------------------------------------------


def _metric(store: StoreReader, run: str, named: str | None) -> tuple[str, str]:
    """The metric to look at and whether lower is better: the one that was named, else the loss.

    The losses that the SDK read before the program logged one under another name are only the beginning of the run.
    Of several losses, one whose values cover known training steps is preferred: only such a loss leads to samples.
    """
    rows = store.connection.execute(
        f"SELECT name, max(goal), count(*), bool_or({NOT_OWN}), coalesce("
        f"bool_or(last_step IS NOT NULL) FILTER (WHERE {NOT_OWN}), true) "
        "FROM metric WHERE run = ? AND step IS NOT NULL GROUP BY name ORDER BY name",
        [run],
    ).fetchall()
    goals = {name: goal or "min" for name, goal, *_ in rows}
    if named is not None:
        if named not in goals:
            raise NotRecordedError(f"{run} has no metric {named!r} with steps. It has: {', '.join(goals) or 'none'}.")
        return named, goals[named]
    longest = max((count for name, _, count, logged, _ in rows if logged and is_training_loss(name)), default=0)
    enough = min(longest, BEFORE)
    losses = [
        (
            not logged and count < longest,
            is_evaluation(name),
            not mapped or count < enough,
            name != OWN_LOSS,
            -count,
            name,
        )
        for name, _, count, logged, mapped in rows
        if "loss" in name.lower()
    ]
    if not losses:
        raise NotRecordedError(
            f"{run} has no loss metric with steps. Choose one with --metric: {', '.join(goals) or 'there is none'}."
        )
    name = min(losses)[-1]
    return name, goals[name]


def _points(store: StoreReader, run: str, name: str, goal: str) -> list[LossPoint]:
    worst = "arg_max" if goal != "max" else "arg_min"
    rows = store.connection.execute(
        f"""
        SELECT source, attempt, step, max(time_ms),
            CASE WHEN bool_and(isfinite(value)) THEN avg(value) ELSE 'nan'::DOUBLE END,
            CASE WHEN count(DISTINCT rank) > 1 THEN coalesce(
                min(rank) FILTER (WHERE NOT isfinite(value)), {worst}(rank, value) FILTER (WHERE isfinite(value))
            ) END,
            min(first_step), last_step
        FROM (
            SELECT * REPLACE (
                CASE WHEN first_step BETWEEN 0 AND last_step THEN first_step END AS first_step,
                CASE WHEN first_step BETWEEN 0 AND last_step THEN last_step END AS last_step
            ) FROM metric WHERE run = ? AND name = ? AND step IS NOT NULL
        )
        GROUP BY source, attempt, step, last_step ORDER BY source, attempt, coalesce(last_step, step), step
        """,
        [run, name],
    ).fetchall()
    return [
        LossPoint(
            attempt=attempt,
            step=step,
            time_ms=time_ms,
            value=value,
            worst_rank=worst_rank,
            source=source,
            steps=None if last is None else (first, last),
        )
        for source, attempt, step, time_ms, value, worst_rank, first, last in rows
    ]


def _every(points: Sequence[LossPoint]) -> int | None:
    """The usual number of steps between two values."""
    gaps = [b.step - a.step for a, b in itertools.pairwise(points) if a.attempt == b.attempt]
    return int(np.median(gaps)) if gaps else None


def _suspects(store: StoreReader, run: str, points: Sequence[LossPoint], found: Sequence[Spike]) -> dict[str, Any]:
    """Samples behind the jumps: those behind most of them first, and of those the ones least often elsewhere.

    `consumed` is the total count, `measured` by how many values of the metric: it may be logged seldom, or as a mean.
    One sample stands out if no other one is behind as many jumps and chance is not expected to do the same.
    """
    if not found:
        return {"total": 0, "spikes": 0, "rows": []}
    _expose_values(store, points, found)
    store.connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE suspect AS
        SELECT dataset, sample, count(DISTINCT spike) AS behind,
            CASE WHEN try_cast(sample AS BIGINT)::VARCHAR = sample THEN try_cast(sample AS BIGINT) END AS number
        FROM (
            SELECT dataset, spike, unnest(coalesce(samples, rows::VARCHAR[])) AS sample
            FROM batch JOIN (SELECT * FROM covered WHERE spike IS NOT NULL) USING (attempt, step) WHERE run = $1
        ) GROUP BY dataset, sample
        """,
        [run],
    )
    counted = store.connection.execute("SELECT count(*), max(behind) FROM suspect").fetchall()
    total, most = counted[0]
    none_shared = len(found) > 1 and (most or 0) < 2
    if not total or none_shared:
        return {"total": total, "spikes": len(found), "rows": []}
    _weigh(store, run)
    # Where some are behind several jumps, the others are of no interest.
    rows = store.connection.execute(
        f"""
        SELECT sample, dataset, behind, consumed, measured, count(*) OVER () FROM weighed WHERE behind >= {min(most, 2)}
        ORDER BY behind DESC, measured - behind, number, sample LIMIT {MAX_SUSPECTS}
        """
    ).fetchall()
    listed = [
        {
            "sample": sample,
            "dataset": dataset,
            "spikes": behind,
            "of": len(found),
            "consumed": consumed,
            "measured": measured,
            "stands_out": False,
        }
        for sample, dataset, behind, consumed, measured, _ in rows
    ]
    if most > 1:
        alone = all(one["spikes"] < most for one in listed[1:2])
        share = len(found) / sum(point.length <= MAX_STEPS for point in points)
        listed[0]["stands_out"] = alone and _innocent(store, most, share) < MAX_INNOCENT
    return {"total": rows[0][5], "spikes": len(found), "rows": listed}


def _innocent(store: StoreReader, behind: int, share: float) -> float:
    """How many samples are expected behind this number of jumps by chance, if jumps have nothing to do with the data.

    Every suspect is behind one jump. Each of the other values that it is part of is a jump with the share of jumps.
    """
    counted = store.connection.execute("SELECT measured, count(*) FROM weighed GROUP BY measured").fetchall()
    return math.fsum(count * _chance(behind - 1, measured - 1, share) for measured, count in counted)


def _chance(min_value: int, count: int, probability: float) -> float:
    """The chance of at least `min_value` hits among `count` values, each with this probability."""
    if probability >= 1.0:
        return 1.0
    odds = math.log(probability) - math.log1p(-probability)
    whole = math.lgamma(count + 1) + count * math.log1p(-probability)
    return math.fsum(
        math.exp(whole - math.lgamma(hits + 1) - math.lgamma(count - hits + 1) + hits * odds)
        for hits in range(min_value, count + 1)
    )


def _expose_values(store: StoreReader, points: Sequence[LossPoint], found: Sequence[Spike]) -> None:
    """A table of the training steps that values cover: of which value, and of which jump if it is the start of one."""
    starts = {spike.first: number for number, spike in enumerate(found)}
    values = [
        (point.attempt, *point.steps, number, starts.get(point))
        for number, point in enumerate(points)
        if point.steps is not None and point.length <= MAX_STEPS
    ]
    columns = [list(column) for column in zip(*values, strict=True)]
    store.connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE covered AS
        SELECT attempt, unnest(range(first, last + 1)) AS step, last + 1 - first AS length, value, spike FROM (
            SELECT unnest($1::INT[]) AS attempt, unnest($2::BIGINT[]) AS first, unnest($3::BIGINT[]) AS last,
                unnest($4::INT[]) AS value, unnest($5::INT[]) AS spike
        )
        """,
        columns,
    )


def _weigh(store: StoreReader, run: str) -> None:
    """A table of the suspects with how often each was consumed. Numbers are compared as such: that is much faster."""
    store.connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE weighed AS
        WITH eaten AS (
            SELECT suspect.*, attempt, step
            FROM (SELECT dataset, attempt, step, unnest(rows) AS number FROM batch WHERE run = $run) batch
            JOIN suspect ON suspect.number = batch.number AND suspect.dataset IS NOT DISTINCT FROM batch.dataset
            UNION ALL
            SELECT suspect.*, attempt, step
            FROM (SELECT dataset, attempt, step, unnest(samples) AS sample FROM batch WHERE run = $run) batch
            JOIN suspect ON suspect.sample = batch.sample AND suspect.dataset IS NOT DISTINCT FROM batch.dataset
        ), narrowest AS (SELECT attempt, step, arg_min(value, length) AS value FROM covered GROUP BY attempt, step)
        SELECT sample, dataset, behind, number, count(DISTINCT (attempt, step)) AS consumed,
            count(DISTINCT value) AS measured
        FROM eaten LEFT JOIN narrowest USING (attempt, step)
        GROUP BY sample, dataset, behind, number
        """,
        {"run": run},
    )


def _to_json(store: StoreReader, run: str, name: str, spike: Spike, zone: tzinfo) -> dict[str, Any]:
    first, last = spike.first.steps or (None, None)
    reason = _reason(name, spike.first)
    recorded = None if reason or first is None or last is None else (first, last)
    limit = MAX_BATCHES if spike.first.length > 1 else None
    batches = batches_of_steps(store, run, spike.first.attempt, *recorded, limit=limit) if recorded else []
    return {
        "kind": "nonfinite" if spike.score is None else "spike",
        "attempt": spike.first.attempt,
        "step": spike.first.step,
        "to_step": spike.last.step,
        "peak_step": spike.peak.step,
        "source": spike.first.source,
        "first_step": first,
        "last_step": last,
        "reason": reason,
        "at": iso(spike.first.time_ms, zone),
        "value": spike.peak.value if spike.score is not None else None,
        "usual": spike.usual,
        "score": None if spike.score is None else round(spike.score, 1),
        "worst_rank": spike.first.worst_rank,
        "updates": [
            {
                "rank": row["rank"],
                "step": row["step"],
                "micro_batch": row["micro_batch"],
                "epoch": row["epoch"],
                "dataset": row["dataset"],
                "batch": batch_name(row),
                "samples": row["samples"],
            }
            for row in batches
        ],
        "nearest": recorded_near(store, run, recorded[1]) if recorded and not batches else [],
    }


_SOURCES = {
    "wandb": "W&B",
    "mlflow": "MLflow",
    "tensorboard": "TensorBoard",
    "tensorboardX": "TensorBoard",
    "accelerate": "Accelerate",
    "torchtitan": "torchtitan",
    "pyrometer": "pyrometer.log",
    "ray": "Ray Train",
    "transformers": "the Hugging Face Trainer",
    "lightning": "Lightning",
}
_FRAMEWORKS = ("transformers", "lightning")


def _reason(name: str, point: LossPoint) -> str | None:
    """Why no sample is named for a value, in one sentence; None where samples can be named."""
    if point.steps is not None:
        if point.length <= MAX_STEPS:
            return None
        first, last = point.steps
        return (
            f"The value covers the {point.length:,} steps {first:,}–{last:,}, and samples are named for at most "
            f"{MAX_STEPS} steps."
        )
    if is_evaluation(name):
        return f"{name} measures an evaluation, not the data of training steps."
    if point.source is None:
        return "The value was stored without the training steps that it covers, as earlier versions did."
    source = _SOURCES.get(point.source, point.source)
    if point.source in _FRAMEWORKS:
        return f"{source[0].upper()}{source[1:]} did not log the value as the result of known training steps."
    return f"The step number was given to {source} by the program, and which training steps it stands for is unknown."
