"""`plateau`: training continues although the loss has stopped falling.

Needs the SDK or another source of a run's loss.

Losses fall ever more slowly, as a power of the steps: each doubling of the steps brings nearly as much as the one
before. A slow fall is therefore not a plateau. A plateau is a fall that is demonstrably a small part of what the
earlier steps predict. If noise hides that, nothing is reported.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import duration, hours
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

MIN_MS = MS_PER_HOUR  # of flat training
MIN_SHARE = 0.25  # of the run's steps in the time range
LOOK_BACK_MS = 7 * MS_PER_DAY  # to see how it fell before
# The fall per doubling of the steps is less than this part of what it was before, and than half of what even a loss
# that falls as 1 / steps would keep; real ones fall as a power of a tenth to a half and keep more.
STILL_FALLING = 0.4
BEFORE_RATIO = 4.0  # the steps before are looked at back to a quarter of those until then, where noise wants it
SURE = 2.6  # standard deviations: 99.5% on one side, and there are several beginnings to try
OUT_OF_NOISE = 6  # median deviations of the flat part, four standard ones: what wanders has not fallen
COARSE, FINE, FITTED = 32, 256, 24  # parts of the window, of the run, and of what a line is put through
MIN_PARTS = 6
LOOKS = 16  # searches for the time at which it was first detectable


class _Point(NamedTuple):
    """The median loss of a part of a run, so that spikes do not count."""

    x: float  # steps, or milliseconds, since the run began
    time_ms: int
    loss: float


class _Line(NamedTuple):
    """The slope of a loss over `x`, with its confidence limits."""

    slope: float
    low: float
    high: float

    def fall_per_doubling(self, from_x: float, to_x: float) -> tuple[float, float]:
        """How much it falls per doubling of `x` (times a constant), and the error of that."""
        scale = (to_x - from_x) / math.log(to_x / from_x)
        return -self.slope * scale, (self.high - self.low) / (2 * SURE) * scale


class Flat(NamedTuple):
    """Where a loss became flat, and how flat it is."""

    since: _Point
    line: _Line
    before: _Line
    level: float


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each run whose loss is flat until its end, or until the end of the time range."""
    trained = evidence.ask(
        "SELECT 1 FROM burn WHERE state = 'train' GROUP BY pod_uid HAVING sum(ms) >= $1 LIMIT 1", MIN_MS
    )
    if not trained or not evidence.has("metric"):
        return
    runs = evidence.reportable_runs("train")
    if not runs:
        return
    evidence.store.expose(["metric"], *evidence.window)
    suspects = _suspects(evidence, sorted(runs))
    if not suspects:
        return
    evidence.store.expose(["metric"], evidence.window.from_ms - LOOK_BACK_MS, evidence.window.to_ms)
    for run, points in _curves(evidence, suspects).items():
        flat = flat_since(points, evidence.window.from_ms)
        if flat is not None:
            yield from _proposal(evidence, run, suspects[run], points, flat)


# The training loss of a run. Non-finite values belong to another cause.
_LOSS = """
    SELECT run, name, rank, step, time_ms, value,
        CASE WHEN lower(name) = 'loss' THEN 0
            WHEN regexp_matches(lower(name), 'val|eval|test|valid') THEN 3
            WHEN lower(name) LIKE 'train%' THEN 1 ELSE 2 END AS place
    FROM metric
    WHERE lower(name) LIKE '%loss' AND coalesce(goal, 'min') = 'min' AND isfinite(value)
"""


def _suspects(evidence: Evidence, runs: list[str]) -> dict[str, str]:
    """The runs whose loss does not clearly fall in the last part of the time range, with the name of that loss."""
    rows = evidence.ask(
        f"""
        WITH loss AS MATERIALIZED (
            {_LOSS} AND time_ms >= $1 AND time_ms < $2
                AND run NOT IN (SELECT run FROM event WHERE kind = 'nonfinite_loss' AND run IS NOT NULL)
                AND run IN (SELECT unnest($4))
        ),
        -- steps of the window, where they are recorded; else its time
        ranged AS MATERIALIZED (
            SELECT run, name, arg_min(place, place) AS place, min(rank) AS rank, count(*) AS values,
                min(time_ms) AS from_ms, max(time_ms) AS to_ms
            FROM loss GROUP BY run, name HAVING max(time_ms) - min(time_ms) >= $3
        ),
        chosen AS MATERIALIZED (
            SELECT * FROM ranged QUALIFY row_number() OVER (PARTITION BY run ORDER BY place, values DESC, name) = 1
        )
        SELECT run, name, (COARSE * (time_ms - from_ms)) // (to_ms - from_ms + 1) AS part, median(value)
        FROM loss JOIN chosen USING (run, name, rank)
        GROUP BY run, name, part ORDER BY run, part
        """.replace("COARSE", str(COARSE)),
        *evidence.window,
        MIN_MS,
        runs,
    )
    parts: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for run, name, part, loss in rows:
        if part >= COARSE * (1 - MIN_SHARE):
            parts[run, name].append((float(part), loss))
    return {run: name for (run, name), last in parts.items() if len(last) > 2 and not _line(last).high < 0}


