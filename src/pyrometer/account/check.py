"""Verifies a data folder: every listed file is there and whole, and the ledger keeps its laws."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.states import STATE
from pyrometer.store import Store


def problems(store: Store) -> Iterator[str]:
    """What is wrong, one sentence each; nothing when all is well."""
    broken = list(_files(store))
    yield from broken
    if not broken:
        yield from _ledger(store)


def _files(store: Store) -> Iterator[str]:
    for part in store.parts():
        path = store.folder / part.path
        if not path.exists():
            yield f"{part.path} is listed and missing: {part.row_count} {part.kind} rows are lost."
            continue
        time_column = "minute_ms" if part.kind == "ledger_row" else "time_ms"
        try:
            row = store.connection.execute(
                f"SELECT count(*), min({time_column}), max({time_column}) FROM read_parquet(?)", [str(path)]
            ).fetchone()
        except duckdb.Error as error:
            yield f"{part.path} cannot be read: {str(error).splitlines()[0]}"
            continue
        rows, oldest, newest = row or (0, None, None)
        if rows != part.row_count:
            yield f"{part.path} has {rows} rows, {part.row_count} are listed."
        if rows and part.kind in SCHEMAS and part.digest is None and not part.from_ms <= oldest <= newest < part.to_ms:
            yield f"{part.path} has rows outside its time."


def _ledger(store: Store) -> Iterator[str]:
    store.expose_all(["ledger_row", "node"])
    known = ", ".join(f"'{name}'" for name in STATE)
    laws = {
        "ledger rows are negative, empty or over a minute": "SELECT count(*) FROM ledger_row "
        "WHERE ms <= 0 OR ms > 60000",
        "ledger rows are in a state that does not exist": "SELECT count(*) FROM ledger_row "
        f"WHERE state NOT IN ({known})",
        "ledger rows stand twice": "SELECT count(*) - count(DISTINCT (minute_ms, node_uid, slot_index, pod_uid, "
        "attempt, state, evidence, usd_micro_per_hour)) FROM ledger_row",
        "slot-minutes of nodes do not have 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM ledger_row "
        "SEMI JOIN node USING (node_uid) GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) != 60000)",
        "slot-minutes have more than 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM ledger_row "
        "GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) > 60000)",
    }
    for law, query in laws.items():
        row = store.connection.execute(query).fetchone()
        if row and row[0]:
            yield f"{row[0]:,} {law}."
