"""Laws of curves, targets and Pareto sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.answers.experiments.tradeoffs import (
    CurvePoint,
    best_of,
    improving,
    marginal,
    pareto,
    reached_at,
    thinned,
)
from pyrometer.answers.runs.metric_curves import MetricGoal
from tests.support.clusters import START_MS

LOSS, REWARD = MetricGoal("loss", "min", False), MetricGoal("reward", "max", False)
finite = st.floats(-1e6, 1e6)
amount = st.integers(0, 50)
aims = st.sampled_from([LOSS, REWARD])


@st.composite
def curves(draw: st.DrawFn) -> list[CurvePoint]:
    """Values over time, and what they had cost by then: it never gets less."""
    values = draw(st.lists(finite, max_size=60))
    spent = sorted(draw(st.lists(st.integers(0, 10**9), min_size=len(values), max_size=len(values))))
    return [
        CurvePoint(step, START_MS + step, value, micro * 2, micro)
        for step, (value, micro) in enumerate(zip(values, spent, strict=True))
    ]


@given(st.lists(st.tuples(amount, amount.map(float)), max_size=40))
def test_pareto_is_the_set_of_undominated_points(spent: list[tuple[int, float]]) -> None:
    def dominated(one: tuple[int, float]) -> bool:
        return any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in spent)

    assert pareto(spent) == [not dominated(one) for one in spent]


@given(curves(), aims, finite, finite)
def test_reached_at_is_never_earlier_for_a_harder_target(
    points: list[CurvePoint], aim: MetricGoal, a: float, b: float
) -> None:
    easy, hard = sorted((a, b), reverse=aim.goal == "min")
    soon, late = reached_at(points, aim, easy), reached_at(points, aim, hard)
    if late is not None:
        assert soon is not None
        assert (soon.time_ms, soon.usd_micro, soon.gpu_ms) <= (late.time_ms, late.usd_micro, late.gpu_ms)


@given(curves(), aims)
def test_best_of_is_the_hardest_target_reached(points: list[CurvePoint], aim: MetricGoal) -> None:
    best = best_of(points, aim)
    if best is None:
        assert not points
        return
    assert reached_at(points, aim, best.value) == best
    assert reached_at(points, aim, best.value - aim.sign) is None


@given(curves(), aims, st.integers(3, 70))
def test_thinned_keeps_the_ends_and_the_best_point(points: list[CurvePoint], aim: MetricGoal, most: int) -> None:
    best = best_of(points, aim)
    kept = thinned(points, best, most)
    assert len(kept) <= max(most, 0)
    assert kept == sorted(kept, key=lambda point: point.time_ms)
    if points and best:
        assert {points[0], points[-1], best} <= set(kept)
    if len(points) <= most:
        assert kept == points


@given(curves(), aims)
def test_marginal_gain_is_between_zero_and_the_whole_gain(points: list[CurvePoint], aim: MetricGoal) -> None:
    spent = points[-1].usd_micro if points else 0
    bought = marginal(points, aim, spent)
    if bought is not None:
        assert bought["gain"] >= 0
        assert bought["share_of_all_gain"] is None or 0 <= bought["share_of_all_gain"] <= 1


@pytest.mark.parametrize(
    ("trend", "aim", "wanted"),
    [
        ([5, 4, 3, 2.5, 2, 1.8, 1.6, 1.5, 1.4], LOSS, True),
        ([5, 4, 3, 2, 2.1, 1.9, 2, 2.1, 1.9, 2.1, 2, 1.9], LOSS, False),
        ([1, 2, 3, 4, 5, 6], REWARD, True),
        ([6, 5, 4, 3, 2, 1], REWARD, False),
        ([3, 2, 1], LOSS, None),
        ([5, 4, 3, 2, 1, 0], None, None),
    ],
)
def test_improving_needs_a_clearly_better_last_third(trend, aim, wanted):
    assert improving(trend, aim) is wanted
