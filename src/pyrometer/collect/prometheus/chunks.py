"""Reads a long time range in chunks whose length adapts to the number of samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from pyrometer.collect.prometheus.api import Prometheus, QueryTooLargeError, Series
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

FIRST_CHUNK_MS = 10 * MS_PER_MINUTE
MAX_CHUNK_MS = 6 * MS_PER_HOUR
MIN_CHUNK_MS = 15_000
TARGET_SAMPLES = 3_000_000  # per response, about 100 MB


class RangeChunk(NamedTuple):
    """The samples of a time range."""

    series: list[Series]
    from_ms: int
    to_ms: int


async def read_chunks(api: Prometheus, selector: str, from_ms: int, to_ms: int) -> AsyncIterator[RangeChunk]:
    """Yields the raw samples of a time range. A chunk that exceeds a limit is requested again with half the length."""
    length_ms, start_ms = FIRST_CHUNK_MS, from_ms
    while start_ms < to_ms:
        end_ms = min(start_ms + length_ms, to_ms)
        try:
            series = await api.raw(selector, start_ms, end_ms)
        except QueryTooLargeError:
            if length_ms <= MIN_CHUNK_MS:
                raise
            length_ms = max(length_ms // 2, MIN_CHUNK_MS)
            continue
        found = [one for one in series if len(one.times_ms)]
        yield RangeChunk(found, start_ms, end_ms)
        samples = sum(len(one.times_ms) for one in found)
        length_ms = min(max(length_ms * TARGET_SAMPLES // max(samples, 1), MIN_CHUNK_MS), 4 * length_ms, MAX_CHUNK_MS)
        start_ms = end_ms
