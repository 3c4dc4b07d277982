"""Verifies a data folder: every listed file is there and whole, and the ledger keeps its laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import duckdb

from pyrometer.account.retention import kept_from_ms
from pyrometer.model.states import STATE
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store
from pyrometer.store.catalog import Part, first_row
from pyrometer.store.reading import quoted


class Problem(NamedTuple):
    """What is wrong, in one sentence, and with which part."""

    text: str
    part: Part | None = None


def problems(store: Store, progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[Problem]:
    """What is wrong; nothing when all is well."""
    parts = store.parts()
    store.expose_all(["node", "slot"])
    unread = False
    for done, part in enumerate(parts):
        progress(done, len(parts))
        try:
            yield from (Problem(text, part) for text in _file(store, part))
            if part.kind == "ledger_row":
                yield from (Problem(text, part) for text in _ledger(store, part))
            if part.kind in ("hour_sum", "minute_sum"):
                yield from (Problem(text, part) for text in _sums(store, part))
        except FileNotFoundError:
            unread = True
            yield Problem(f"{part.path} is listed and missing: {part.row_count} {part.kind} rows are lost.", part)
        except duckdb.Error as error:
            unread = True
            yield Problem(f"{part.path} cannot be read: {str(error).splitlines()[0]}", part)
    if not unread:
        yield from map(Problem, _lives(store))
    yield from _overlaps([part for part in parts if part.kind == "ledger_row"])
    progress(len(parts), len(parts))


def _file(store: Store, part: Part) -> Iterator[str]:
    path = store.folder / part.path
    size = path.stat().st_size
    time_column = "minute_ms" if part.kind == "ledger_row" else "time_ms"
    row = first_row(
        store.connection.execute(
            f"SELECT count(*), min({time_column}), max({time_column}), bit_xor(hash(part)) "
            "FROM read_parquet(?) AS part",
            [str(path)],  # the last of it reads every column
        )
    )
    rows, oldest, newest, _ = row or (0, None, None, None)
    if size != part.bytes:
        yield f"{part.path} has {size:,} bytes, {part.bytes:,} are listed: it was changed."
    if rows != part.row_count:
        yield f"{part.path} has {rows} rows, {part.row_count} are listed."
    if rows and part.kind != "carry" and not part.from_ms <= oldest <= newest < part.to_ms:
        yield f"{part.path} has rows outside its time."


# The laws of the ledger; what breaks one is counted.
_LAWS = {
    "rows are negative, empty or over a minute": "SELECT count(*) FROM part WHERE ms <= 0 OR ms > 60000",
    "rows are in a state that does not exist": "SELECT count(*) FROM part WHERE NOT list_contains($states, state)",
    "rows stand twice": "SELECT count(*) FROM (SELECT 1 FROM part GROUP BY minute_ms, node_uid, slot_index, pod_uid, "
    "attempt, state, evidence, usd_micro_per_hour HAVING count(*) > 1)",
    # a device that its node never showed is there only while it is held
    "slot-minutes of nodes do not have 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM part SEMI JOIN node "
    "ON node.node_uid = part.node_uid AND node.gpu_count > part.slot_index AND node.present "
    "GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) != 60000)",
    "slot-minutes have more than 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM part "
    "GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) > 60000)",
}


def _ledger(store: Store, part: Part) -> Iterator[str]:
    path = str(store.folder / part.path).replace("'", "''")
    store.connection.execute(f"CREATE OR REPLACE TEMP VIEW part AS FROM read_parquet('{path}')")
    for law, query in _LAWS.items():
        values = {"states": list(STATE)} if "$states" in query else {}
        row = first_row(store.connection.execute(query, values))
        if row and row[0]:
            yield f"{part.path}: {row[0]:,} {law}."


def _sums(store: Store, part: Part) -> Iterator[str]:
    """What was summed up is what the ledger's rows add up to, in every hour, state and price."""
    rows = [one.path for one in store.parts("ledger_row") if (one.from_ms, one.to_ms) == (part.from_ms, part.to_ms)]
    if not rows:
        yield f"{part.path} adds up a ledger that is not there."
        return
    queries = [
        f"SELECT {time} // {MS_PER_HOUR} AS hour, state, usd_micro_per_hour, {sign}ms AS ms "
        f"FROM read_parquet('{quoted(store.folder / path)}')"
        for path, time, sign in ((rows[0], "minute_ms", ""), (part.path, "time_ms", "-"))
    ]
    wrong = f"SELECT count(*) FROM (SELECT 1 FROM ({' UNION ALL '.join(queries)}) GROUP BY hour, state, "
    row = first_row(store.connection.execute(f"{wrong} usd_micro_per_hour HAVING sum(ms) != 0)"))
    if row and row[0]:
        yield f"{part.path}: {row[0]:,} sums do not add up to the ledger."


def _lives(store: Store) -> Iterator[str]:
    """A slot that says how long it lived has exactly that much time."""
    store.expose_all(["ledger_row"])
    newest = "SELECT node_uid, slot_index, from_ms, to_ms FROM slot WHERE from_ms IS NOT NULL ORDER BY time_ms"
    lives = {(row[0], row[1]): (row[2], row[3]) for row in store.connection.execute(newest).fetchall()}
    nodes = {row[0] for row in store.connection.execute("SELECT DISTINCT node_uid FROM node").fetchall()}
    summed = "SELECT node_uid, slot_index, sum(ms)::BIGINT, max(minute_ms) + 60000 FROM ledger_row GROUP BY ALL"
    rows = store.connection.execute(summed).fetchall() if lives else []
    end_ms = max((row[3] for row in rows), default=0)
    for node_uid, slot_index, ms, _ in rows:
        from_ms, to_ms = lives.get((node_uid, slot_index), (None, None))
        if node_uid in nodes or from_ms is None or to_ms is None or to_ms > end_ms or from_ms < kept_from_ms(store):
            continue
        if ms != to_ms - from_ms:
            yield f"Slot {slot_index} of {node_uid} lived for {to_ms - from_ms:,} ms; the ledger has {ms:,}."


def _overlaps(parts: list[Part]) -> Iterator[Problem]:
    for part, following in pairwise(sorted(parts, key=lambda part: part.from_ms)):
        if following.from_ms < part.to_ms:
            yield Problem(f"{part.path} and {following.path} are about the same hours.", part)
