"""Looks once a day whether sealed parts are still as they were written: Parquet has no checksums here, and most bits
that a disk loses change a number and nothing else. What is damaged is said in the log, /readyz and /metrics; it is
mended while the server is stopped (`pyrometer check DIR --repair`)."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from pyrometer.account.check_parts import is_damaged
from pyrometer.serve.disk import OF_DUCKDB
from pyrometer.serve.threads import to_its_end
from pyrometer.store import catalog
from pyrometer.store.catalog import Part

if TYPE_CHECKING:
    from pyrometer.serve.app import Server

EVERY_S, AGAIN_S = 24 * 3600.0, 60.0
REST = 9  # times as long as reading a file took: a tenth of a core, and of a disk

_log = logging.getLogger("pyrometer")


class Scrub:
    """The parts of a server's store that are not what they were."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._damaged: dict[str, str] = {}  # by path: how

    async def run(self) -> None:
        """Reads every part, again and again."""
        while True:
            try:
                await self.look()
                await asyncio.sleep(EVERY_S)
            except OF_DUCKDB:  # others say so
                await asyncio.sleep(AGAIN_S)

    async def look(self) -> None:
        """Reads every part once."""
        found: dict[str, str] = {}
        for part, digest in await self._listed():
            began_s = time.monotonic()
            try:
                if await asyncio.to_thread(is_damaged, self._server.store, part, digest):
                    found[part.path] = "is damaged: its bytes are not those that were written"
            except OSError as error:
                found[part.path] = f"cannot be read: {error.strerror}"
            await asyncio.sleep(REST * (time.monotonic() - began_s))
        still = {part.path for part, _ in await self._listed()} if found else set()
        found = {path: how for path, how in found.items() if path in still}  # others were replaced meanwhile
        for path in found.keys() - self._damaged.keys():
            _log.error("%s %s. Stop the server and run `pyrometer check DIR --repair`.", path, found[path])
        self._damaged = found

    def shortcomings(self) -> list[str]:
        """What is damaged, one sentence each."""
        return [
            f"{path} {how}: `pyrometer check DIR --repair` mends it." for path, how in sorted(self._damaged.items())
        ]

    async def _listed(self) -> list[tuple[Part, str | None]]:
        def read() -> list[tuple[Part, str | None]]:
            digests = catalog.digests(self._server.store.connection)
            return [(part, digests.get(part.path)) for part in self._server.store.parts()]

        async with self._server.lock:
            return await to_its_end(read)
