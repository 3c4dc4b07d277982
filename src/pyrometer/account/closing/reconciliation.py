"""Compares an invoice with the ledger by day and instance type: the differences, and how much of them hours and prices
explain.

A difference has two parts: hours that only one side has, at the ledger's hourly price; and the rest, which is the price
of the billed hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from pyrometer.collect.files.bills import Bill, BilledUse
from pyrometer.model.units import MS_PER_HOUR, USD_MICRO_PER_USD, usd

UNKNOWN, NOT_BILLED, HOURS, PRICE, COMMITMENT, UNPRICED, SAME = (
    "not in the ledger",
    "not on the bill",
    "hours differ",
    "price differs",
    "commitment discount",
    "no price in the ledger",
    "",
)
MIN_DIFFERENCE_USD = Decimal("0.005")  # smaller differences do not appear on invoices
MIN_DIFFERENCE_HOURS = Decimal("0.02")  # a minute, which is how the ledger rounds a node's time


class LedgerUse(NamedTuple):
    """The ledger of one instance type in a day. Without any price, `usd_micro` has no value."""

    node_ms: int = 0
    usd_micro: int | None = 0

    @property
    def hours(self) -> Decimal:
        """Node-hours."""
        return Decimal(self.node_ms) / MS_PER_HOUR


def ledger_use(
    rows: Iterable[Mapping[str, Any]], named: Mapping[str, str]
) -> tuple[dict[tuple[str, str], LedgerUse], int]:
    """The ledger's rows (from `node_hours`) by day and instance type, and the milliseconds of nodes without one. For
    these, `named` can map their pool or GPU model to an instance type."""
    found: dict[tuple[str, str], LedgerUse] = {}
    nameless_ms = 0
    for row in rows:
        kind = row["instance_type"] or named.get(row["pool"] or "") or named.get(row["gpu_model"] or "")
        if kind is None:
            nameless_ms += row["node_ms"]
            continue
        known = found.get((row["day"], kind), LedgerUse())
        found[row["day"], kind] = LedgerUse(known.node_ms + row["node_ms"], _sum(known, row["usd_micro"]))
    return found, nameless_ms


def reconcile(bill: Bill, seen: Mapping[tuple[str, str], LedgerUse]) -> dict[str, Any]:
    """Compares row by row, and in total. Money is `billed − ledger`: a positive amount was billed and is not in the
    ledger."""
    billed = {(str(day), kind): used for (day, kind), used in bill.used.items()}
    rows = [_row(key, billed.get(key), seen.get(key)) for key in sorted({*billed, *seen})]
    return {
        "bill": {"format": bill.form, "lines": bill.lines},
        "rows": rows,
        "total": _total(rows),
        "apart": {kind: _money(amount) for kind, amount in bill.apart.items()},
    }


def _row(key: tuple[str, str], used: BilledUse | None, seen: LedgerUse | None) -> dict[str, Any]:
    of_bill, of_ledger = used or BilledUse(), seen or LedgerUse()
    billed = _micro(of_bill.usd)
    ledger = of_ledger.usd_micro
    difference = billed - (ledger or 0)
    by_hours = _by_hours(of_bill, of_ledger, used, seen)
    return {
        "day": key[0],
        "instance_type": key[1],
        **_shown("billed", billed),
        **_shown("ledger", ledger),
        **_shown("difference", difference),
        "billed_hours": None if of_bill.hours is None else float(round(of_bill.hours, 4)),
        "ledger_hours": float(round(of_ledger.hours, 4)),
        **_shown("by_hours", by_hours),
        **_shown("by_price", None if by_hours is None else difference - by_hours),
        "because": _because(of_bill, of_ledger, used, seen, difference, by_hours),
    }


def _by_hours(of_bill: BilledUse, of_ledger: LedgerUse, used: BilledUse | None, seen: LedgerUse | None) -> int | None:
    """The part of a difference that is due to hours that only one side has; None if the invoice has no hours."""
    if used is None or seen is None:
        return _micro(of_bill.usd) - (of_ledger.usd_micro or 0)
    if of_bill.hours is None or of_ledger.usd_micro is None or not of_ledger.node_ms:
        return None
    price = Decimal(of_ledger.usd_micro) / of_ledger.hours
    return int(((of_bill.hours - of_ledger.hours) * price).to_integral_value(ROUND_HALF_UP))


def _because(
    of_bill: BilledUse,
    of_ledger: LedgerUse,
    used: BilledUse | None,
    seen: LedgerUse | None,
    difference: int,
    by_hours: int | None,
) -> list[str]:
    least = _micro(MIN_DIFFERENCE_USD)
    if seen is None:
        return [UNKNOWN]
    if used is None:
        return [NOT_BILLED]
    if of_ledger.usd_micro is None:
        return [UNPRICED]
    found = []
    if (
        by_hours is not None
        and of_bill.hours is not None
        and abs(of_bill.hours - of_ledger.hours) > MIN_DIFFERENCE_HOURS
    ):
        found.append(HOURS)
    if abs(difference - (by_hours or 0)) > least:
        found.append(COMMITMENT if of_bill.committed_usd else PRICE)
    return found if abs(difference) > least or HOURS in found else []


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {
        name: sum(row[f"{name}_usd_micro"] or 0 for row in rows)
        for name in ("billed", "ledger", "difference", "by_hours", "by_price")
    }
    hours = {name: round(sum(row[name] or 0 for row in rows), 4) for name in ("billed_hours", "ledger_hours")}
    return {key: value for name, amount in sums.items() for key, value in _shown(name, amount).items()} | hours


def off_by_percent(total: Mapping[str, Any]) -> float:
    """The difference between an invoice and the ledger, in percent of the billed amount."""
    apart = abs(total["difference_usd_micro"])
    return 100.0 * apart / abs(total["billed_usd_micro"]) if total["billed_usd_micro"] else (100.0 if apart else 0.0)


def _sum(known: LedgerUse, usd_micro: int | None) -> int | None:
    """The money of several kinds of nodes; None if none is known."""
    if usd_micro is None:
        return known.usd_micro if known.node_ms else None
    return usd_micro + (known.usd_micro or 0)


def _micro(amount: Decimal) -> int:
    return int((amount * USD_MICRO_PER_USD).to_integral_value(ROUND_HALF_UP))


def _money(amount: Decimal) -> dict[str, Any]:
    micro = _micro(amount)
    return {"usd_micro": micro, "usd": usd(micro)}


def _shown(name: str, micro: int | None) -> dict[str, Any]:
    return {f"{name}_usd_micro": micro, f"{name}_usd": None if micro is None else usd(micro)}
