"""A long time in pieces: each as long as one answer can hold, whatever the scrape interval and the number of series."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from pyrometer.collect.prometheus.api import Prometheus, Series, TooMuchError
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

FIRST_PIECE_MS = 10 * MS_PER_MINUTE
LONGEST_PIECE_MS = 6 * MS_PER_HOUR
SHORTEST_PIECE_MS = 15_000
SAMPLES = 3_000_000  # that one answer should have: some 100 MB


class RangeChunk(NamedTuple):
    """The samples of a while."""

    series: list[Series]
    from_ms: int
    to_ms: int


async def in_pieces(api: Prometheus, selector: str, from_ms: int, to_ms: int) -> AsyncIterator[RangeChunk]:
    """The raw samples of a time, piece by piece; a piece that is too much is asked for in halves."""
    length_ms, start_ms = FIRST_PIECE_MS, from_ms
    while start_ms < to_ms:
        end_ms = min(start_ms + length_ms, to_ms)
        try:
            series = await api.raw(selector, start_ms, end_ms)
        except TooMuchError:
            if length_ms <= SHORTEST_PIECE_MS:
                raise
            length_ms = max(length_ms // 2, SHORTEST_PIECE_MS)
            continue
        found = [one for one in series if len(one.times_ms)]
        yield RangeChunk(found, start_ms, end_ms)
        samples = sum(len(one.times_ms) for one in found)
        length_ms = min(max(length_ms * SAMPLES // max(samples, 1), SHORTEST_PIECE_MS), 4 * length_ms, LONGEST_PIECE_MS)
        start_ms = end_ms
