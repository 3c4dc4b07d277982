"""A catalogue from the parts: for a folder whose DuckDB file is broken or gone, and for a copy of its parts.

When only the write-ahead log is damaged, the new catalogue starts from the database as it was last saved. Otherwise
what was hot (the last hours) and which batches were taken was in the broken file, and is lost.

Facts say by their place what they are and of when. They are never replaced, and each was written without the rows that
lay in others before, so every one that is there counts, also one that a crash left unlisted. What is derived from facts
is not listed; it is built again.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import duckdb

from pyrometer.model.columns import SCHEMAS
from pyrometer.store import catalog, files
from pyrometer.store.catalog import Part
from pyrometer.store.data_folder import DATABASE, prepare_database, reads_of
from pyrometer.store.errors import READ_ERRORS, StoreBrokenError
from pyrometer.store.grammar import MAX_TIME_MS, PART_PATTERN
from pyrometer.store.opening import connect
from pyrometer.store.parts import describe_part

LOST = "lost"  # the folder in which what is broken is kept


class Rebuilt(NamedTuple):
    """What a new catalogue lists, and what could not be read."""

    parts: int
    rows: int
    unread: tuple[str, ...]
    is_saved: bool  # whether it started from the database as it was last saved, with what was not sealed then


def rebuild(folder: Path, derived: Iterable[str], kept_from: str) -> Rebuilt:
    """Gives a folder a new catalogue; the old one, and parts that cannot be read, are put aside. It is there as a whole
    or not at all. `kept_from` is the name of what it says of where derived parts began."""
    derived = frozenset(derived)
    new = folder / f"{DATABASE}.new"  # a catalogue that lists half of the parts would have the others removed
    for left in (new, folder / f"{new.name}.wal"):
        left.unlink(missing_ok=True)
    paths = sorted(path.relative_to(folder) for path in (folder / "parts").rglob("*.parquet"))
    places = [place for place in map(_place, paths) if place is not None]
    began = [place.from_ms for place in places if place.kind in derived]
    unread, listed = [], []
    connection = _saved(folder, new)
    is_saved = connection is not None
    if connection is None:
        connection = connect(new, reads_of(folder))
        catalog.prepare(connection)
    with connection:
        known = {part.path for part in catalog.parts(connection)}
        for place in places:
            if place.kind in derived or place.path in known:
                continue  # the store removes what nobody lists
            try:
                listed.append(describe_part(connection, folder, place))
            except READ_ERRORS:
                unread.append(place.path)
                put_aside(folder, folder / place.path)
        with catalog.transaction(connection):
            catalog.list_parts(connection, listed, folder)
        if began and not is_saved:  # what was forgotten on purpose is not built again from what is left of it
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [kept_from, str(min(began))])
        rows = [part.row_count for part in catalog.parts(connection)]
    for broken in (folder / DATABASE, folder / f"{DATABASE}.wal"):
        if broken.exists():
            put_aside(folder, broken)
    files.publish(new, folder / DATABASE)
    return Rebuilt(len(rows), sum(rows), tuple(unread), is_saved)


def _saved(folder: Path, new: Path) -> duckdb.DuckDBPyConnection | None:
    """A copy of the database as it was last saved, without its write-ahead log; None when that cannot be read, or is
    empty."""
    if not (folder / DATABASE).exists():
        return None
    shutil.copyfile(folder / DATABASE, new)
    try:
        return prepare_database(new, folder)
    except StoreBrokenError:
        for broken in (new, new.with_name(f"{new.name}.wal")):
            broken.unlink(missing_ok=True)
        return None


def put_aside(folder: Path, path: Path) -> Path:
    """Moves a file to `lost/`, under its own name and when that was: nothing is thrown away."""
    to = folder / LOST / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}" / path.relative_to(folder)
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)
    files.fsync_path(to.parent)
    return to


def _place(path: Path) -> Part | None:
    """What a file is by its place; None when it is no part of a kind that is known."""
    told = re.fullmatch(PART_PATTERN, path.as_posix())
    if told is None or told["kind"] not in SCHEMAS:
        return None
    schema = SCHEMAS[told["kind"]]
    try:
        at = datetime.strptime(f"{path.parts[2]} {path.name[:3]}", "%Y-%m-%d %H-").replace(tzinfo=UTC)
    except ValueError:
        return None
    if not 0 <= at.timestamp() * 1000 < MAX_TIME_MS:
        return None
    from_ms = schema.partition_of(round(at.timestamp() * 1000))
    return Part(schema.name, from_ms, from_ms + schema.partition_ms, path.as_posix(), 0, 0, None, "")
