"""The task that copies sealed parts into a lake. Nothing waits for it, and an unreachable lake is tried again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.lake_manifest import ensure_lake_source, manifest_header
from pyrometer.serve.core import Core
from pyrometer.serve.runtime import run_to_end
from pyrometer.serve.tasks.accounting import Accounting
from pyrometer.store import Snapshot
from pyrometer.store.lake import LakeError, LakeStorage
from pyrometer.store.lake.lake_copier import CopyResult, LakeCopier

EVERY_S = 300.0
_log = logging.getLogger("pyrometer")


class LakeCopyTask:
    """Copies into the lake of the settings, if there is one."""

    def __init__(self, core: Core, accounting: Accounting) -> None:
        self.trouble: str | None = None
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        self.copied_at_s = 0.0
        self._core = core
        self._accounting = accounting
        self._copier = LakeCopier(LakeStorage(core.settings.lake)) if core.settings.lake else None

    @property
    def is_on(self) -> bool:
        """Whether there is a lake."""
        return self._copier is not None

    @property
    def url(self) -> str:
        """The lake's URL."""
        return "" if self._copier is None else self._copier.storage.url

    async def copy(self) -> None:
        """Brings the lake up to date. A failure is logged when it is new."""
        if self._copier is None:
            return
        async with self._core.lock:
            state = await run_to_end(self._snapshot)
        if state is None:
            return
        try:
            copied = await asyncio.to_thread(self._copy, self._copier, *state)
        except asyncio.CancelledError:
            self._copier.stop()  # the thread ends after the current file
            raise
        except (LakeError, OSError) as error:
            self._failed(str(error))
        else:
            self._succeeded(copied)

    def _snapshot(self) -> tuple[Snapshot, LedgerCoverage] | None:
        """The store with its ledger up to date. The caller holds the lock."""
        covered = self._accounting.bring_up_to_date().covered
        if covered is None:
            return None
        ensure_lake_source(self._core.store)
        return self._core.store.snapshot(), covered

    def _copy(self, copier: LakeCopier, snapshot: Snapshot, covered: LedgerCoverage) -> CopyResult:
        with snapshot:  # files that are replaced in the meantime stay until it is closed
            header = manifest_header(snapshot, self._core.settings, covered)
            return copier.copy(snapshot, header, now_ms=time.time_ns() // 1_000_000)

    def _failed(self, why: str) -> None:
        self.counts["failed"] += 1
        if why != self.trouble:
            _log.warning("%s Trying again. No data is lost.", why)
        self.trouble = why

    def _succeeded(self, copied: CopyResult) -> None:
        self.counts["copied"] += 1
        self.bytes += copied.bytes
        self.copied_at_s = time.time()
        if self.trouble is not None:
            _log.info("The lake %s works again.", self.url)
        self.trouble = None
