"""Verifies a data folder: every listed file is there and whole, and the ledger keeps its laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import duckdb

from pyrometer.model.states import STATE
from pyrometer.store import Store
from pyrometer.store.catalog import Part


def problems(store: Store, progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[str]:
    """What is wrong, one sentence each; nothing when all is well."""
    parts = store.parts()
    store.expose_all(["node"])
    for done, part in enumerate(parts):
        progress(done, len(parts))
        found = list(_file(store, part))
        yield from found
        if part.kind == "ledger_row" and not found:
            yield from _ledger(store, part)
    yield from _overlaps([part for part in parts if part.kind == "ledger_row"])
    progress(len(parts), len(parts))


def _file(store: Store, part: Part) -> Iterator[str]:
    path = store.folder / part.path
    if not path.exists():
        yield f"{part.path} is listed and missing: {part.row_count} {part.kind} rows are lost."
        return
    time_column = "minute_ms" if part.kind == "ledger_row" else "time_ms"
    try:
        row = store.connection.execute(
            f"SELECT count(*), min({time_column}), max({time_column}) FROM read_parquet(?)", [str(path)]
        ).fetchone()
    except duckdb.Error as error:
        yield f"{part.path} cannot be read: {str(error).splitlines()[0]}"
        return
    rows, oldest, newest = row or (0, None, None)
    if rows != part.row_count:
        yield f"{part.path} has {rows} rows, {part.row_count} are listed."
    elif rows and part.kind != "carry" and not part.from_ms <= oldest <= newest < part.to_ms:
        yield f"{part.path} has rows outside its time."


# The laws of the ledger; what breaks one is counted.
_LAWS = {
    "rows are negative, empty or over a minute": "SELECT count(*) FROM part WHERE ms <= 0 OR ms > 60000",
    "rows are in a state that does not exist": "SELECT count(*) FROM part WHERE NOT list_contains($states, state)",
    "rows stand twice": "SELECT count(*) FROM (SELECT 1 FROM part GROUP BY minute_ms, node_uid, slot_index, pod_uid, "
    "attempt, state, evidence, usd_micro_per_hour HAVING count(*) > 1)",
    "slot-minutes of nodes do not have 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM part SEMI JOIN node "
    "USING (node_uid) GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) != 60000)",
    "slot-minutes have more than 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM part "
    "GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) > 60000)",
}


def _ledger(store: Store, part: Part) -> Iterator[str]:
    path = str(store.folder / part.path).replace("'", "''")
    store.connection.execute(f"CREATE OR REPLACE TEMP VIEW part AS FROM read_parquet('{path}')")
    for law, query in _LAWS.items():
        values = {"states": list(STATE)} if "$states" in query else {}
        row = store.connection.execute(query, values).fetchone()
        if row and row[0]:
            yield f"{part.path}: {row[0]:,} {law}."


def _overlaps(parts: list[Part]) -> Iterator[str]:
    for part, following in pairwise(sorted(parts, key=lambda part: part.from_ms)):
        if following.from_ms < part.to_ms:
            yield f"{part.path} and {following.path} are about the same hours."
