"""Values of one scrape that come in pieces, put together again.

A sender of remote write divides series among its shards and cuts them into requests, so that half of what a device
showed at a time comes now and the rest some seconds later. A row of the store is all that a device showed at a time,
and some of that means something only beside the rest: counters that stand still while the board draws power. So values
wait until the rest of them must have come.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

import numpy as np

from pyrometer.collect.gpu.device import SlotAddress
from pyrometer.collect.gpu.samples import LATEST_MS, Integers, Values

SETTLE_S = 15.0  # Prometheus keeps a sample for 5 s at most before it sends it, and tries again after 5 s at most
VALUES_OF_A_BATCH = 500_000  # about: of more, nothing fits the caches of a processor; of fewer, devices weigh more


class _Scrape(NamedTuple):
    number: int  # they are numbered as they begin
    arrived_s: float


class _Piece(NamedTuple):
    values: Values
    scrape: Integers  # the number of each value's
    least: int
    most: int
    begun: int  # how many scrapes had begun when it was there


class WholeScrapes:
    """Keeps the values of a host and time together. `arrived_s` and `before_s` are of one clock, the caller's, which
    never goes back."""

    def __init__(self) -> None:
        self.waiting = 0  # values
        self._scrapes: dict[tuple[str, int], _Scrape] = {}  # by host and time, in the order of their numbers
        self._pieces: list[_Piece] = []
        self._begun = 0
        self._hosts = _Hosts([])

    def add(self, values: Values, arrived_s: float) -> None:
        """Takes a piece. What is of one host and time is mostly side by side in it."""
        if not len(values):
            return
        if self._hosts.addresses is not values.addresses:
            self._hosts = _Hosts(values.addresses)
        key = self._hosts.numbers()[values.address] * LATEST_MS + values.time_ms
        begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        hosts = (values.addresses[address].hosts[0] for address in values.address[begins].tolist())
        found = [
            self._number(host, time_ms, arrived_s)
            for host, time_ms in zip(hosts, values.time_ms[begins].tolist(), strict=True)
        ]
        scrape = np.repeat(np.array(found, np.int64), np.diff(np.r_[begins, len(key)]))
        self._pieces.append(_Piece(values, scrape, min(found), max(found), self._begun))
        self.waiting += len(values)

    def take(self, before_s: float) -> list[Values]:
        """Hands out the scrapes whose first piece came before, in batches: the first that came first, each in the order
        of its times."""
        settled = list(takewhile(lambda one: one[1].arrived_s < before_s, self._scrapes.items()))
        if not settled:
            return []
        until = settled[-1][1].number + 1
        ends = self._batch_ends(until)
        batches: list[list[Values]] = [[] for _ in ends]
        kept = []
        for piece in self._pieces:
            first, last = np.searchsorted(ends, (piece.least, piece.most), side="right").tolist()
            if first == last < len(ends):
                batches[first].append(piece.values)
                continue
            batch_of = np.searchsorted(ends, piece.scrape, side="right")
            for batch in range(first, min(last + 1, len(ends))):
                batches[batch].append(piece.values.only(batch_of == batch))
            stays = batch_of == len(ends)
            if stays.any():
                left = piece.scrape[stays]
                kept.append(_Piece(piece.values.only(stays), left, int(left.min()), piece.most, piece.begun))
        for key, _ in settled:
            del self._scrapes[key]
        self._pieces = kept
        taken = [_in_order(Values.joined(batch)) for batch in batches if batch]
        self.waiting -= sum(map(len, taken))
        return taken

    def _batch_ends(self, until: int) -> list[int]:
        """Where batches end: before which scrape."""
        ends, size = [], 0
        for piece in self._pieces:
            size += len(piece.values)
            if size >= VALUES_OF_A_BATCH and piece.begun < until:
                ends.append(piece.begun)
                size = 0
        return [*dict.fromkeys(ends), until]

    def _number(self, host: str, time_ms: int, arrived_s: float) -> int:
        scrape = self._scrapes.get((host, time_ms))
        if scrape is None:
            scrape = self._scrapes[host, time_ms] = _Scrape(self._begun, arrived_s)
            self._begun += 1
        return scrape.number


class _Hosts:
    """The hosts of a list of addresses, numbered. The list may grow."""

    def __init__(self, addresses: list[SlotAddress]) -> None:
        self.addresses = addresses
        self._number_of: dict[str, int] = {}
        self._numbers: Integers = np.empty(0, np.int64)

    def numbers(self) -> Integers:
        """The number of each address's host."""
        new = self.addresses[len(self._numbers) :]
        if new:
            known = self._number_of
            more = [known.setdefault(address.hosts[0], len(known)) for address in new]
            self._numbers = np.concatenate([self._numbers, np.array(more, np.int64)])
        return self._numbers


def _in_order(values: Values) -> Values:
    times = values.time_ms
    return values if (times[1:] >= times[:-1]).all() else values.only(np.argsort(times, kind="stable"))
