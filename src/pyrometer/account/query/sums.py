"""Sums of the ledger: milliseconds, money and energy by any grouping.

Every answer's rows add up to its total, in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.energy import SUMMED as DRAWN
from pyrometer.account.query.energy import EnergyUse, open_use
from pyrometer.account.query.groupings import HELD, HOLDER_GROUPINGS, ROW_GROUPINGS, SLOT_GROUPINGS, TIME_GROUPINGS
from pyrometer.account.query.names import holder_column
from pyrometer.account.query.quarters import label_quarters
from pyrometer.account.query.stored_sums import has_whole_hours, is_summed, open_hours
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_QUARTER, round_rows
from pyrometer.store import StoreReader

HOUR_USE = "hour_use"
_TIMED = ("gpu_ms", "ms_price", "unpriced_ms")
_DRAWN = ("energy_mj", "energy_ms", "estimated_ms", "readings", "activity_sum")  # the fields of `EnergyUse`


class Sum(NamedTuple):
    """Milliseconds and money of one group. `ms_price` is exact: milliseconds × micro-dollars per hour."""

    key: tuple[Any, ...]
    gpu_ms: int
    ms_price: int
    unpriced_gpu_ms: int
    drawn: EnergyUse = EnergyUse()


def sums(
    store: StoreReader,
    time_range: TimeRange,
    by: Sequence[str],
    *,
    zone: tzinfo,
    price_usd_micro: int | None = None,
    ledger: str = "ledger_row",
    energy: str = "",
) -> list[Sum]:
    """Sums the ledger of a time range by groupings. `ledger` can be any relation with the ledger's columns. `energy`
    can be a relation of `open_energy`, or `HOUR_USE` if `reads_hour_use`: it has both."""
    timed = bool(set(by) & set(TIME_GROUPINGS))
    drawn = ", ".join(f"0 AS {name}" for name in _DRAWN)
    if energy == HOUR_USE:
        ledger, energy = open_use(store, *time_range), ""
        drawn = ", ".join(f"sum({name}) AS {name}" for name in _DRAWN)
    elif ledger == "ledger_row":
        if hourly(by, zone, time_range):
            ledger = open_hours(store, *time_range, states="state" in by)
        else:
            store.expose(["ledger_row"], *time_range)
    price = price_of(price_usd_micro)
    raw, named = _columns(by)
    if timed:
        label_quarters(store, time_range, zone)
    metered = f"""
            UNION ALL
            SELECT {", ".join([*raw, ""])} 0, 0, 0, {DRAWN} FROM {energy} GROUP BY ALL
    """
    rows = store.connection.execute(
        f"""
        WITH compact AS (  -- few rows before names are joined to them
            SELECT {", ".join([*raw, ""])} sum(ms) AS gpu_ms, coalesce(sum(ms * {price}), 0) AS ms_price,
                coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0) AS unpriced_ms,
                {drawn}
            FROM {ledger} WHERE minute_ms >= {time_range.from_ms} AND minute_ms < {time_range.to_ms}
            GROUP BY ALL
            {metered if energy else ""}
        )
        SELECT {", ".join([*named, ""])} {", ".join(f"sum({name})::VARCHAR" for name in (*_TIMED, *_DRAWN))}
        FROM compact
        {"LEFT JOIN holder_name USING (pod_uid)" if "pod_uid" in raw else ""}
        {"LEFT JOIN node_name USING (node_uid)" if "node_uid" in raw else ""}
        {"LEFT JOIN quarter_label USING (quarter)" if timed else ""}
        GROUP BY ALL ORDER BY {_order(by)}
        """
    ).fetchall()
    width = len(by)
    found = []
    for row in rows:  # as texts, 128-bit numbers are fetched twice as fast
        # without groupings, a range without rows has one row of NULL
        gpu_ms, ms_price, unpriced_ms, *amounts = (int(value or 0) for value in row[width:])
        if gpu_ms:
            found.append(Sum(row[:width], gpu_ms, ms_price, unpriced_ms, EnergyUse(*amounts)))
    return found


def reads_hour_use(store: StoreReader, time_range: TimeRange, by: Sequence[str], zone: tzinfo) -> bool:
    """Whether time, energy and activity of whole hours can be read from their sums alone."""
    return not set(by) & set(ROW_GROUPINGS) and hourly(by, zone, time_range) and is_summed(store, *time_range, HOUR_USE)


def hourly(by: Sequence[str], zone: tzinfo, time_range: TimeRange) -> bool:
    """Whether hours of UTC can be summed as a whole with these groupings."""
    return not set(by) & set(TIME_GROUPINGS) or has_whole_hours(zone, *time_range)


def rounded(groups: Sequence[Sum]) -> list[int | None]:
    """The micro-dollars of each group, adding up to the total; None for a group without any price."""
    money = round_rows([group.ms_price for group in groups])
    return [micro if is_priced(group) else None for group, micro in zip(groups, money, strict=True)]


def is_priced(group: Sum) -> bool:
    """Whether any part of a group has a price. An adjustment may consist of money without time."""
    return group.unpriced_gpu_ms != group.gpu_ms or group.ms_price != 0


def added(key: tuple[Any, ...], groups: Sequence[Sum]) -> Sum:
    """The sum of groups."""
    return Sum(
        key, sum(g.gpu_ms for g in groups), sum(g.ms_price for g in groups), sum(g.unpriced_gpu_ms for g in groups)
    )


def price_of(price_usd_micro: int | None) -> str:
    """SQL for the price of a ledger row: its own, or the given price for everything."""
    return "usd_micro_per_hour" if price_usd_micro is None else f"{int(price_usd_micro)}::BIGINT"


def _columns(by: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ledger columns that the groupings need, and the expressions that select them with names."""
    raw: list[str] = []
    named: list[str] = []
    for name in by:
        if name == HELD:
            raw.append("pod_uid")
            named.append(f"pod_uid IS NOT NULL AS {HELD}")
        elif name in HOLDER_GROUPINGS:
            raw.append("pod_uid")
            named.append(holder_column(name))
        elif name in SLOT_GROUPINGS:
            raw.append("node_uid")
            named.append(name)
        elif name in TIME_GROUPINGS:
            raw.append(f"minute_ms // {MS_PER_QUARTER} AS quarter")
            named.append(f"{name}_label")
        else:
            raw.append(name)
            named.append(name)
    return list(dict.fromkeys(raw)), named


def _order(by: Sequence[str]) -> str:
    """The order of rows: most expensive first; with time groupings, in the given order and by time."""
    keys = [f"min({name}_first)" if name in TIME_GROUPINGS else str(place) for place, name in enumerate(by, 1)]
    amounts_first = ["sum(ms_price) DESC", "sum(gpu_ms) DESC"]
    return ", ".join([*keys, *amounts_first] if set(by) & set(TIME_GROUPINGS) else [*amounts_first, *keys])
