"""Comparing an invoice with the ledger."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from pyrometer.account.closing.reconciliation import (
    COMMITMENT,
    HOURS,
    NOT_BILLED,
    PRICE,
    UNKNOWN,
    UNPRICED,
    LedgerUse,
    ledger_use,
    off_by_percent,
    reconcile,
)
from pyrometer.collect.files.bills import Bill, BilledUse
from pyrometer.model.units import MS_PER_HOUR

DAY = date(2026, 11, 1)
TEN_HOURS = LedgerUse(10 * MS_PER_HOUR, 20_000_000)  # $2 per hour


def compared(billed: BilledUse | None, seen: LedgerUse | None) -> dict[str, Any]:
    """The one row of a comparison."""
    bill = Bill("focus", 1, {} if billed is None else {(DAY, "p5"): billed}, {})
    (row,) = reconcile(bill, {} if seen is None else {(str(DAY), "p5"): seen})["rows"]
    return row


@pytest.mark.parametrize(
    ("billed", "seen", "reasons"),
    [
        (BilledUse(Decimal(20), Decimal(10)), TEN_HOURS, []),
        (BilledUse(Decimal(24), Decimal(12)), TEN_HOURS, [HOURS]),
        (BilledUse(Decimal(25), Decimal(10)), TEN_HOURS, [PRICE]),
        (BilledUse(Decimal(15), Decimal(10), Decimal(5)), TEN_HOURS, [COMMITMENT]),
        (BilledUse(Decimal(30), Decimal(12)), TEN_HOURS, [HOURS, PRICE]),
        (BilledUse(Decimal(20)), TEN_HOURS, []),
        (BilledUse(Decimal(20)), LedgerUse(MS_PER_HOUR, None), [UNPRICED]),
        (BilledUse(Decimal(20)), None, [UNKNOWN]),
        (None, TEN_HOURS, [NOT_BILLED]),
    ],
)
def test_reconcile_names_the_reasons_of_a_difference(
    billed: BilledUse | None, seen: LedgerUse | None, reasons: list[str]
) -> None:
    assert compared(billed, seen)["because"] == reasons


def test_reconcile_splits_a_difference_into_hours_and_price() -> None:
    row = compared(BilledUse(Decimal(30), Decimal(12)), TEN_HOURS)
    assert (row["difference_usd"], row["by_hours_usd"], row["by_price_usd"]) == (10.0, 4.0, 6.0)


def test_reconcile_totals_add_up_the_rows() -> None:
    bill = Bill(
        "focus",
        2,
        {(DAY, "p5"): BilledUse(Decimal(24), Decimal(12)), (DAY, "g6"): BilledUse(Decimal(1))},
        {"tax": Decimal(3)},
    )
    answer = reconcile(bill, {(str(DAY), "p5"): TEN_HOURS})
    assert [row["instance_type"] for row in answer["rows"]] == ["g6", "p5"]
    assert (answer["total"]["billed_usd"], answer["total"]["ledger_usd"], answer["total"]["difference_usd"]) == (
        25.0,
        20.0,
        5.0,
    )
    assert answer["apart"] == {"tax": {"usd_micro": 3_000_000, "usd": 3.0}}


def test_ledger_use_maps_nodes_without_an_instance_type() -> None:
    row = {
        "day": "2026-11-01",
        "instance_type": None,
        "pool": "blue",
        "gpu_model": "H100",
        "node_ms": 5,
        "usd_micro": 7,
    }
    other = row | {"pool": None, "gpu_model": None}
    assert ledger_use([row, row, other], {"blue": "p5"}) == ({("2026-11-01", "p5"): LedgerUse(10, 14)}, 5)


def test_ledger_use_is_unpriced_only_without_any_price() -> None:
    row = {"day": "d", "instance_type": "p5", "pool": None, "gpu_model": None, "node_ms": 5, "usd_micro": None}
    assert ledger_use([row, row], {})[0] == {("d", "p5"): LedgerUse(10, None)}
    assert ledger_use([row, row | {"usd_micro": 3}], {})[0] == {("d", "p5"): LedgerUse(10, 3)}


def test_off_by_percent_without_a_bill() -> None:
    assert off_by_percent({"difference_usd_micro": -5, "billed_usd_micro": 20}) == 25.0
    assert off_by_percent({"difference_usd_micro": 5, "billed_usd_micro": 0}) == 100.0
    assert off_by_percent({"difference_usd_micro": 0, "billed_usd_micro": 0}) == 0.0
