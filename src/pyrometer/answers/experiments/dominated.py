"""When a run was already outperformed: another run had reached the same value for less."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple


class ReachedValue(NamedTuple):
    """A value that a run had reached, and its cost until then. Lower is better for both."""

    time_ms: int
    cost: int
    badness: float


def beaten_since(runs: Mapping[str, Sequence[ReachedValue]]) -> dict[str, int]:
    """For each run that was outperformed at its end: the index of the value from which on it stayed outperformed.

    A value is outperformed if another run, no later, had reached as good a value for less, or a better one for as much.
    Each run counts with its best value so far. Values are in order of time.
    """
    ladder = _Ladder(sorted({reached.cost for values in runs.values() for reached in values}))
    best = dict.fromkeys(runs, math.inf)
    since: dict[str, int] = {}
    reported = (
        (reached.time_ms, run, place, reached) for run, values in runs.items() for place, reached in enumerate(values)
    )
    for _, together in groupby(sorted(reported), key=itemgetter(0)):
        moment = list(together)  # values of the same time are compared with each other
        for _, run, _, reached in moment:
            if reached.badness < best[run]:
                best[run] = reached.badness
                ladder.put(run, reached.cost, reached.badness)
        for _, run, place, reached in moment:
            if ladder.beats(run, reached.cost, best[run]):
                since.setdefault(run, place)
            else:
                since.pop(run, None)
    return since


class _Ladder:
    """The lowest value at no more than some cost, over all runs except one: a Fenwick tree over costs.

    Each node stores the lowest value of one run, that run, and the lowest value of any other run.
    """

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs = costs
        self.min_value = [math.inf] * (len(costs) + 1)
        self.whose = [""] * (len(costs) + 1)
        self.others = [math.inf] * (len(costs) + 1)

    def put(self, run: str, cost: int, badness: float) -> None:
        """Record the value of a run at a cost."""
        place = bisect_right(self.costs, cost)
        while place < len(self.min_value):
            if badness < self.min_value[place]:
                if run != self.whose[place]:
                    self.others[place], self.whose[place] = self.min_value[place], run
                self.min_value[place] = badness
            elif run != self.whose[place] and badness < self.others[place]:
                self.others[place] = badness
            place += place & -place

    def beats(self, run: str, cost: int, badness: float) -> bool:
        """Whether another run was better for as much, or as good for less."""
        place = bisect_right(self.costs, cost)
        min_value = self._of_others(run, place)
        return min_value < badness or (min_value == badness < math.inf and self._of_others(run, place - 1) == badness)

    def _of_others(self, run: str, place: int) -> float:
        min_value = math.inf
        while place > 0:
            min_value = min(min_value, self.others[place] if self.whose[place] == run else self.min_value[place])
            place -= place & -place
        return min_value
