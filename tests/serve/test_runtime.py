"""Work on the store that nobody waits for any more: the lock is held until it is done."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pyrometer.serve.runtime import run_to_end


def test_who_is_cancelled_holds_the_lock_until_the_thread_is_done():
    began, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        began.set()
        assert may_end.wait(10)
        done.append("the question")

    async def ask(lock: asyncio.Lock) -> None:
        async with lock:
            await run_to_end(work)

    async def scene() -> None:
        lock = asyncio.Lock()
        asking = asyncio.create_task(ask(lock))
        await asyncio.to_thread(began.wait, 10)
        for _ in range(2):  # whoever is in a hurry cancels twice
            asking.cancel()
            await asyncio.sleep(0)
        assert lock.locked()
        may_end.set()
        async with lock:
            done.append("the last batch")
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(scene())
    assert done == ["the question", "the last batch"]


def test_what_goes_wrong_is_told():
    async def scene() -> int:
        assert await run_to_end(lambda a, b: a + b, 1, b=2) == 3
        return await run_to_end(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(scene())
