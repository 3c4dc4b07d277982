"""Which pauses of a source are gaps, and which are explained by its usual loss of samples.

Every source loses an observation now and then. Two losses in a row are rarer, three rarer still. The usual interval of
a source and its share of lost observations around a pause determine how many losses in a row chance explains. A pause
is a gap if chance would show such a pause in fewer than three of a thousand answers, and if it is several intervals and
several minutes long. A source that reports rarely has long pauses, which are not gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyrometer.model.units import MS_PER_MINUTE

Times = npt.NDArray[np.int64]

MIN_GAP_MS = 5 * MS_PER_MINUTE  # an exporter that restarts, a scrape or two that fail
MIN_INTERVALS = 5
MIN_OBSERVATIONS = 3  # fewer do not establish an interval
NEIGHBORS = 100  # observations on each side of a pause that say what is usual
CHANCE = 0.003  # expected number of such pauses by chance, in everything that an answer reads
SAME_CHANCE = 0.001  # of that many losses in a row at a given time: two pauses that differ by more are different


class Pause(NamedTuple):
    """A time without reports of a source, longer than usual."""

    last_ms: int  # the last observation before it
    next_ms: int | None  # the first after it; None: no later one
    usual_ms: int
    detectable_ms: int  # after this, chance no longer explains it
    max_gap_ms: int  # a pause that begins or ends further away than this is a different one
    is_gap: bool


class Observations:
    """The observations of a source: the interval that each covers, in order of time."""

    def __init__(self, from_ms: Times, to_ms: Times | None = None) -> None:
        self.from_ms = from_ms
        self.to_ms = from_ms if to_ms is None else np.maximum.accumulate(to_ms)
        # From one observation to the next; one that speaks for some time is due that much later.
        speaks_ms = np.int64(np.median(self.to_ms - from_ms)) if len(from_ms) else np.int64(0)
        self.max_gap_ms: Times = self.from_ms[1:] - self.to_ms[:-1] + speaks_ms

    def near(self, at_ms: int, most: int = NEIGHBORS) -> tuple[Times, Times]:
        """The intervals before and after the one that begins at a time."""
        place = int(np.searchsorted(self.to_ms, at_ms, "right")) - 1
        return self.max_gap_ms[max(0, place - most) : max(0, place)], self.max_gap_ms[place + 1 :][:most]

    def usual_ms(self, at_ms: int) -> float | None:
        """The usual interval around a time: the longer one where it changed. None: there is none yet."""
        before, after = self.near(at_ms)
        if len(before) < MIN_OBSERVATIONS - 1:
            return None
        return max([1.0, *(float(np.median(side)) for side in (before, after) if len(side) >= MIN_OBSERVATIONS - 1)])

    def losses(self, at_ms: int, usual_ms: float, shorter_than: int, most: int) -> tuple[int, int]:
        """How many observations were lost around a time, of how many, in pauses with fewer losses than this."""
        due = np.rint(np.concatenate(self.near(at_ms, most)) / usual_ms)
        due = due[due <= shorter_than]
        return int(np.maximum(due - 1, 0).sum()), int(np.maximum(due, 1).sum())


def pauses(
    seen: Observations,
    until_ms: int,
    chances: int,
    *,
    peers: Sequence[Observations] = (),
    most: int = NEIGHBORS,
    usual_ms: Callable[[int], float | None] | None = None,
) -> list[Pause]:
    """The pauses of a source up to a time that are long enough for a gap, when `chances` observations are looked at.

    Peers say how much is lost as well, unless this source clearly loses more than they do.
    """
    found = []
    for place in (*np.flatnonzero(seen.max_gap_ms >= MIN_GAP_MS), len(seen.to_ms) - 1):
        last_ms = int(seen.to_ms[place])
        is_open = place == len(seen.to_ms) - 1
        length_ms = until_ms - last_ms if is_open else int(seen.max_gap_ms[place])
        usual = (usual_ms or seen.usual_ms)(last_ms)
        if usual is None or length_ms < MIN_GAP_MS:
            continue
        lost = round(length_ms / usual) - 1
        own = seen.losses(last_ms, usual, lost, most)
        share = _share([own], [peer.losses(last_ms, usual, lost, most) for peer in peers])
        needed = math.log(CHANCE / max(chances, 1)) / math.log(share)
        needed_ms = round(max(MIN_GAP_MS, MIN_INTERVALS * usual, (math.ceil(needed) + 0.5) * usual))
        max_gap_ms = round(max(1, math.ceil(math.log(SAME_CHANCE) / math.log(share))) * usual)
        next_ms = None if is_open else int(seen.from_ms[place + 1])
        found.append(
            Pause(last_ms, next_ms, round(usual), last_ms + needed_ms, max_gap_ms, is_gap=length_ms >= needed_ms)
        )
    return found


def _share(own: Sequence[tuple[int, int]], peers: Sequence[tuple[int, int]]) -> float:
    """The share of observations that is lost. Zero losses only mean that there were too few observations to see one."""
    share, due = _of(own), sum(due for _, due in own)
    everywhere = _of([*own, *peers])
    return share if share > everywhere + 2 * math.sqrt(everywhere * (1 - everywhere) / max(due, 1)) else everywhere


def _of(losses: Sequence[tuple[int, int]]) -> float:
    return min((sum(lost for lost, _ in losses) + 1) / (sum(due for _, due in losses) + 2), 0.99)
