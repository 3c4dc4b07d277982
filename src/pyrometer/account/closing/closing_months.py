"""Closing a month: its charges, and the adjustments of earlier closed months, are frozen.

The figures of a closed month never change. Later facts or prices are adjusted in the next month.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from pyrometer import __version__
from pyrometer.account.build.retention import kept_from_ms
from pyrometer.account.closing import closed_months
from pyrometer.account.closing.charge_basis import (
    ChargeBasis,
    adjustments,
    charged_sums,
    drop_charge_tables,
    entries,
    entry_sums,
    ledger_digests,
)
from pyrometer.account.closing.closed_months import ClosedMonth, read_closed_months
from pyrometer.account.query.answer_json import iso, total
from pyrometer.account.query.energy import tariff_of
from pyrometer.account.query.time_range import TimeRange, month_of, zone_name
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store, StoreReader
from pyrometer.store.catalog import first_row

SETTLED_MS = MS_PER_HOUR  # how long after its end a month can be closed: later evidence decides its last minutes


class ClosingError(ValueError):
    """A month that cannot be closed. The text says why, and which can be."""


def close(store: Store, settings: Settings, month: str, zone: tzinfo, *, now_ms: int, by: str) -> ClosedMonth:
    """Closes a month. The ledger must be up to date."""
    time_range = month_of(month, zone)
    month = datetime.fromtimestamp(time_range.from_ms / 1000, zone).strftime("%Y-%m")
    months = read_closed_months(store.folder)
    _refuse(store, months, month, time_range, zone, now_ms)
    try:
        found = _frozen(store, settings, months, month, time_range, zone, {"closed_ms": now_ms, "closed_by": by})
    finally:
        drop_charge_tables(store)
    store.changes += 1  # cached answers are outdated
    return found


def _frozen(
    store: Store,
    settings: Settings,
    months: list[ClosedMonth],
    month: str,
    time_range: TimeRange,
    zone: tzinfo,
    closed_fields: dict[str, Any],
) -> ClosedMonth:
    """Writes the charges of the month."""
    relation = entries(store, time_range, zone)
    if months:
        adjusted = adjustments(store, ChargeBasis("open", month, months[-1]), zone)
        columns = ", ".join(f'"{name}"' for name in (*closed_months.NAMES, *closed_months.AMOUNTS))
        relation = f"SELECT {columns} {relation} UNION ALL SELECT {columns} {adjusted}"
    store.connection.execute(f"CREATE OR REPLACE TEMP TABLE charge_closing AS {relation}")
    sums = {
        name: _total(store, f"FROM charge_closing {kept}")
        for name, kept in {
            "total": "",
            "ledger": "WHERE adjusts IS NULL",
            "adjustments": "WHERE adjusts IS NOT NULL",
        }.items()
    }
    if not first_row(store.connection.execute("FROM charge_closing LIMIT 1")):
        raise ClosingError(f"{month} has no charges to close.")
    tariff = tariff_of(settings)
    return closed_months.write(
        store.folder,
        store.connection,
        "charge_closing",
        month,
        {
            "timezone": zone_name(zone),
            "from_ms": time_range.from_ms,
            "to_ms": time_range.to_ms,
            **closed_fields,
            "pyrometer": __version__,
            **sums,
            "price_book_sha256": _digest(settings.price_book),
            "tariff": {name: None if value is None else str(value) for name, value in tariff._asdict().items()},
            "ledger_digests": ledger_digests(store, time_range.to_ms, zone),
        },
    )


def closed_answer(store: StoreReader, team: str | None = None, experiment: str | None = None) -> dict[str, Any]:
    """The closed months; limited to a team and an experiment, with their charges."""
    months = read_closed_months(store.folder)
    return {
        "months": [_json(store, closed, team, experiment) for closed in months],
        "next": _following(months[-1]) if months else None,
    }


def json_of(closed: ClosedMonth) -> dict[str, Any]:
    """A closed month as JSON."""
    zone = closed.zone
    return {
        "month": closed.month,
        "timezone": closed.timezone,
        "from": iso(closed.from_ms, zone),
        "to": iso(closed.to_ms, zone),
        "closed": iso(closed.closed_ms, UTC),
        "closed_by": closed.closed_by,
        "sha256": closed.sha256,
        "price_book_sha256": closed.price_book_sha256,
        "total": closed.total,
        "ledger": closed.ledger,
        "adjustments": closed.adjustments,
    }


def _json(store: StoreReader, closed: ClosedMonth, team: str | None, experiment: str | None) -> dict[str, Any]:
    fields = json_of(closed)
    if team is None and experiment is None:
        return fields
    zone = closed.zone
    groups = charged_sums(store, ChargeBasis("closed", closed.month, closed, team, experiment), (), zone=zone)
    sums = {
        "total": total(groups),
        "ledger": total(group for group in groups if group.key[-1] is None),
        "adjustments": total(group for group in groups if group.key[-1] is not None),
    }
    # a team must not see who closed the month, or digests that cover all teams
    return fields | {"closed_by": None, "sha256": None, "price_book_sha256": None} | sums


def _refuse(
    store: StoreReader, months: list[ClosedMonth], month: str, time_range: TimeRange, zone: tzinfo, now_ms: int
) -> None:
    known = {closed.month: closed for closed in months}
    if month in known:
        raise ClosingError(f"{month} was closed at {iso(known[month].closed_ms, UTC)} and cannot be changed.")
    if months and months[-1].timezone != zone_name(zone):
        raise ClosingError(
            f"Months of this folder are closed in {months[-1].timezone}, not in {zone_name(zone)}: pass "
            f"--tz {months[-1].timezone}, or set `timezone`."
        )
    end_ms = months[-1].to_ms if months else -(2**62)
    if time_range.from_ms < end_ms:
        raise ClosingError(f"{month} is before {months[-1].month}, which is closed. Its changes become adjustments.")
    if now_ms < time_range.to_ms + SETTLED_MS:
        when = iso(time_range.to_ms + SETTLED_MS, zone)
        raise ClosingError(f"{month} has not ended or settled yet. It can be closed from {when}.")
    kept_ms = kept_from_ms(store)
    if kept_ms > time_range.from_ms:
        raise ClosingError(
            f"The ledger of {month} before {iso(kept_ms, zone)} was dropped (`retention_days`), so it cannot be closed."
        )
    store.expose(["ledger_row"], end_ms, time_range.from_ms)
    earlier = "SELECT min(minute_ms) FROM ledger_row WHERE minute_ms >= ? AND minute_ms < ?"
    ((first_ms,),) = store.connection.execute(earlier, [end_ms, time_range.from_ms]).fetchall()
    if first_ms is not None:
        first = datetime.fromtimestamp(first_ms / 1000, zone).strftime("%Y-%m")
        raise ClosingError(f"{first} has charges and is not closed: close it before {month}.")


def _total(store: StoreReader, relation: str) -> dict[str, Any]:
    return total(entry_sums(store, relation, (), None))


def _following(closed: ClosedMonth) -> str:
    return datetime.fromtimestamp(closed.to_ms / 1000, closed.zone).strftime("%Y-%m")


def _digest(price_book: str) -> str | None:
    return hashlib.sha256(Path(price_book).read_bytes()).hexdigest() if price_book else None
