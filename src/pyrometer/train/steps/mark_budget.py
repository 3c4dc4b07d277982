"""Decides how many steps are marked, so that marks stay within the SDK's budget."""

from __future__ import annotations

import math

from pyrometer.train.steps import fold
from pyrometer.train.steps.recorder import Recorder, cost_of_marks_ns

BUDGET_NS = 18_000  # per step on average, for marks on the host: a little below the promised 20 µs
BUDGET_SHARE = 0.015  # of a step, a little below the promised 2%
UNNOTICEABLE_SHARE = 0.001  # of a step: all steps are marked while marks cost less than this
LIGHT_SHARE = 1 / 4  # of the cost of a marked step: what a step without marks costs
AVERAGE_OVER = 4  # measurements
MAX_INTERVAL = 64  # steps from one marked step to the next


class MarkBudget:
    """Compares what marks cost with how long steps are, and sets how often the recorder marks a step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._cost_ns = self._min_cost_ns = 0  # of the marks of one step: a rough estimate, then measured

    def estimate(self) -> None:
        """Measures the cost on this machine, outside of the program."""
        self._cost_ns = cost_of_marks_ns()
        self._min_cost_ns = self._cost_ns // 2

    def measure(self, first: int, after: int) -> None:
        """Refines the cost with steps of the program, where both kinds of steps are known."""
        cost_ns = fold.cost_of_marks_ns(self._recorder.ring, first, after)
        if cost_ns is not None:
            self._cost_ns = max(self._cost_ns + (cost_ns - self._cost_ns) // AVERAGE_OVER, self._min_cost_ns)

    def apply(self, step_ns: int, *, can_skip: bool) -> None:
        """Marks all steps where that fits into the budget, or where none may be skipped."""
        budget_ns = max(min(BUDGET_NS, BUDGET_SHARE * step_ns), UNNOTICEABLE_SHARE * step_ns)
        left_ns = max(budget_ns - LIGHT_SHARE * self._cost_ns, 1)
        fits = self._cost_ns <= budget_ns or not can_skip
        self._recorder.every = 1 if fits else min(math.ceil(self._cost_ns / left_ns), MAX_INTERVAL)
