"""Rebuilds the catalog from the parts: for a folder whose DuckDB file is damaged or missing, or a copy of its parts.

If only the write-ahead log is damaged, the new catalog starts from the last saved database. Otherwise hot tables (the
last hours) and marks of producers were in the damaged file and are lost.

The path of a part of facts gives its kind and time. Such parts are never replaced and do not repeat rows of earlier
parts, so all of them count, even those that a crash left unlisted. Derived parts are not listed; they are built again.
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

LOST = "lost"  # the folder for damaged files


class Rebuilt(NamedTuple):
    """The contents of a new catalog, and the parts that could not be read."""

    parts: int
    rows: int
    unread: tuple[str, ...]
    is_saved: bool  # whether it started from the last saved database, with its hot tables


def rebuild(folder: Path, derived: Iterable[str], kept_from: str) -> Rebuilt:
    """Replaces the catalog of a folder atomically. The old one, and parts that cannot be read, are set aside. The start
    of the derived parts is recorded as the meta text `kept_from`."""
    derived = frozenset(derived)
    new = folder / f"{DATABASE}.new"  # if it listed only half of the parts, the others would be removed
    for left in (new, folder / f"{new.name}.wal"):
        left.unlink(missing_ok=True)
    paths = sorted(path.relative_to(folder) for path in (folder / "parts").rglob("*.parquet"))
    places = [place for place in map(_part_of, paths) if place is not None]
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
                continue  # the store removes unlisted files
            try:
                listed.append(describe_part(connection, folder, place))
            except READ_ERRORS:
                unread.append(place.path)
                put_aside(folder, folder / place.path)
        with catalog.transaction(connection):
            catalog.list_parts(connection, listed, folder)
        if began and not is_saved:  # dropped time is not rebuilt from its remains
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [kept_from, str(min(began))])
        rows = [part.row_count for part in catalog.parts(connection)]
    for broken in (folder / DATABASE, folder / f"{DATABASE}.wal"):
        if broken.exists():
            put_aside(folder, broken)
    files.publish(new, folder / DATABASE)
    return Rebuilt(len(rows), sum(rows), tuple(unread), is_saved)


def _saved(folder: Path, new: Path) -> duckdb.DuckDBPyConnection | None:
    """A copy of the last saved database without its write-ahead log; None if it cannot be read or is empty."""
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
    """Moves a file to `lost/TIME/`, with its path. Nothing is deleted."""
    to = folder / LOST / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}" / path.relative_to(folder)
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)
    files.fsync_path(to.parent)
    return to


def _part_of(path: Path) -> Part | None:
    """The part that a path describes; None if it is not a part of a known kind."""
    found = re.fullmatch(PART_PATTERN, path.as_posix())
    if found is None or found["kind"] not in SCHEMAS:
        return None
    schema = SCHEMAS[found["kind"]]
    try:
        at = datetime.strptime(f"{path.parts[2]} {path.name[:3]}", "%Y-%m-%d %H-").replace(tzinfo=UTC)
    except ValueError:
        return None
    if not 0 <= at.timestamp() * 1000 < MAX_TIME_MS:
        return None
    from_ms = schema.partition_of(round(at.timestamp() * 1000))
    return Part(
        kind=schema.name,
        from_ms=from_ms,
        to_ms=from_ms + schema.partition_ms,
        path=path.as_posix(),
        row_count=0,
        bytes=0,
        newest_ms=None,
        columns="",
    )
