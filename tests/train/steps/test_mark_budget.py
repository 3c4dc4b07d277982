"""The budget of marks: how many steps are marked."""

from __future__ import annotations

import pytest

from pyrometer.train.steps.mark_budget import MAX_INTERVAL, MarkBudget
from pyrometer.train.steps.recorder import Recorder
from pyrometer.train.steps.ring import Ring


@pytest.mark.parametrize(
    ("cost_ns", "step_ns", "can_skip", "every"),
    [
        (10_000, 100_000_000, True, 1),  # fits
        (100_000, 100_000_000, True, 1),  # one thousandth of a long step
        (100_000, 1_000_000, True, MAX_INTERVAL),  # even one step in 64 is above the budget
        (40_000, 10_000_000, True, 5),
        (40_000, 10_000_000, False, 1),
        (40_000, 0, True, MAX_INTERVAL),
    ],
)
def test_apply_marks_as_many_steps_as_the_budget_allows(cost_ns, step_ns, can_skip, every):
    recorder = Recorder(Ring.in_memory())
    budget = MarkBudget(recorder)
    budget._cost_ns = cost_ns
    budget.apply(step_ns, can_skip=can_skip)
    assert recorder.every == every


def test_estimate_sets_a_lower_limit_for_measurements():
    budget = MarkBudget(Recorder(Ring.in_memory()))
    budget.estimate()
    assert budget._cost_ns > 0
    assert budget._min_cost_ns == budget._cost_ns // 2


def test_measure_without_both_kinds_of_steps_keeps_the_estimate():
    budget = MarkBudget(Recorder(Ring.in_memory()))
    budget._cost_ns = 5_000
    budget.measure(0, 10)
    assert budget._cost_ns == 5_000
