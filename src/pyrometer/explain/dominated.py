"""Since when a run was already beaten: at the time that it spent, another run had got as good for less."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple


class Reached(NamedTuple):
    """How bad a run still was at a moment, and what it had cost by then: of both, less is better."""

    time_ms: int
    cost: int
    badness: float


def beaten_since(runs: Mapping[str, Sequence[Reached]]) -> dict[str, int]:
    """For each run that was behind at its end: the place of the value from which on it was behind for good.

    It is behind with a value when another run had, no later, been as good for less, or better for as much: its best so
    far counts, and what the other one did afterwards does not. Values are in the order of time.
    """
    ladder = _Ladder(sorted({reached.cost for values in runs.values() for reached in values}))
    best = dict.fromkeys(runs, math.inf)
    since: dict[str, int] = {}
    told = (
        (reached.time_ms, run, place, reached) for run, values in runs.items() for place, reached in enumerate(values)
    )
    for _, together in groupby(sorted(told), key=itemgetter(0)):
        moment = list(together)  # what is reported at the same time is known to all
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
    """The least badness for no more than some cost, of all runs but one: a Fenwick tree over costs, whose rungs hold
    the least of one run, whose that is, and the least of any other."""

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs = costs
        self.least = [math.inf] * (len(costs) + 1)
        self.whose = [""] * (len(costs) + 1)
        self.others = [math.inf] * (len(costs) + 1)

    def put(self, run: str, cost: int, badness: float) -> None:
        """A run was this bad when it had cost so much."""
        place = bisect_right(self.costs, cost)
        while place < len(self.least):
            if badness < self.least[place]:
                if run != self.whose[place]:
                    self.others[place], self.whose[place] = self.least[place], run
                self.least[place] = badness
            elif run != self.whose[place] and badness < self.others[place]:
                self.others[place] = badness
            place += place & -place

    def beats(self, run: str, cost: int, badness: float) -> bool:
        """Whether another run was better for as much, or as good for less."""
        place = bisect_right(self.costs, cost)
        least = self._of_others(run, place)
        return least < badness or (least == badness < math.inf and self._of_others(run, place - 1) == badness)

    def _of_others(self, run: str, place: int) -> float:
        least = math.inf
        while place > 0:
            least = min(least, self.others[place] if self.whose[place] == run else self.least[place])
            place -= place & -place
        return least
