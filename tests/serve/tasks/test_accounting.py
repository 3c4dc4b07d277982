"""Accounting: when the ledger is current, events of changes, and sealing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.http.event_stream import EventStream
from pyrometer.serve.tasks import accounting
from pyrometer.serve.tasks.accounting import Accounting, LedgerMetrics, LedgerState
from pyrometer.store import Store
from tests.support import clusters


@pytest.mark.parametrize(
    ("took_s", "later_s", "changes", "minutes", "good"),
    [
        (0.01, 30.0, 0, 0, True),  # nothing changed
        (0.01, 0.1, 1, 0, False),  # accounting is quick
        (0.01, 0.1, 0, 1, False),  # a minute has passed
        (1.0, 2.0, 1, 1, True),  # accounting is slow and recent
        (1.0, 6.0, 1, 0, False),
        (60.0, 11.0, 1, 0, False),  # MAX_REST_S has passed
    ],
)
def test_ledger_state_is_current_until_accounting_is_due(
    took_s: float, later_s: float, changes: int, minutes: int, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "REST_FACTOR", 5)
    state = LedgerState(None, "", changes=7, minute=100, at_s=1_000.0, took_s=took_s)
    assert state.is_current(7 + changes, (100 + minutes) * 60_000, 1_000.0 + later_s) is good


@pytest.mark.heavy
def test_accounting_seals_completed_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "SEAL_EVERY_S", 0.0)
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
        books = _accounting(store)
        assert store.hot_tables("pod")
        asyncio.run(books.update())
        assert not store.hot_tables("pod")
        assert store.parts("pod")


def _accounting(store: Store) -> Accounting:
    return Accounting(Core(store, Settings()), LedgerMetrics.empty(), EventStream())


def test_empty_store_has_no_ledger_and_no_event(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        books = _accounting(store)
        asyncio.run(books.update())
        assert (books.news, books.end_ms) == (None, 0)
        assert books.bring_up_to_date().covered is None


def test_unchanged_ledger_is_not_built_again(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
        books = _accounting(store)
        first = books.bring_up_to_date()
        if first.minute == books.bring_up_to_date().minute:  # unless a minute has just passed
            assert books.bring_up_to_date() is first
        store.append(clusters.samples("n0", 0, 0, 60, gpu_util_permille=900))
        assert books.bring_up_to_date(may_rest=False).revision != first.revision
