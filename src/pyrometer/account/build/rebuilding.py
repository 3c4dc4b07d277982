"""Rebuilds a month of the ledger under the current rules. Closed time gets new rules only in this way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any

from pyrometer.account.build import sql
from pyrometer.account.build.ledger import mark_stale
from pyrometer.account.build.rules import ACCOUNT_RULES
from pyrometer.account.closing.charge_basis import has_adjustments
from pyrometer.account.closing.closed_months import read_closed_months
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange, TimeRangeError, month_of
from pyrometer.store import Store, StoreReader


def rebuild_month(store: Store, month: str, zone: tzinfo, build: Callable[[], object]) -> dict[str, Any]:
    """Rebuilds the ledger of a month with `build`, which brings the ledger up to date. Returns what changed."""
    build()  # first, so that only changes by the rebuild are reported
    time_range = month_of(month, zone)
    closed = next((one for one in read_closed_months(store.folder) if one.from_ms == time_range.from_ms), None)
    parts = [
        part
        for kind in ("ledger_row", "energy", *sql.SUMMED)
        for part in store.parts(kind)
        if part.from_ms < time_range.to_ms and part.to_ms > time_range.from_ms
    ]
    if not any(part.row_count for part in parts):
        raise TimeRangeError(f"The ledger has no rows in {month}. `pyrometer cost --by month` lists the months it has.")
    before = _states(store, time_range)
    mark_stale(store, parts)
    build()
    after = _states(store, time_range)
    changed_ms = sum(max(0, after.get(state, 0) - before.get(state, 0)) for state in {*before, *after})
    return {
        "month": datetime.fromtimestamp(time_range.from_ms / 1000, zone).strftime("%Y-%m"),
        "from": iso(time_range.from_ms, zone),
        "to": iso(time_range.to_ms, zone),
        "closed": closed and iso(closed.closed_ms, UTC),
        "rules": ACCOUNT_RULES,
        "states": [
            {"state": state, "gpu_ms_before": before.get(state, 0), "gpu_ms_after": after.get(state, 0)}
            for state in sorted({*before, *after}, key=lambda state: (-after.get(state, 0), state))
        ],
        "changed_gpu_ms": changed_ms,
        "adjusted": bool(closed) and has_adjustments(store, month),
    }


def _states(store: StoreReader, time_range: TimeRange) -> dict[str, int]:
    """GPU-milliseconds by state."""
    store.expose(["ledger_row"], *time_range)
    rows = store.connection.execute(
        "SELECT state, sum(ms)::BIGINT FROM ledger_row WHERE minute_ms >= ? AND minute_ms < ? GROUP BY state",
        [*time_range],
    ).fetchall()
    return dict(rows)
