"""Threads, repeated tasks and garbage collection of a server."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import pytest

from pyrometer.serve import runtime
from pyrometer.serve.runtime import run_to_end


def test_run_to_end_holds_the_lock_until_the_thread_ends():
    began, can_end = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        began.set()
        assert can_end.wait(10)
        done.append("the question")

    async def ask(lock: asyncio.Lock) -> None:
        async with lock:
            await run_to_end(work)

    async def run() -> None:
        lock = asyncio.Lock()
        asking = asyncio.create_task(ask(lock))
        await asyncio.to_thread(began.wait, 10)
        for _ in range(2):  # cancelled twice
            asking.cancel()
            await asyncio.sleep(0)
        assert lock.locked()
        can_end.set()
        async with lock:
            done.append("the last batch")
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    assert done == ["the question", "the last batch"]


def test_run_to_end_raises_errors_of_the_thread():
    async def run() -> int:
        assert await run_to_end(lambda a, b: a + b, 1, b=2) == 3
        return await run_to_end(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(run())


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_collect_rarely_frees_cycles_and_restores_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "COLLECT_EVERY_S", 0.01)
    before = gc.get_threshold()

    async def run() -> None:
        collecting = asyncio.create_task(runtime.collect_rarely())
        await asyncio.sleep(0)
        assert gc.get_threshold() == (runtime.YOUNG, runtime.MIDDLE, runtime.OLD)
        found = asyncio.Event()
        weakref.finalize(Cycle(), found.set)
        await asyncio.wait_for(found.wait(), 10)
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting

    asyncio.run(run())
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
