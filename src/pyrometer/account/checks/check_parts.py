"""Checks of single parts: the file matches the catalog, is sorted, and has no duplicate facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyrometer.account.build.retention import BUILT_KINDS
from pyrometer.model.columns import SCHEMAS
from pyrometer.store import Store, StoreReader, files
from pyrometer.store.catalog import Part, first_row
from pyrometer.store.reader import time_column_of
from pyrometer.store.store import NewPart


class Problem(NamedTuple):
    """A problem in one sentence, and its part. A damaged part is always repaired in the same way. `mend` is for
    other repairs: it repairs the problem and returns what it did."""

    text: str
    part: Part | None = None
    mend: Callable[[Store], str] | None = None


def is_damaged(store: StoreReader, part: Part, digest: str | None) -> bool:
    """Whether the bytes of a part differ from those that were written, if their digest is known."""
    path = store.folder / part.path
    return digest is not None and path.stat().st_size == part.bytes and files.sha256(path) != digest


def as_listed(store: Store, part: Part) -> Iterator[Problem]:
    """A part must have the listed bytes, rows and times, and be readable to its end."""
    path = store.folder / part.path
    size = path.stat().st_size
    time_column = time_column_of(SCHEMAS[part.kind])
    row = first_row(
        store.connection.execute(
            f"SELECT count(*), min({time_column}), max({time_column}), bit_xor(hash(part)) "
            "FROM read_parquet(?) AS part",
            [str(path)],  # the last query reads every column
        )
    )
    rows, oldest, newest, _ = row or (0, None, None, None)
    if size != part.bytes:
        yield Problem(f"{part.path} has {size:,} bytes, {part.bytes:,} are listed: it was changed.", part)
    if rows != part.row_count:
        yield Problem(f"{part.path} has {rows} rows, {part.row_count} are listed.", part)
    if rows and part.kind != "carry" and not part.from_ms <= oldest <= newest < part.to_ms:
        yield Problem(f"{part.path} has rows outside its time.", part)
    if newest != part.newest_ms:
        yield Problem(f"{part.path} has its newest row at {newest}, {part.newest_ms} is listed.", part)


def columns(store: Store, part: Part) -> Iterator[Problem]:
    """A part must have the listed columns: others would be read as absent, or not at all."""
    described = "SELECT column_name FROM (DESCRIBE FROM read_parquet(?))"
    rows = store.connection.execute(described, [str(store.folder / part.path)]).fetchall()
    has, listed = {name for (name,) in rows}, set(part.columns.split(","))
    if has != listed:
        other = ", ".join(sorted(has ^ listed))
        yield Problem(f"{part.path} has other columns than are listed: {other}.", part)


def order(store: Store, part: Part) -> Iterator[Problem]:
    """Facts must be sorted within their part, which keeps parts small and quick to search."""
    if part.kind in BUILT_KINDS:
        return
    schema = SCHEMAS[part.kind]
    there = part.columns.split(",")
    sort = ", ".join(f"coalesce({name}, NULL)" for name in schema.sort if name in there)
    row = first_row(
        store.connection.execute(
            f"SELECT count(*) FROM (SELECT row({sort}) < lag(row({sort})) OVER (ORDER BY file_row_number) AS falls "
            "FROM read_parquet(?, file_row_number = true)) WHERE falls",
            [str(store.folder / part.path)],
        )
    )
    if row and row[0]:
        text = f"{part.path} is not sorted: {row[0]:,} rows come after one that they belong before."
        yield Problem(text, mend=lambda store: _write_again(store, part))


def keys(store: Store, part: Part) -> Iterator[Problem]:
    """A fact must not be repeated in a part, or in two parts of the same hour or day."""
    beside = [one for one in store.parts(part.kind) if one.from_ms == part.from_ms]
    if part.kind in BUILT_KINDS or part != beside[0]:
        return
    schema = SCHEMAS[part.kind]
    there = set.intersection(*(set(one.columns.split(",")) for one in beside))
    key = ", ".join(name for name in schema.key if name in there)
    paths = [str(store.folder / one.path) for one in beside]
    hashed = f"SELECT count(*) - count(DISTINCT hash({key})) FROM read_parquet(?)"
    row = first_row(store.connection.execute(hashed, [paths]))
    if row and row[0]:  # two different facts may have the same hash, which is rare and checked
        exact = f"SELECT sum(times - 1) FROM (SELECT count(*) AS times FROM read_parquet(?) GROUP BY {key})"
        row = first_row(store.connection.execute(exact, [paths]))
    if row and row[0]:
        text = f"{part.path}: {row[0]:,} {part.kind} rows state what another one states."
        yield Problem(text, mend=lambda store: _write_again(store, part))


def _write_again(store: Store, part: Part) -> str:
    """Rewrites the parts of a partition as one part, each fact once and in order."""
    schema = SCHEMAS[part.kind]
    beside = [one for one in store.parts(part.kind) if one.from_ms == part.from_ms]
    store.expose([part.kind], part.from_ms, part.to_ms, suffix="_of_parts")
    names, key, sort = (", ".join(words) for words in (schema.column_names, schema.key, schema.sort))
    within = f"{time_column_of(schema)} >= {part.from_ms} AND {time_column_of(schema)} < {part.to_ms}"
    store.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE written_again AS SELECT {names} FROM {part.kind}_of_parts WHERE {within} "
        f"QUALIFY row_number() OVER (PARTITION BY {key}) = 1"
    )
    query = f"FROM written_again ORDER BY {sort}"
    store.replace([NewPart(part.kind, part.from_ms, part.to_ms, query, None)])
    rows = sum(one.row_count for one in store.parts(part.kind) if one.from_ms == part.from_ms)
    store.connection.execute("DROP TABLE written_again")
    was = sum(one.row_count for one in beside)
    return f"{part.path} is written again: {rows:,} rows of {was:,}, each fact once and in order."
