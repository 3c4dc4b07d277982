"""Values of one scrape that come in pieces, put together again.

A sender of remote write divides series among its shards and cuts them into requests, so that half of what a device
showed at a time comes now and the rest some seconds later. A row of the store is all that a device showed at a time,
and some of that means something only beside the rest: counters that stand still while the board draws power. So values
wait until the rest of them must have come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.collect.dcgm import Place

SETTLE_S = 15.0  # Prometheus keeps a sample for 5 s at most before it sends it, and tries again after 5 s at most

Sample = tuple[int, Place, float, int]  # measure, place, value, time in ms


class _Scrape(NamedTuple):
    arrived_s: float
    samples: list[Sample]


class WholeScrapes:
    """Keeps the values of a host and time together. `arrived_s` and `before_s` are of one clock, the caller's."""

    def __init__(self) -> None:
        self.waiting = 0  # values
        self._scrapes: dict[tuple[str, int], _Scrape] = {}

    def add(self, samples: Iterable[Sample], arrived_s: float) -> None:
        """Takes a piece."""
        for sample in samples:
            _, place, _, time_ms = sample
            key = place.hosts[0], time_ms
            scrape = self._scrapes.get(key)
            if scrape is None:
                scrape = self._scrapes[key] = _Scrape(arrived_s, [])
            scrape.samples.append(sample)
            self.waiting += 1

    def take(self, before_s: float) -> list[Sample]:
        """Hands out, in the order of their times, the scrapes whose first piece came before."""
        settled = [key for key, scrape in self._scrapes.items() if scrape.arrived_s < before_s]
        scrapes = [self._scrapes.pop(key) for key in sorted(settled, key=lambda key: key[1])]
        samples = [sample for scrape in scrapes for sample in scrape.samples]
        self.waiting -= len(samples)
        return samples
