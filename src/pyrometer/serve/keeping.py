"""What was acknowledged is stored now and then, as long as a server runs; and once more at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pyrometer.store import Store, StoreError

MOST_FAILURES = 1_000  # of one batch: one bad record among a million costs twenty

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


def append_what_fits(store: Store, records: Sequence[tuple[Any, ...]]) -> None:
    """Stores records. Of a batch that is refused its halves are tried, and theirs: what would be refused for ever costs
    none of its neighbours, which came from others. What is left out is said once."""
    pieces, refused = [records], ""
    failures = count = 0
    while pieces:
        piece = pieces.pop()
        try:
            store.append(piece)
        except StoreError as error:
            refused, failures = str(error), failures + 1
            if len(piece) > 1 and failures < MOST_FAILURES:
                pieces += [piece[len(piece) // 2 :], piece[: len(piece) // 2]]
            else:
                count += len(piece)
    if count:
        _log.error("%d of %d records are left out: %s", count, len(records), refused)
