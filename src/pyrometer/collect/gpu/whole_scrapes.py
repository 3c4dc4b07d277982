"""Reassembles scrapes whose values arrive in pieces.

A remote write sender divides series among its shards and requests, so the values of one device and time may arrive
seconds apart. A row of the store has all values of a device at a time, and some are meaningful only together with
others (zero counters while the board draws power). So values wait until the rest of their scrape must have arrived.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

import numpy as np

from pyrometer.collect.gpu.device import SlotAddress
from pyrometer.collect.gpu.samples import LATEST_MS, Integers, Values

SETTLE_S = 15.0  # Prometheus sends a sample after at most 5 s, and retries after at most 5 s
VALUES_PER_BATCH = 500_000  # larger batches exceed CPU caches; smaller ones pay the cost per device more often


class _Scrape(NamedTuple):
    number: int  # in the order of their first pieces
    arrived_s: float


class _Piece(NamedTuple):
    values: Values
    scrape: Integers  # the scrape number of each value
    first: int  # the smallest scrape number
    last: int
    begun: int  # how many scrapes had begun after it arrived


class WholeScrapes:
    """Keeps the values of a host and time together. `arrived_s` and `before_s` are times of one monotonic clock."""

    def __init__(self) -> None:
        self.waiting = 0  # values
        self._scrapes: dict[tuple[str, int], _Scrape] = {}  # by host and time, in the order of their numbers
        self._pieces: list[_Piece] = []
        self._begun = 0
        self._hosts = _Hosts([])

    def add(self, values: Values, arrived_s: float) -> None:
        """Adds a piece. Values of one host and time are usually adjacent in it."""
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
        """Removes and returns the scrapes whose first piece arrived before `before_s`, in batches.

        Batches are in the order of arrival, and the values of each are in the order of time.
        """
        settled = list(takewhile(lambda one: one[1].arrived_s < before_s, self._scrapes.items()))
        if not settled:
            return []
        until = settled[-1][1].number + 1
        ends = self._batch_ends(until)
        batches: list[list[Values]] = [[] for _ in ends]
        kept = []
        for piece in self._pieces:
            first, last = np.searchsorted(ends, (piece.first, piece.last), side="right").tolist()
            if first == last < len(ends):
                batches[first].append(piece.values)
                continue
            batch_of = np.searchsorted(ends, piece.scrape, side="right")
            for batch in range(first, min(last + 1, len(ends))):
                batches[batch].append(piece.values.only(batch_of == batch))
            stays = batch_of == len(ends)
            if stays.any():
                left = piece.scrape[stays]
                kept.append(_Piece(piece.values.only(stays), left, int(left.min()), piece.last, piece.begun))
        for key, _ in settled:
            del self._scrapes[key]
        self._pieces = kept
        taken = [_in_order(Values.joined(batch)) for batch in batches if batch]
        self.waiting -= sum(map(len, taken))
        return taken

    def _batch_ends(self, until: int) -> list[int]:
        """The scrape numbers before which batches end."""
        ends, size = [], 0
        for piece in self._pieces:
            size += len(piece.values)
            if size >= VALUES_PER_BATCH and piece.begun < until:
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
    """Numbers the hosts of a list of addresses, which may grow."""

    def __init__(self, addresses: list[SlotAddress]) -> None:
        self.addresses = addresses
        self._number_of: dict[str, int] = {}
        self._numbers: Integers = np.empty(0, np.int64)

    def numbers(self) -> Integers:
        """The host number of each address."""
        new = self.addresses[len(self._numbers) :]
        if new:
            known = self._number_of
            more = [known.setdefault(address.hosts[0], len(known)) for address in new]
            self._numbers = np.concatenate([self._numbers, np.array(more, np.int64)])
        return self._numbers


def _in_order(values: Values) -> Values:
    times = values.time_ms
    return values if (times[1:] >= times[:-1]).all() else values.only(np.argsort(times, kind="stable"))