def _curves(evidence: Evidence, suspects: dict[str, str]) -> dict[str, list[_Point]]:
    """The losses of these runs, from the start of the look-back time, in parts of equal length."""
    rows = evidence.ask(
        f"""
        WITH loss AS MATERIALIZED (
            SELECT run, rank, time_ms, value, coalesce(step + 1, time_ms - began.ms)::DOUBLE AS x
            FROM ({_LOSS} AND time_ms < $2 AND list_contains($1, run))
            JOIN (SELECT run, min(started_ms) - 1 AS ms FROM the_run GROUP BY run) began USING (run)
            WHERE name = map($1, $3)[run]
        ),
        ranged AS MATERIALIZED (
            SELECT run, min(rank) AS rank, min(x) AS least, max(x) - min(x) AS length FROM loss GROUP BY run
        )
        SELECT run, median(x), min(time_ms), median(value)
        FROM loss JOIN ranged USING (run, rank)
        WHERE length > 0 AND x > 0
        GROUP BY run, floor(FINE * (x - least) / length) ORDER BY run, 2
        """.replace("FINE", str(FINE)),
        list(suspects),
        evidence.window.to_ms,
        list(suspects.values()),
    )
    curves: dict[str, list[_Point]] = defaultdict(list)
    for run, x, time_ms, loss in rows:
        curves[run].append(_Point(x, time_ms, loss))
    return curves


def flat_since(points: Sequence[_Point], window_from_ms: int) -> Flat | None:
    """Where a loss becomes flat until its end; None if it still falls or cannot be judged."""
    if len(points) < 4 * MIN_PARTS:
        return None
    first, last = points[0], points[-1]
    in_window = next((point for point in points if point.time_ms >= window_from_ms), last)
    for sixteenth in range(1, 16):
        start = first.x + (last.x - first.x) * sixteenth / 16
        after = [point for point in points if point.x >= start]
        if not _long_enough(after, in_window, last):
            return None
        flat = _flat_after(points, after)
        if flat is not None:
            after = [point for point in points if point.x >= flat.since.x]
            return flat if _long_enough(after, in_window, last) else None
    return None


