"""Python's collector of garbage in a server: it looks for circles, among millions of objects that are in none.

What comes in lives for a second, in a few hundred thousand objects, and half a million that stay are looked at again
whenever as many new ones have lived for a moment: at 80,000 GPUs that was a third of all CPU, and pauses of 0.15 s.
Nearly everything is freed without the collector, by counting who refers to it.
"""

from __future__ import annotations

import asyncio
import gc

YOUNG, MIDDLE, OLD = 50_000, 20, 100  # what a second brings is over before it is looked at
EVERY_S = 3600.0


async def collect_seldom() -> None:
    """Young objects are looked at seldom, and all of them once an hour. Does so for ever."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.collect()
    gc.freeze()  # modules and classes stay as long as the process does
    try:
        while True:
            await asyncio.sleep(EVERY_S)
            gc.collect()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
