"""Values of one scrape that come in pieces, put together again.

A sender of remote write divides series among its shards and cuts them into requests, so that half of what a device
showed at a time comes now and the rest some seconds later. A row of the store is all that a device showed at a time,
and some of that means something only beside the rest: counters that stand still while the board draws power. So values
wait until the rest of them must have come.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyrometer.collect.dcgm import LATEST_MS
from pyrometer.collect.values import Integers, Sample, Values

__all__ = ["SETTLE_S", "Sample", "WholeScrapes"]

SETTLE_S = 15.0  # Prometheus keeps a sample for 5 s at most before it sends it, and tries again after 5 s at most


class _Scrape(NamedTuple):
    number: int
    arrived_s: float


class _Piece(NamedTuple):
    values: Values
    scrape: Integers  # the number of each value's


class WholeScrapes:
    """Keeps the values of a host and time together. `arrived_s` and `before_s` are of one clock, the caller's."""

    def __init__(self) -> None:
        self.waiting = 0  # values
        self._scrapes: dict[tuple[str, int], _Scrape] = {}  # by host and time
        self._pieces: list[_Piece] = []
        self._count = 0  # of scrapes that were ever begun: the next one's number

    def add(self, values: Values, arrived_s: float) -> None:
        """Takes a piece."""
        seen, which = np.unique(values.place * LATEST_MS + values.time_ms, return_inverse=True)
        places, times = seen // LATEST_MS, seen % LATEST_MS
        numbers = [
            self._number(values.places[place].hosts[0], time_ms, arrived_s)
            for place, time_ms in zip(places.tolist(), times.tolist(), strict=True)
        ]
        self._pieces.append(_Piece(values, np.array(numbers, np.int64)[which]))
        self.waiting += len(values)

    def take(self, before_s: float) -> Values:
        """Hands out, in the order of their times, the scrapes whose first piece came before."""
        settled = {key: scrape.number for key, scrape in self._scrapes.items() if scrape.arrived_s < before_s}
        if not settled:
            return Values.of([])
        first = min(scrape.number for scrape in self._scrapes.values())
        leaves = np.zeros(self._count - first, bool)
        leaves[np.array(list(settled.values())) - first] = True
        taken, kept = [], []
        for values, scrape in self._pieces:
            mine = leaves[scrape - first]
            taken.append(values.only(mine))
            if not mine.all():
                kept.append(_Piece(values.only(~mine), scrape[~mine]))
        for key in settled:
            del self._scrapes[key]
        self._pieces = kept
        whole = Values.joined(taken)
        self.waiting -= len(whole)
        return whole.only(np.argsort(whole.time_ms, kind="stable"))

    def _number(self, host: str, time_ms: int, arrived_s: float) -> int:
        scrape = self._scrapes.get((host, time_ms))
        if scrape is None:
            scrape = self._scrapes[host, time_ms] = _Scrape(self._count, arrived_s)
            self._count += 1
        return scrape.number
