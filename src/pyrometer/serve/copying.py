"""Copies what a server has sealed into a lake, now and then. Nothing waits for it: one that is away is tried again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from pyrometer.account.lake_manifest import ensure_lake_source, manifest_header
from pyrometer.account.ledger import LedgerCoverage
from pyrometer.serve.threads import to_its_end
from pyrometer.store import Snapshot
from pyrometer.store.lake import LakeError, LakeStorage
from pyrometer.store.lake.copying import CopyResult, LakeCopier

if TYPE_CHECKING:
    from pyrometer.serve.app import Server

EVERY_S = 300.0
_log = logging.getLogger("pyrometer")


class Copying:
    """A server's side of a lake."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._copier = LakeCopier(LakeStorage(server.settings.lake)) if server.settings.lake else None
        self.trouble: str | None = None
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        self.copied_at_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is a lake."""
        return self._copier is not None

    @property
    def place(self) -> str:
        """Where it lies."""
        return "" if self._copier is None else self._copier.storage.url

    async def copy(self) -> None:
        """Brings the lake up to date. What goes wrong is said once, and again when it is something else."""
        if self._copier is None:
            return
        async with self._server.lock:
            taken = await to_its_end(self._take)
        if taken is None:
            return
        try:
            copied = await asyncio.to_thread(self._copy, *taken)
        except asyncio.CancelledError:
            self._copier.stop()  # the thread goes on, to the end of the file that it is at
            raise
        except (LakeError, OSError) as error:
            self._failed(str(error))
        else:
            self._succeeded(copied)

    def _take(self) -> tuple[Snapshot, LedgerCoverage] | None:
        """The store as it is, with its ledger up to date. The caller has the lock."""
        covered = self._server.account().covered
        if covered is None:
            return None
        ensure_lake_source(self._server.store)
        return self._server.store.snapshot(), covered

    def _copy(self, snapshot: Snapshot, covered: LedgerCoverage) -> CopyResult:
        assert self._copier is not None  # noqa: S101 - it is on
        with snapshot:  # files that are replaced meanwhile stay until it is closed
            told = manifest_header(snapshot, self._server.settings, covered)
            return self._copier.copy(snapshot, told, now_ms=time.time_ns() // 1_000_000)

    def _failed(self, why: str) -> None:
        self.counts["failed"] += 1
        if why != self.trouble:
            _log.warning("%s It is tried again; nothing is lost meanwhile.", why)
        self.trouble = why

    def _succeeded(self, copied: CopyResult) -> None:
        self.counts["copied"] += 1
        self.bytes += copied.bytes
        self.copied_at_s = time.time()
        if self.trouble is not None:
            _log.info("The lake %s is there again.", self.place)
        self.trouble = None
