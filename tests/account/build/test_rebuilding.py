"""Rebuilding a month of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pyrometer.account.build.rebuilding import rebuild_month
from pyrometer.account.build.rules import ACCOUNT_RULES
from pyrometer.account.query.time_range import TimeRangeError
from pyrometer.model.units import MS_PER_MINUTE
from tests.support.histories import BASE, account, at, folder, node, until


def test_rebuild_of_a_month_without_rows_is_refused() -> None:
    with folder() as store, pytest.raises(TimeRangeError, match="The ledger has no rows in 2020-01"):
        rebuild_month(store, "2020-01", UTC, lambda: account(store))


def test_rebuild_under_the_same_rules_changes_nothing() -> None:
    month = f"{datetime.fromtimestamp(BASE / 1000, UTC):%Y-%m}"
    with folder() as store:
        store.append([node(), until(at(10))])
        before = account(store)
        answer = rebuild_month(store, month, UTC, lambda: account(store))
        assert account(store) == before._replace(chunks_built=0)
    assert (answer["rules"], answer["closed"], answer["adjusted"], answer["changed_gpu_ms"]) == (
        ACCOUNT_RULES,
        None,
        False,
        0,
    )
    length_ms = 10 * MS_PER_MINUTE
    assert answer["states"] == [{"state": "free", "gpu_ms_before": length_ms, "gpu_ms_after": length_ms}]
