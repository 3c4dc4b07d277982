"""The task that keeps the ledger up to date, seals completed hours, and counts the metrics of the ledger."""

from __future__ import annotations

import time
from datetime import UTC
from typing import Any, NamedTuple

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.answer_json import iso
from pyrometer.export.ledger_metrics import LedgerCollector
from pyrometer.export.run_metrics import RunCollector
from pyrometer.export.workload_metrics import WorkloadCollector
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.questions.cache import revision
from pyrometer.questions.registry import bring_up_to_date
from pyrometer.serve.core import Core
from pyrometer.serve.http.event_stream import EventStream
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import Store

SEAL_EVERY_S = 300.0
# When accounting takes longer than QUICK_S, the ledger is left as it is for REST_FACTOR times as long, MAX_REST_S at
# most, even if questions are asked.
QUICK_S, REST_FACTOR, MAX_REST_S = 0.2, 5, 10.0


class LedgerState(NamedTuple):
    """The ledger when it was last brought up to date."""

    covered: LedgerCoverage | None
    revision: str
    changes: int  # the store's count of changes at that time
    minute: int
    at_s: float  # on the monotonic clock
    took_s: float

    def is_current(self, changes: int, now_ms: int, now_s: float, *, may_rest: bool = True) -> bool:
        """Whether nothing has changed since, or accounting is slow and not due yet."""
        same = changes == self.changes and now_ms // MS_PER_MINUTE == self.minute
        rest_s = min(REST_FACTOR * self.took_s, MAX_REST_S) if may_rest and self.took_s > QUICK_S else 0.0
        return same or now_s - self.at_s < rest_s


class LedgerMetrics(NamedTuple):
    """The metrics that are counted from the ledger."""

    ledger: LedgerCollector
    runs: RunCollector
    workloads: WorkloadCollector

    @classmethod
    def empty(cls) -> LedgerMetrics:
        """The metrics of a server that has just started."""
        return cls(LedgerCollector(), RunCollector(), WorkloadCollector())

    def add_minutes(self, store: Store, end_ms: int) -> None:
        """Counts the minutes up to `end_ms` that have settled."""
        self.ledger.count(store, end_ms)
        self.runs.count(store, end_ms)
        self.workloads.count(store, end_ms, self.runs.progress.runs.values())


class Accounting:
    """The ledger of a server."""

    def __init__(self, core: Core, metrics: LedgerMetrics, events: EventStream) -> None:
        self.news: dict[str, Any] | None = None  # the newest `ledger` event
        self.end_ms = 0  # the newest accounted minute
        self.accounting_s = self.accounted_at_s = 0.0
        self._core = core
        self._metrics = metrics
        self._events = events
        self._state: LedgerState | None = None
        self._seal_due_s = time.monotonic() + SEAL_EVERY_S

    def bring_up_to_date(self, *, may_rest: bool = True) -> LedgerState:
        """Brings the ledger up to date, unless it is current. The caller holds the lock."""
        if self._state is not None and self.is_current(may_rest=may_rest):
            return self._state
        store = self._core.store
        began_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        covered = bring_up_to_date(store, self._core.settings, now_ms=now_ms)
        revised = "" if covered is None else revision(store, covered)
        done_s = time.monotonic()
        self.accounting_s = done_s - began_s
        took_s = 0.0 if self._state is None else self.accounting_s  # the first time is slow for other reasons
        self._state = LedgerState(
            covered=covered,
            revision=revised,
            changes=store.changes,
            minute=now_ms // MS_PER_MINUTE,
            at_s=done_s,
            took_s=took_s,
        )
        self.accounted_at_s = time.time()
        self.end_ms = covered.end_ms if covered else 0
        return self._state

    def is_current(self, *, may_rest: bool = True) -> bool:
        """Whether there is nothing to do to have the ledger up to date."""
        now_ms = time.time_ns() // 1_000_000
        return self._state is not None and self._state.is_current(
            self._core.store.changes, now_ms, time.monotonic(), may_rest=may_rest
        )

    async def update(self) -> None:
        """Seals completed hours, brings the ledger and its metrics up to date, and sends the `ledger` event."""
        async with self._core.lock:
            news = await run_to_end(self._update)
        if news is not None:
            self.news = news
            self._events.send("ledger", news, lasting=True)

    def _update(self) -> dict[str, Any] | None:
        store = self._core.store
        if not store.revive():  # a full disk may have ended the database: committed rows are safe
            return None
        if time.monotonic() >= self._seal_due_s:
            self._seal_due_s = time.monotonic() + SEAL_EVERY_S
            store.seal(before_ms=time.time_ns() // 1_000_000 - MS_PER_HOUR)
        state = self.bring_up_to_date(may_rest=False)
        if state.covered is None:
            return None
        self._metrics.add_minutes(store, state.covered.end_ms)
        return {"revision": state.revision, "to": iso(state.covered.end_ms, UTC), "origin": store.meta("origin")}
