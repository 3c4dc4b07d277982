"""Checks of the catalog, hot tables, marks, and facts that refer to others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from pyrometer.account.build.retention import kept_from_ms
from pyrometer.account.checks.check_parts import Problem
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.states import CAUSES, STATE
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store import Store
from pyrometer.store.catalog import first_row
from pyrometer.store.catalog import manifest as manifest_of
from pyrometer.store.data_folder import MANIFEST
from pyrometer.store.reader import time_column_of


def manifest(store: Store) -> Iterator[Problem]:
    """The manifest must list what the catalog lists, because other engines read it."""
    path = store.folder / MANIFEST
    if not path.is_file() or path.read_bytes() != manifest_of(store.parts()).encode():
        yield Problem(f"{MANIFEST} does not list what the catalog lists.", mend=_write_manifest)


def _write_manifest(store: Store) -> str:
    store.write_manifest()
    return f"{MANIFEST} was written again."


def hot_tables(store: Store) -> Iterator[Problem]:
    """Every hot table must be listed once, and contain only rows of its time."""
    ask = store.connection.execute
    listed = store.hot_tables()
    tables = ask("SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'hot\\_%' ESCAPE '\\' AND NOT temporary")
    for name in sorted({name for (name,) in tables.fetchall()} - {table.name for table in listed}):
        yield Problem(f"The hot table {name} is not listed: its rows are not read.")
    places = [(table.kind, table.from_ms) for table in listed]
    for kind, from_ms in sorted({place for place in places if places.count(place) > 1}):
        yield Problem(f"Two hot tables of {kind} cover the same time ({from_ms}).")
    for table in listed:
        schema = SCHEMAS[table.kind]
        column = time_column_of(schema)
        outside = f"SELECT count(*) FROM {table.name} WHERE {column} < ? OR {column} >= ?"
        row = first_row(ask(outside, [table.from_ms, table.from_ms + schema.partition_ms]))
        if row and row[0]:
            yield Problem(f"{row[0]:,} hot {table.kind} rows are outside the time of their table.")


def marks(store: Store) -> Iterator[Problem]:
    """The batches of a producer are counted from zero."""
    below = "SELECT producer, sequence FROM marks WHERE sequence < 0 ORDER BY producer"
    for producer, sequence in store.connection.execute(below).fetchall():
        yield Problem(
            f"The mark of {producer} is {sequence}: its batches would count twice.", mend=_forgetting(producer)
        )


def _forgetting(producer: str) -> Callable[[Store], str]:
    def forget(store: Store) -> str:
        store.connection.execute("DELETE FROM marks WHERE producer = ?", [producer])
        return f"The mark of {producer} was removed: its next batch counts."

    return forget


def restatements(store: Store) -> Iterator[Problem]:
    """Restatements must have existing states."""
    store.expose_all(["restatement"])
    wrong = "SELECT count(*) FROM restatement WHERE NOT list_contains(?, state)"
    row = first_row(store.connection.execute(wrong, [list(STATE)]))
    if row and row[0]:
        yield Problem(f"{row[0]:,} restatements have an unknown state.")


def findings(store: Store) -> Iterator[Problem]:
    """Findings must have existing causes, and must not claim more time than there was."""
    if not store.has("finding"):
        return
    store.expose_all(["finding", "ledger_row"])
    ask = store.connection.execute
    wrong = "SELECT count(*) FROM finding WHERE NOT list_contains(?, cause) OR to_ms < from_ms OR gpu_ms < 0"
    row = first_row(ask(wrong, [list(CAUSES)]))
    if row and row[0]:
        yield Problem(f"{row[0]:,} findings have an unknown cause, end before they start, or claim less than zero.")
    minutes = ask("SELECT minute_ms, sum(ms)::BIGINT FROM ledger_row GROUP BY ALL ORDER BY ALL").fetchall()
    times = [minute_ms for minute_ms, _ in minutes]
    until = [0, *accumulate(ms for _, ms in minutes)]
    query = "SELECT finding_id, from_ms, to_ms, gpu_ms FROM finding WHERE from_ms >= ? ORDER BY ALL"
    for finding_id, from_ms, to_ms, gpu_ms in ask(query, [kept_from_ms(store)]).fetchall():
        there_ms = until[bisect_left(times, to_ms + MS_PER_MINUTE)] - until[bisect_left(times, from_ms - MS_PER_MINUTE)]
        if gpu_ms > there_ms:
            yield Problem(f"Finding {finding_id} claims {gpu_ms:,} ms; all GPUs together had {there_ms:,} then.")
