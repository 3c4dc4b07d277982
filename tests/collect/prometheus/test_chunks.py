"""Time ranges in chunks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pyrometer.collect.prometheus.api import QueryTooLargeError, Series
from pyrometer.collect.prometheus.chunks import FIRST_CHUNK_MS, MAX_CHUNK_MS, MIN_CHUNK_MS, read_chunks
from pyrometer.model.units import MS_PER_DAY


class LimitedPrometheus:
    """Returns one sample per series and rejects ranges longer than a limit."""

    def __init__(self, limit_ms):
        self.limit_ms = limit_ms

    async def raw(self, selector, from_ms, to_ms):
        if to_ms - from_ms > self.limit_ms:
            raise QueryTooLargeError("too many samples")
        return [Series({}, np.array([to_ms]), np.array([1.0])), Series({}, np.array([], int), np.array([]))]


async def ranges(limit_ms, to_ms):
    return [
        (chunk.from_ms, chunk.to_ms, len(chunk.series))
        async for chunk in read_chunks(LimitedPrometheus(limit_ms), "up", 0, to_ms)
    ]


def test_read_chunks_covers_range_with_growing_chunks():
    found = asyncio.run(ranges(MS_PER_DAY, MS_PER_DAY))
    assert found[0] == (0, FIRST_CHUNK_MS, 1)  # without the empty series
    assert [begin for begin, _, _ in found[1:]] == [end for _, end, _ in found[:-1]]
    assert found[-1][1] == MS_PER_DAY
    assert max(end - begin for begin, end, _ in found) == MAX_CHUNK_MS


def test_read_chunks_halves_chunk_that_is_too_large():
    found = asyncio.run(ranges(FIRST_CHUNK_MS // 3, FIRST_CHUNK_MS))
    assert max(end - begin for begin, end, _ in found) <= FIRST_CHUNK_MS // 3
    assert found[-1][1] == FIRST_CHUNK_MS


def test_read_chunks_raises_if_smallest_chunk_is_too_large():
    with pytest.raises(QueryTooLargeError):
        asyncio.run(ranges(MIN_CHUNK_MS - 1, FIRST_CHUNK_MS))
