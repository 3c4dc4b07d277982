"""What was acknowledged is stored now and then, as long as a server runs; and once more at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

_log = logging.getLogger("pyrometer")


@asynccontextmanager
async def storing(store: Callable[[bool], Awaitable[None]], every_s: float, who: str) -> AsyncIterator[None]:
    """Calls `store` every so many seconds, and with True at the end: then all of it. The log says what `who` did."""
    stopped = asyncio.Event()

    async def keep() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stopped.wait()
            last = stopped.is_set()
            try:
                await store(last)
            except Exception:
                _log.exception("What %s could not be stored; it is kept, and tried again", who)
            if last:
                return

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        stopped.set()
        await task
