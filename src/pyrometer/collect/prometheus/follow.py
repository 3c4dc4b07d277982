"""Follows a Prometheus that already scrapes GPU exporters, by regularly reading its new samples."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pyrometer.collect.gpu.dcgm import NAMES, Dcgm, measure_of, slot_address_of
from pyrometer.collect.gpu.device import DeviceUse, SlotAddress
from pyrometer.collect.prometheus.api import Prometheus, Series
from pyrometer.collect.prometheus.chunks import read_chunks
from pyrometer.collect.source import Delivery, SourceError

GPU_METRICS = f'{{__name__=~"{"|".join(NAMES)}"}}'
POLL_S = 30.0
BEHIND_MS = 15_000  # recent samples may not be readable yet
MAX_LABEL_SETS = 1_000_000  # cached

_log = logging.getLogger("pyrometer")


class SlotAddresses:
    """The slot addresses of label sets, each interpreted once."""

    def __init__(self) -> None:
        self._known: dict[frozenset[tuple[str, str]], SlotAddress | None] = {}

    def measured(self, found: list[Series]) -> Iterator[tuple[int, SlotAddress, Any, Any]]:
        """Yields the GPU series in the form that `Dcgm` takes."""
        if len(self._known) > MAX_LABEL_SETS:
            self._known.clear()
        for series in found:
            measure = measure_of(series.labels.pop("__name__", ""))
            key = frozenset(series.labels.items())
            if key not in self._known:
                self._known[key] = slot_address_of(series.labels)
            address = self._known[key]
            if measure is not None and address is not None:
                yield measure, address, series.times_ms, series.values


class PrometheusPoller:
    """Reads samples from `since_ms` on. Deliveries state the time range that they cover, so nothing is read twice."""

    def __init__(self, api: Prometheus, dcgm: Dcgm, since_ms: int, *, every_s: float = POLL_S) -> None:
        self.api = api
        self.trouble: str | None = None
        self._dcgm = dcgm
        self._since_ms = since_ms
        self._every_s = every_s
        self._addresses = SlotAddresses()
        self._uses: dict[DeviceUse, tuple[int, int]] = {}

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Yields samples. If Prometheus does not answer, they are requested later."""
        while True:
            try:
                async for delivery in self._new_samples():
                    yield delivery
                self.trouble = None
            except SourceError as error:
                if self.trouble is None:
                    _log.warning("%s", error)
                self.trouble = str(error)
            await asyncio.sleep(self._every_s)

    def uses(self) -> set[DeviceUse]:
        """The users of devices in the last chunk."""
        return set(self._uses)

    def shortcomings(self) -> list[str]:
        """Why no samples arrive, if so."""
        return [self.trouble] if self.trouble else []

    async def _new_samples(self) -> AsyncIterator[Delivery]:
        to_ms = time.time_ns() // 1_000_000 - BEHIND_MS
        if to_ms <= self._since_ms:
            return
        async for chunk in read_chunks(self.api, GPU_METRICS, self._since_ms, to_ms):
            taken = self._dcgm.take_series(list(self._addresses.measured(chunk.series)))
            self._uses = taken.uses
            yield Delivery(taken.records, covers=(chunk.from_ms, chunk.to_ms))
            self._since_ms = chunk.to_ms
