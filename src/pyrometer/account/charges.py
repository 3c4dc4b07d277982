"""What is charged to whom: the ledger by local day, node, team, experiment, workload and price."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from pyrometer.account.sums import Window, iso, open_names, rounded, sums, total, window_json
from pyrometer.store import Reading

BY = ("day", "cluster", "pool", "node", "gpu_model", "team", "experiment", "workload", "namespace")
PRICE = "usd_micro_per_hour"
COLUMNS = (*BY, "from", "to", "billing_from", "billing_to", PRICE, "gpu_ms", "usd_micro")


def charges(store: Reading, window: Window, *, zone: tzinfo, price_usd_micro: int | None = None) -> dict[str, Any]:
    """One row a day and price of who had what. Rows are lists in the order of `columns`: there are many of them.

    `from` and `to` are UTC: the day, as far as it lies in the window; `billing_from` and `billing_to` its month.
    """
    open_names(store)
    by = (*BY, PRICE) if price_usd_micro is None else BY  # one price for everything: no need to tell them apart
    groups = sums(store, window, by, zone=zone, price_usd_micro=price_usd_micro)
    times = {day: _times(date.fromisoformat(day), window, zone) for day in dict.fromkeys(g.key[0] for g in groups)}
    rows = [
        [
            *group.key[: len(BY)], *times[group.key[0]],
            group.key[-1] if price_usd_micro is None else price_usd_micro, group.gpu_ms, micro,
        ]
        for group, micro in zip(groups, rounded(groups), strict=True)
    ]  # fmt: skip
    return {"window": window_json(window, zone), "columns": list(COLUMNS), "rows": rows, "total": total(groups)}


def _times(day: date, window: Window, zone: tzinfo) -> tuple[str, ...]:
    """A day within a window, and its month."""
    begin_ms, end_ms = _midnight_ms(day, zone), _midnight_ms(day + timedelta(days=1), zone)
    month = day.replace(day=1)
    following = (month + timedelta(days=31)).replace(day=1)
    moments = (
        max(begin_ms, window.from_ms), min(end_ms, window.to_ms), _midnight_ms(month, zone),
        _midnight_ms(following, zone),
    )  # fmt: skip
    return tuple(iso(moment, UTC) for moment in moments)


def _midnight_ms(day: date, zone: tzinfo) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() * 1000)
