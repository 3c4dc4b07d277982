"""Work on the store in another thread, to its end: who is cancelled meanwhile holds the lock until it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(work: Callable[P, T], /, *values: P.args, **named: P.kwargs) -> T:
    """As `asyncio.to_thread`, but a thread that works is never left alone: a store has one user at a time, and a
    question that is cancelled would go on using it while somebody else begins."""
    working = asyncio.create_task(asyncio.to_thread(work, *values, **named))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # nobody waits for it any more
        raise
