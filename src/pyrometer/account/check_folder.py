"""Checks of the rest of a data folder: the catalogue, hot tables, marks, and facts that say something of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyrometer.account.problems import Problem
from pyrometer.account.retention import kept_from_ms
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.states import CAUSES, STATE
from pyrometer.store import Store, files
from pyrometer.store.catalog import first_row
from pyrometer.store.catalog import manifest as manifest_of
from pyrometer.store.reading import time_column_of

MANIFEST = "manifest.json"


def manifest(store: Store) -> Iterator[Problem]:
    """The manifest lists what the catalogue lists: other engines read by it."""
    path = store.folder / MANIFEST
    if not path.is_file() or path.read_bytes() != manifest_of(store.parts()).encode():
        yield Problem(f"{MANIFEST} does not list what the catalogue lists.", mend=_write_manifest)


def _write_manifest(store: Store) -> str:
    files.write_text(store.folder / MANIFEST, manifest_of(store.parts()))
    return f"{MANIFEST} is written again."


def hot_tables(store: Store) -> Iterator[Problem]:
    """Every hot table is listed, once for its time, and has no rows of another."""
    ask = store.connection.execute
    listed = store.hot_tables()
    tables = ask("SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'hot\\_%' ESCAPE '\\' AND NOT temporary")
    for name in sorted({name for (name,) in tables.fetchall()} - {table.name for table in listed}):
        yield Problem(f"The hot table {name} is not listed: its rows are not read.")
    places = [(table.kind, table.from_ms) for table in listed]
    for kind, from_ms in sorted({place for place in places if places.count(place) > 1}):
        yield Problem(f"Two hot tables of {kind} are about the same time ({from_ms}).")
    for table in listed:
        schema = SCHEMAS[table.kind]
        column = time_column_of(schema)
        outside = f"SELECT count(*) FROM {table.name} WHERE {column} < ? OR {column} >= ?"
        row = first_row(ask(outside, [table.from_ms, table.from_ms + schema.partition_ms]))
        if row and row[0]:
            yield Problem(f"{row[0]:,} hot {table.kind} rows are outside the time of their table.")


def marks(store: Store) -> Iterator[Problem]:
    """A producer's batches are counted from zero."""
    below = "SELECT producer, sequence FROM marks WHERE sequence < 0 ORDER BY producer"
    for producer, sequence in store.connection.execute(below).fetchall():
        yield Problem(
            f"The mark of {producer} is {sequence}: batches of it would count twice.", mend=_forgetting(producer)
        )


def _forgetting(producer: str) -> Callable[[Store], str]:
    def forget(store: Store) -> str:
        store.connection.execute("DELETE FROM marks WHERE producer = ?", [producer])
        return f"The mark of {producer} is forgotten: its next batch counts."

    return forget


def restatements(store: Store) -> Iterator[Problem]:
    """Later evidence changes states to states that there are."""
    store.expose_all(["restatement"])
    wrong = "SELECT count(*) FROM restatement WHERE NOT list_contains(?, state)"
    row = first_row(store.connection.execute(wrong, [list(STATE)]))
    if row and row[0]:
        yield Problem(f"{row[0]:,} restatements are of no state that there is.")


_CLAIMED = """
WITH minute AS (SELECT minute_ms, sum(ms) AS ms FROM ledger_row GROUP BY minute_ms),
said AS (FROM finding WHERE from_ms >= ? QUALIFY row_number() OVER (PARTITION BY finding_id ORDER BY time_ms DESC) = 1)
SELECT finding_id, gpu_ms, coalesce(sum(minute.ms), 0)::BIGINT AS there_ms
FROM said LEFT JOIN minute ON minute_ms >= from_ms - 60000 AND minute_ms < to_ms + 60000
GROUP BY finding_id, gpu_ms HAVING gpu_ms > there_ms ORDER BY finding_id
"""


def findings(store: Store) -> Iterator[Problem]:
    """What was found is of a cause that there is, and claims no more time than there was."""
    if not store.has("finding"):
        return
    store.expose_all(["finding", "ledger_row"])
    ask = store.connection.execute
    wrong = "SELECT count(*) FROM finding WHERE NOT list_contains(?, cause) OR to_ms < from_ms OR gpu_ms < 0"
    row = first_row(ask(wrong, [list(CAUSES)]))
    if row and row[0]:
        yield Problem(f"{row[0]:,} findings are of no cause that there is, end before they begin, or claim below zero.")
    for finding_id, gpu_ms, there_ms in ask(_CLAIMED, [kept_from_ms(store)]).fetchall():
        yield Problem(f"Finding {finding_id} claims {gpu_ms:,} ms; all GPUs together had {there_ms:,} then.")
