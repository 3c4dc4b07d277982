"""Replays a simulated night: copies its records into another folder in order of arrival."""

from __future__ import annotations

from pyrometer.model.columns import SCHEMAS, derived_kinds
from pyrometer.store import Store


def replay(night: Store, live: Store, after_ms: int, until_ms: int) -> int:
    """Copies the records that arrive between two times, and returns their number."""
    kinds = [kind for kind in SCHEMAS if kind not in derived_kinds()]
    night.expose_all(kinds)
    tables = {}
    for kind in kinds:
        # a step window is sent when it ends
        arrival = "to_ms" if kind == "step_window" else "time_ms"
        found = night.connection.sql(f"FROM {kind} WHERE {arrival} > {int(after_ms)} AND {arrival} <= {int(until_ms)}")
        table = found.to_arrow_table()
        if table.num_rows:
            tables[kind] = table
    live.append_tables(tables)
    return sum(table.num_rows for table in tables.values())
