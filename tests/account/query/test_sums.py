"""Sums of the ledger: exact, and rounded so that rows add up."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC
from zoneinfo import ZoneInfo

from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import Sum, added, hourly, is_priced, price_of, rounded, sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.hand_ledgers import FIRST, ms_of, random_day, write_days
from tests.support.histories import folder

DAY = TimeRange(ms_of(FIRST), ms_of(FIRST) + MS_PER_DAY)


def test_sums_equal_the_rows_of_the_ledger() -> None:
    rows = random_day(random.Random(1), FIRST, 40)
    with folder() as store:
        write_days(store, {FIRST: rows})
        found = sums(store, DAY, ["state"], zone=UTC)
    expected: Counter[str] = Counter()
    money: Counter[str] = Counter()
    for row in rows:
        expected[row.state] += row.ms
        money[row.state] += row.ms * (row.usd_micro_per_hour or 0)
    assert {group.key[0]: group.gpu_ms for group in found} == expected
    assert {group.key[0]: group.ms_price for group in found} == {state: money[state] for state in expected}
    assert [group.ms_price for group in found] == sorted((group.ms_price for group in found), reverse=True)


def test_sums_at_one_price_have_no_unpriced_time() -> None:
    with folder() as store:
        write_days(store, {FIRST: random_day(random.Random(2), FIRST, 40)})
        open_names(store)
        (whole,) = sums(store, DAY, [], zone=UTC, price_usd_micro=3)
    assert whole.ms_price == 3 * whole.gpu_ms
    assert whole.unpriced_gpu_ms == 0


def test_sums_of_a_range_without_rows_are_empty() -> None:
    with folder() as store:
        assert sums(store, DAY, [], zone=UTC) == []


def test_rounded_money_adds_up_to_the_rounded_total() -> None:
    groups = [Sum((name,), 1, MS_PER_HOUR // 3, 0) for name in "abc"]
    assert sum(micro or 0 for micro in rounded(groups)) == 1


def test_rounded_money_is_none_without_any_price() -> None:
    assert rounded([Sum(("a",), 5, 0, 5), Sum(("b",), 5, 0, 0)]) == [None, 0]


def test_is_priced_for_money_without_time() -> None:
    assert is_priced(Sum((), 0, -7, 0))
    assert not is_priced(Sum((), 0, 0, 0))


def test_added_sums_every_amount() -> None:
    assert added(("k",), [Sum(("a",), 1, 2, 3), Sum(("b",), 10, 20, 30)]) == Sum(("k",), 11, 22, 33)


def test_price_of_uses_the_column_without_a_given_price() -> None:
    assert price_of(None) == "usd_micro_per_hour"
    assert price_of(7) == "7::BIGINT"


def test_hourly_needs_whole_hours_of_the_zone() -> None:
    assert hourly(["team"], ZoneInfo("Asia/Kolkata"), DAY)
    assert hourly(["day"], ZoneInfo("Europe/Berlin"), DAY)
    assert not hourly(["day"], ZoneInfo("Asia/Kolkata"), DAY)
