"""Circles of objects are found once in a while, and the collector is handed back as it was."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from pyrometer.serve import runtime


class Circle:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_circles_are_found_and_the_collector_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "COLLECT_EVERY_S", 0.01)
    before = gc.get_threshold()

    async def lives() -> None:
        collecting = asyncio.create_task(runtime.collect_rarely())
        await asyncio.sleep(0)
        assert gc.get_threshold() == (runtime.YOUNG, runtime.MIDDLE, runtime.OLD)
        found = asyncio.Event()
        weakref.finalize(Circle(), found.set)
        await asyncio.wait_for(found.wait(), 10)
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting

    asyncio.run(lives())
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