def detectable_ms(points: Sequence[_Point], since_ms: int, window_from_ms: int) -> int:
    """When the plateau was first detectable from the values until then."""
    enough = next((n for n, point in enumerate(points) if point.time_ms >= since_ms + MIN_MS), len(points) - 1)
    for count in range(enough + 1, len(points), max(1, (len(points) - enough) // LOOKS)):
        if flat_since(points[:count], window_from_ms) is not None:
            return points[count - 1].time_ms
    return points[-1].time_ms


def _long_enough(after: Sequence[_Point], in_window: _Point, last: _Point) -> bool:
    return (
        len(after) >= MIN_PARTS
        and last.time_ms - max(after[0].time_ms, in_window.time_ms) >= MIN_MS
        and last.x - after[0].x >= MIN_SHARE * (last.x - in_window.x)
    )


def _flat_after(points: Sequence[_Point], after: Sequence[_Point]) -> Flat | None:
    """Compare the fall per doubling of the steps after a point with that before it."""
    start, end = after[0].x, after[-1].x
    folded = _folded(after)
    line = _line([(point.x, point.loss) for point in folded])
    if line.high < 0:
        return None  # it falls
    level = median(point.loss for point in folded)
    noise = median(abs(point.loss - level) for point in folded)
    now, now_error = line.fall_per_doubling(start, end)
    for back in (start * start / end, start / BEFORE_RATIO):
        earlier = [point for point in points if back <= point.x < start]
        # with too few earlier values there is no prediction
        if len(earlier) < MIN_PARTS or math.log(start / earlier[0].x) < math.log(end / start) / 4:
            continue
        before = _line([(point.x, point.loss) for point in _folded(earlier)])
        then, then_error = before.fall_per_doubling(earlier[0].x, start)
        steepest = _fall_of_inverse(start, end) / _fall_of_inverse(earlier[0].x, start)
        promised = min(STILL_FALLING, steepest / 2)
        fell = median(point.loss for point in earlier[: len(earlier) // 4 + 1]) - level
        if (
            before.high < 0
            and now + SURE * math.hypot(now_error, promised * then_error) < promised * then
            and fell > OUT_OF_NOISE * noise
        ):
            return Flat(_reached(points, after, level), line, before, level)
    return None


def _fall_of_inverse(from_x: float, to_x: float) -> float:
    """How much 1 / x falls between two values, per doubling."""
    return (1 / from_x - 1 / to_x) / math.log(to_x / from_x)


def _reached(points: Sequence[_Point], after: Sequence[_Point], level: float) -> _Point:
    """The first point at the level of the following points, within their noise."""
    noise = median(abs(point.loss - level) for point in after)
    for number, point in enumerate(points):
        near = [other.loss for other in points[number : number + 5]]
        if point.x >= after[0].x and median(near) <= level + noise:
            return point
    return after[0]


def _folded(points: Sequence[_Point]) -> list[_Point]:
    """The points in at most as many parts as fitting a line needs."""
    parts = min(FITTED, len(points))
    cuts = [len(points) * n // parts for n in range(parts + 1)]
    folded = []
    for from_n, to_n in pairwise(cuts):
        part = points[from_n:to_n]
        folded.append(_Point(median(p.x for p in part), part[-1].time_ms, _middle([p.loss for p in part])))
    return folded


def _middle(values: Sequence[float]) -> float:
    """The mean of the middle half: nearly as exact as a mean, and nearly as robust as a median."""
    ordered = sorted(values)[len(values) // 4 : len(values) - len(values) // 4]
    return sum(ordered) / len(ordered)


def _line(points: Sequence[tuple[float, float]]) -> _Line:
    """The median of all slopes between two points (Theil–Sen), with its limits.

    Correlated neighbors carry less information, so the limits widen with the autocorrelation of the residuals.
    """
    n = len(points)
    slopes = sorted(
        (points[j][1] - points[i][1]) / (points[j][0] - points[i][0])
        for i in range(n)
        for j in range(i + 1, n)
        if points[j][0] > points[i][0]
    )
    if not slopes:
        return _Line(0.0, -math.inf, math.inf)
    slope = median(slopes)
    alike = _alike([y - slope * x for x, y in points])
    spread = SURE * math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * (1 + alike) / (1 - alike))
    low, high = math.floor((len(slopes) - spread) / 2), math.ceil((len(slopes) + spread) / 2)
    return _Line(slope, slopes[low] if low >= 0 else -math.inf, slopes[high] if high < len(slopes) else math.inf)


def _alike(residuals: Sequence[float]) -> float:
    """The autocorrelation of neighbors, beyond chance: from 0 to 0.9."""
    middle = median(residuals)
    apart = [residual - middle for residual in residuals]
    whole = sum(value * value for value in apart)
    together = sum(one * other for one, other in pairwise(apart))
    by_chance = 0.5 / math.sqrt(len(residuals))
    return min(max(together / whole - by_chance, 0.0), 0.9) if whole > 0 else 0.0


def _proposal(evidence: Evidence, run: str, name: str, points: Sequence[_Point], flat: Flat) -> Iterable[Proposal]:
    from_ms = max(flat.since.time_ms, evidence.window.from_ms)
    pods = evidence.ask(
        "SELECT coalesce(holder_name.workload_uid, pod_uid), list_sort(list(DISTINCT pod_uid)), "
        "max(coalesce(ended_ms, $3)) AS ended_ms "
        "FROM the_run JOIN holder_name USING (pod_uid) "
        "WHERE run = $1 AND started_ms < $3 AND coalesce(ended_ms > $2, true) GROUP BY 1 ORDER BY 1",
        run,
        from_ms,
        evidence.window.to_ms,
    )
    silent_ms = 10 * MS_PER_MINUTE
    last_ms = points[-1].time_ms
    for owner, pod_uids, ended_ms in pods[:1]:
        to_ms = min(ended_ms, evidence.window.to_ms)
        if to_ms - last_ms > max(silent_ms, (last_ms - points[0].time_ms) // 16):
            to_ms = last_ms  # no further reports
        spent = evidence.ask(
            "SELECT coalesce(sum(ms), 0)::BIGINT FROM burn WHERE state = 'train' AND list_contains($1, pod_uid) "
            "AND minute_ms >= $2",
            pod_uids,
            from_ms,
        )[0][0]
        best = min(_folded(points), key=lambda point: point.loss)
        yield Proposal(
            cause="plateau",
            owner_uid=owner,
            from_ms=from_ms,
            to_ms=to_ms,
            states=CLAIMS["plateau"],
            scope=tuple(Scope(pod, from_ms, to_ms) for pod in pod_uids),
            headline=f"has not lowered its loss for {duration(to_ms - from_ms)}, since {evidence.time(from_ms)}",
            evidence=(
                f"{name} has stayed at {flat.level:.4g}; the best part of the run, up to "
                f"{evidence.time(best.time_ms)}, reached {best.loss:.4g}",
                _slopes(points, flat),
                f"{hours(spent)} of training since",
            ),
            suggestion="Stop it and keep its best checkpoint, lower the learning rate, or change the data.",
            confidence=0.7,
            detectable_ms=detectable_ms(points, from_ms, evidence.window.from_ms),
        )


def _slopes(points: Sequence[_Point], flat: Flat) -> str:
    after = [point for point in points if point.x >= flat.since.x]
    an_hour = (after[-1].x - after[0].x) / max(after[-1].time_ms - after[0].time_ms, 1) * MS_PER_HOUR
    line = [round(edge * an_hour, 6) for edge in (flat.line.slope, flat.line.low, flat.line.high)]
    return (
        f"it changes by {line[0]:+.2g} per hour (between {line[1]:+.2g} and {line[2]:+.2g}); "
        f"before, by {flat.before.slope * an_hour:+.2g}"
    )
