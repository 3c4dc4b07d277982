"""Days in seconds: a server holds on to nothing that grows. `benchmarks/soak.py` is two months."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.support.soak_days import simulate_days, slope


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc: runs on Linux")
def test_simulated_days_do_not_leak(tmp_path):
    async def live():
        return [
            held async for held in simulate_days(tmp_path / "data", 4, every_minutes=60, kept_days=1, books_every_h=8)
        ]

    held = asyncio.run(live())
    settled = held[1:]
    for name in ("descriptors", "temporary_tables"):
        assert len({getattr(one, name) for one in settled}) == 1, held
    assert slope([one.threads for one in settled]) < 1, held  # a pool starts its threads when it needs them
    assert settled[-1].files <= settled[0].files + 2 * 24, held  # objects of a day stay, measurements go
    assert slope([one.rss_kib for one in settled]) < 20_000, held  # an allocator breathes; a leak of rows would be more
