"""What a run's money bought: best values, targets, the gain from the last dollars, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from pyrometer.answers.runs.metric_curves import MetricGoal
from pyrometer.model.units import USD_MICRO_PER_USD, usd

MAX_POINTS = 200  # of a curve
MIN_TREND_VALUES = 6  # fewer do not show whether a metric still improves
LAST_PART = 10  # the last tenth of a run's dollars
MIN_USD_MICRO = USD_MICRO_PER_USD // 100  # of that tenth: the gain from less is not shown


class CurvePoint(NamedTuple):
    """A value, and what its run had cost when it was reported."""

    step: int | None
    time_ms: int
    value: float
    gpu_ms: int
    usd_micro: int | None


def best_of(points: Sequence[CurvePoint], aim: MetricGoal | None) -> CurvePoint | None:
    """The first of the best values; None if the direction is not known."""
    if aim is None or aim.goal is None or not points:
        return None
    return min(points, key=lambda point: point.value * aim.sign)  # the first of equal values


def reached_at(points: Sequence[CurvePoint], aim: MetricGoal | None, target: float | None) -> CurvePoint | None:
    """The first value that is at least as good as the target."""
    if aim is None or aim.goal is None or target is None:
        return None
    return next((point for point in points if point.value * aim.sign <= target * aim.sign), None)


def marginal(points: Sequence[CurvePoint], aim: MetricGoal | None, usd_micro: int | None) -> dict[str, Any] | None:
    """The gain in the best value from the last tenth of a run's dollars."""
    if usd_micro is None or usd_micro < LAST_PART * MIN_USD_MICRO:
        return None
    last_usd_micro = usd_micro // LAST_PART
    before = best_of([p for p in points if (p.usd_micro or 0) <= usd_micro - last_usd_micro], aim)
    after = best_of(points, aim)
    if before is None or after is None or aim is None:
        return None
    gain = (before.value - after.value) * aim.sign
    all_gain = (points[0].value - after.value) * aim.sign
    dollars = last_usd_micro / USD_MICRO_PER_USD
    return {
        "usd_micro": last_usd_micro,
        "usd": usd(last_usd_micro),
        "gain": round_significant(gain),
        "gain_per_usd": round_significant(gain / dollars),
        "share_of_all_gain": round_significant(gain / all_gain) if all_gain else None,
    }


def thinned(points: Sequence[CurvePoint], best: CurvePoint | None, most: int = MAX_POINTS) -> list[CurvePoint]:
    """Evenly spaced points, including the first, the last and the best."""
    if len(points) <= most:
        return list(points)
    evenly = {number * (len(points) - 1) // (most - 2) for number in range(most - 1)}
    return [point for number, point in enumerate(points) if number in evenly or point is best]


def pareto(spent: Sequence[tuple[int, float]]) -> list[bool]:
    """Which (cost, value) pairs are on the Pareto front; lower is better for both."""
    kept = [False] * len(spent)
    min_value: float | None = None
    cheapest: dict[float, int] = {}
    for place in sorted(range(len(spent)), key=lambda place: spent[place]):
        cost, badness = spent[place]
        if min_value is None or badness < min_value:
            min_value = badness
            cheapest[badness] = cost
        kept[place] = cheapest.get(badness) == cost and badness == min_value
    return kept


def improving(trend: Sequence[float], aim: MetricGoal | None) -> bool | None:
    """Whether the last third is better than the third before it, by more than neighbors usually differ."""
    if aim is None or aim.goal is None or len(trend) < MIN_TREND_VALUES:
        return None
    third = len(trend) // 3
    late, before = trend[-third:], trend[-2 * third : -third]
    usual = median(abs(b - a) for a, b in zip(trend[-2 * third :], trend[1 - 2 * third :], strict=False))
    return (median(before) - median(late)) * aim.sign > usual


def round_significant(value: float) -> float:
    """A value with six significant digits."""
    return float(f"{value:.6g}")
