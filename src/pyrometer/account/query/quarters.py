"""Local hours, days and months: the labels of quarters of an hour in a time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING

from pyrometer.account.query.groupings import TIME_GROUPINGS
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_QUARTER
from pyrometer.store import StoreReader

if TYPE_CHECKING:
    import pyarrow as pa


def label_quarters(store: StoreReader, time_range: TimeRange, zone: tzinfo) -> None:
    """Creates `quarter_label`: the local hour, day and month of each quarter of an hour.

    An hour that the clock repeats counts as two hours.
    """
    parts = store.parts("ledger_row")
    from_ms = max(time_range.from_ms, min((part.from_ms for part in parts), default=time_range.from_ms))
    to_ms = min(time_range.to_ms, max((part.to_ms for part in parts), default=time_range.to_ms))
    table = _quarters(from_ms // MS_PER_QUARTER, -(-to_ms // MS_PER_QUARTER), zone)
    store.connection.register("quarter_rows", table)
    store.connection.execute("CREATE OR REPLACE TEMP TABLE quarter_label AS FROM quarter_rows")
    store.connection.unregister("quarter_rows")


@lru_cache(maxsize=8)
def _quarters(first: int, end: int, zone: tzinfo) -> pa.Table:
    """The labels of quarters. They are cached: a month has three thousand and is requested repeatedly."""
    import pyarrow as pa

    labels: dict[str, list[str]] = {name: [] for name in TIME_GROUPINGS}
    for quarter in range(first, end):
        local = datetime.fromtimestamp(quarter * MS_PER_QUARTER / 1000, zone)
        labels["hour"].append(f"{local:%Y-%m-%dT%H}:00{local.isoformat()[19:]}")
        labels["day"].append(f"{local:%Y-%m-%d}")
        labels["month"].append(f"{local:%Y-%m}")
    columns: dict[str, Sequence[int | str]] = {"quarter": range(first, end)}
    for name, of_quarters in labels.items():
        begins: dict[str, int] = {}  # labels do not sort by time where the clock repeats an hour
        columns[f"{name}_label"] = of_quarters
        columns[f"{name}_first"] = [begins.setdefault(label, place) for place, label in enumerate(of_quarters, first)]
    return pa.table(columns)
