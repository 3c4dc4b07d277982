"""The task that checks once per day whether sealed parts still have the bytes that were written.

Parquet has no checksums here, and most bits that a disk loses only change a number. Damage is reported in the log,
/readyz and /metrics, and repaired while the server is stopped (`pyrometer check DIR --repair`).
"""

from __future__ import annotations

import asyncio
import logging
import time

from pyrometer.account.checks.check_parts import is_damaged
from pyrometer.serve.core import Core
from pyrometer.serve.disk import DUCKDB_ERRORS
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import catalog
from pyrometer.store.catalog import Part

EVERY_S, RETRY_S = 24 * 3600.0, 60.0
REST_FACTOR = 9  # of the reading time, for which it then rests: a tenth of a core and of a disk

_log = logging.getLogger("pyrometer")


class Scrub:
    """Finds damaged parts of a server's store."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._damaged: dict[str, str] = {}  # what is wrong, by path

    async def run(self) -> None:
        """Reads every part once per day, until it is cancelled."""
        while True:
            try:
                await self.look()
                await asyncio.sleep(EVERY_S)
            except DUCKDB_ERRORS:  # reported by other tasks
                await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Reads every part once."""
        found: dict[str, str] = {}
        for part, digest in await self._parts():
            began_s = time.monotonic()
            try:
                if await asyncio.to_thread(is_damaged, self._core.store, part, digest):
                    found[part.path] = "is damaged: its bytes differ from those that were written"
            except OSError as error:
                found[part.path] = f"cannot be read: {error.strerror}"
            await asyncio.sleep(REST_FACTOR * (time.monotonic() - began_s))
        still = {part.path for part, _ in await self._parts()} if found else set()
        found = {path: how for path, how in found.items() if path in still}  # others were replaced in the meantime
        for path in found.keys() - self._damaged.keys():
            _log.error("%s %s. Stop the server and run `pyrometer check DIR --repair`.", path, found[path])
        self._damaged = found

    def shortcomings(self) -> list[str]:
        """The damaged parts, one sentence each."""
        return [
            f"{path} {how}. Stop the server and run `pyrometer check DIR --repair`."
            for path, how in sorted(self._damaged.items())
        ]

    async def _parts(self) -> list[tuple[Part, str | None]]:
        def read() -> list[tuple[Part, str | None]]:
            digests = catalog.digests(self._core.store.connection)
            return [(part, digests.get(part.path)) for part in self._core.store.parts()]

        async with self._core.lock:
            return await run_to_end(read)
