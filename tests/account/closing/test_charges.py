"""Charges by day, holder and price."""

from __future__ import annotations

import random
from datetime import UTC, timedelta

from pyrometer.account.closing.charges import BY, COLUMNS, charges, groupings
from pyrometer.account.query.groupings import PRICE
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.hand_ledgers import FIRST, ms_of, objects, random_day, write_days
from tests.support.histories import folder


def test_groupings_have_the_price_unless_one_is_given() -> None:
    assert groupings(None) == (*BY, PRICE)
    assert groupings(5) == BY


def test_charges_add_up_and_have_their_part_of_the_day() -> None:
    chance = random.Random(5)
    days = {
        FIRST + timedelta(days=number): random_day(chance, FIRST + timedelta(days=number), 10) for number in range(2)
    }
    whole = TimeRange(ms_of(FIRST), ms_of(FIRST) + 2 * MS_PER_DAY - MS_PER_HOUR)
    with folder() as store:
        store.append(objects(chance, ms_of(FIRST)))
        write_days(store, days)
        answer = charges(store, whole, zone=UTC)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in answer["rows"]]
    assert answer["columns"] == list(COLUMNS)
    assert sum(row["gpu_ms"] for row in rows) == answer["total"]["gpu_ms"] > 0
    assert {row["to"] for row in rows} == {"2026-09-02T00:00:00Z", "2026-09-02T23:00:00Z"}
    assert {(row["billing_from"], row["billing_to"]) for row in rows} == {
        ("2026-09-01T00:00:00Z", "2026-10-01T00:00:00Z")
    }
