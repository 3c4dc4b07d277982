"""Closed months as files of a data folder."""

from __future__ import annotations

import random
from datetime import UTC
from pathlib import Path

import duckdb
import pytest

from pyrometer.account.closing.closed_months import (
    FOLDER,
    closed_until_ms,
    digest_of,
    path_of,
    problems,
    read_closed_months,
    revision_of,
)
from pyrometer.account.closing.closing_months import close
from pyrometer.model.settings import Settings
from pyrometer.store import StoreError
from tests.support.hand_ledgers import FIRST, hours_after, ms_of, next_month, random_day, write_days
from tests.support.histories import folder


def test_a_folder_without_closed_months(tmp_path: Path) -> None:
    assert read_closed_months(tmp_path) == []
    assert closed_until_ms(tmp_path) == 0
    assert list(problems(tmp_path, duckdb.connect())) == []


def test_a_closed_month_is_read_with_its_file() -> None:
    with folder() as store:
        before = revision_of(store.folder)
        write_days(store, {FIRST: random_day(random.Random(7), FIRST)})
        close(store, Settings(), "2026-09", UTC, now_ms=hours_after(next_month(FIRST), 48), by="ann")
        (closed,) = read_closed_months(store.folder)
        assert (closed.month, closed.from_ms, closed.closed_by) == ("2026-09", ms_of(FIRST), "ann")
        assert closed_until_ms(store.folder) == closed.to_ms == ms_of(next_month(FIRST))
        assert digest_of(path_of(store.folder, closed)) == closed.sha256
        assert revision_of(store.folder) != before
        assert list(problems(store.folder, store.connection)) == []


def test_an_unreadable_closed_month_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "2026-09.json").write_text("{")
    with pytest.raises(StoreError, match=r"2026-09\.json"):
        read_closed_months(tmp_path)
