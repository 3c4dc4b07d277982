"""The runtime of a server: threads that use the store, tasks that are started again, garbage collection."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from pyrometer.serve.disk import DISK_ERRORS, DUCKDB_ERRORS, UNSTORED, Disk

RESTART_S = 5.0
REST_FACTOR = 10  # of the time that a task worked, for which it then rests

# Most objects of a server live for a second, a few hundred thousand at a time. With Python's thresholds the half
# million that stay would be searched for cycles again and again: at 80,000 GPUs a third of all CPU, and pauses of
# 0.15 s. Reference counting alone frees nearly everything.
YOUNG, MIDDLE, OLD = 50_000, 20, 100
COLLECT_EVERY_S = 3600.0

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("pyrometer")


async def run_to_end(work: Callable[P, T], /, *values: P.args, **named: P.kwargs) -> T:
    """Like `asyncio.to_thread`, but a cancelled caller waits until the thread has ended. A store has one user at a
    time: the caller must hold its lock until the thread no longer uses it."""
    working = asyncio.create_task(asyncio.to_thread(work, *values, **named))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # marks it as retrieved: the caller is cancelled
        raise


async def restart_on_error(run: Callable[[], Awaitable[None]], disk: Disk) -> None:
    """Runs something forever. After an error it is logged and started again."""
    while True:
        try:
            await run()
        except asyncio.CancelledError:
            raise
        except DUCKDB_ERRORS as error:
            disk.failed(UNSTORED, error)
            await asyncio.sleep(RESTART_S)
        except Exception:
            _log.exception("A task stopped. It starts again in %s s", RESTART_S)
            await asyncio.sleep(RESTART_S)


async def repeat(min_pause_s: float, work: Callable[[], Awaitable[None]], trouble: str, disk: Disk) -> None:
    """Repeats something forever. The pause in between grows with the time that the work takes."""
    while True:
        began_s = time.monotonic()
        try:
            await work()
            disk.worked(trouble)
        except DISK_ERRORS as error:
            disk.failed(trouble, error)
        except Exception:
            _log.exception("%s. Trying again", trouble)
        await asyncio.sleep(max(min_pause_s, REST_FACTOR * (time.monotonic() - began_s)))


async def collect_rarely() -> None:
    """Makes Python look for reference cycles rarely, and everywhere once per hour. Runs until it is cancelled."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.collect()
    gc.freeze()  # modules and classes stay for the life of the process
    try:
        while True:
            await asyncio.sleep(COLLECT_EVERY_S)
            gc.collect()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
