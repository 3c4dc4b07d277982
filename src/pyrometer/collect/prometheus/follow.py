"""A Prometheus that scrapes GPU exporters already, followed: every so often, what it has scraped since."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pyrometer.collect.gpu.dcgm import NAMES, Dcgm, measure_of, slot_address_of
from pyrometer.collect.gpu.device import DeviceUse, SlotAddress
from pyrometer.collect.prometheus.api import Prometheus, Series
from pyrometer.collect.prometheus.chunks import in_pieces
from pyrometer.collect.source import Delivery, SourceError

GPU_METRICS = f'{{__name__=~"{"|".join(NAMES)}"}}'
EVERY_S = 30.0
BEHIND_MS = 15_000  # what was scraped just now may not be readable yet
MOST_PLACES = 1_000_000  # label sets that are remembered

_log = logging.getLogger("pyrometer")


class Places:
    """What label sets are about, each made sense of once."""

    def __init__(self) -> None:
        self._known: dict[frozenset[tuple[str, str]], SlotAddress | None] = {}

    def measured(self, found: list[Series]) -> Iterator[tuple[int, SlotAddress, Any, Any]]:
        """The series that are of use, as `Dcgm` takes them."""
        if len(self._known) > MOST_PLACES:
            self._known.clear()
        for series in found:
            measure = measure_of(series.labels.pop("__name__", ""))
            key = frozenset(series.labels.items())
            if key not in self._known:
                self._known[key] = slot_address_of(series.labels)
            place = self._known[key]
            if measure is not None and place is not None:
                yield measure, place, series.times_ms, series.values


class Following:
    """Samples since `since_ms`, and on. Each delivery says which time it covers, so that nothing is read twice."""

    def __init__(self, api: Prometheus, dcgm: Dcgm, since_ms: int, *, every_s: float = EVERY_S) -> None:
        self.api = api
        self.trouble: str | None = None
        self._dcgm = dcgm
        self._since_ms = since_ms
        self._every_s = every_s
        self._places = Places()
        self._uses: dict[DeviceUse, tuple[int, int]] = {}

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """As it is scraped. A Prometheus that does not answer is asked again: it remembers."""
        while True:
            try:
                async for delivery in self._since():
                    yield delivery
                self.trouble = None
            except SourceError as error:
                if self.trouble is None:
                    _log.warning("%s", error)
                self.trouble = str(error)
            await asyncio.sleep(self._every_s)

    def uses(self) -> set[DeviceUse]:
        """Who used which device, by what was read last."""
        return set(self._uses)

    def shortcomings(self) -> list[str]:
        """Why nothing comes, if nothing does."""
        return [self.trouble] if self.trouble else []

    async def _since(self) -> AsyncIterator[Delivery]:
        to_ms = time.time_ns() // 1_000_000 - BEHIND_MS
        if to_ms <= self._since_ms:
            return
        async for piece in in_pieces(self.api, GPU_METRICS, self._since_ms, to_ms):
            taken = self._dcgm.take_series(list(self._places.measured(piece.series)))
            self._uses = taken.uses
            yield Delivery(taken.records, covers=(piece.from_ms, piece.to_ms))
            self._since_ms = piece.to_ms
