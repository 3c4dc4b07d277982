"""The catalog: the hot tables and Parquet parts of the store, and the batches that it has received.

It is in the DuckDB file with the hot tables, so one transaction changes both. Queries ignore Parquet files that it does
not list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from pyrometer.store import files
from pyrometer.store.grammar import (
    HOT_PATTERN,
    MAX_TIME_MS,
    PART_PATTERN,
    Columns,
    Count,
    GrammarError,
    HotName,
    Int,
    Kind,
    PartPath,
    Text,
    TimeMs,
    check_meta,
    shown,
)

SCHEMA_VERSION = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS marks (producer VARCHAR PRIMARY KEY, sequence BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS rejections (kind VARCHAR, reason VARCHAR, row_count BIGINT, PRIMARY KEY (kind, reason));
CREATE TABLE IF NOT EXISTS hot (kind VARCHAR NOT NULL, from_ms BIGINT NOT NULL, name VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    kind VARCHAR NOT NULL, from_ms BIGINT NOT NULL, to_ms BIGINT NOT NULL, path VARCHAR NOT NULL,
    row_count BIGINT NOT NULL, bytes BIGINT NOT NULL, newest_ms BIGINT, columns VARCHAR NOT NULL, digest VARCHAR
);
CREATE TABLE IF NOT EXISTS written (path VARCHAR NOT NULL, sha256 VARCHAR NOT NULL);
"""

# Migrations from version N to N + 1. New columns of records need none: parts list their columns. A restored backup has
# the current tables with rows of its version, so a migration adds columns IF NOT EXISTS.
MIGRATIONS: dict[int, Callable[[duckdb.DuckDBPyConnection], None]] = {}


class CatalogError(Exception):
    """The catalog cannot be used. The text gives the reason and the fix."""


class Part(NamedTuple):
    """One sealed Parquet file: rows of one kind with times in [from_ms, to_ms)."""

    kind: Kind
    from_ms: TimeMs
    to_ms: TimeMs
    path: PartPath  # relative to the data folder
    row_count: Count
    bytes: Count
    newest_ms: Int | None
    columns: Columns  # comma-separated
    digest: Text | None = None  # of the inputs of a derived part


class HotTable(NamedTuple):
    """One hot table: rows of one kind and partition that are not sealed yet."""

    kind: Kind
    from_ms: TimeMs
    name: HotName


def is_new(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a database is empty. A database of another program is refused."""
    with suppress(duckdb.CatalogException):
        connection.execute("FROM meta LIMIT 0")
        return False
    if first_row(connection.execute("SELECT 1 FROM duckdb_tables() LIMIT 1")):
        raise CatalogError("its database is not one of Pyrometer: put the right file back, or restore a backup")
    return True


def prepare(
    connection: duckdb.DuckDBPyConnection,
    version: int = SCHEMA_VERSION,
    migrations: dict[int, Callable[[duckdb.DuckDBPyConnection], None]] | None = None,
) -> None:
    """Creates the catalog, or migrates an older one, one version at a time."""
    connection.execute(_TABLES)
    row = first_row(connection.execute("SELECT value FROM meta WHERE name = 'schema_version'"))
    found = int(row[0]) if row else version
    if found > version:
        raise CatalogError(
            f"it was written by a newer Pyrometer (schema {found}, this one knows {version}): upgrade Pyrometer"
        )
    if row and found == version:
        return  # a folder that is only read is not written to
    steps = MIGRATIONS if migrations is None else migrations
    with transaction(connection):
        for step in range(found, version):
            if step not in steps:
                raise CatalogError(f"there is no way from schema {step} to {step + 1}: import the data again")
            steps[step](connection)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(version)])


def refuse_invalid(connection: duckdb.DuckDBPyConnection) -> None:
    """Refuses a catalog with names, paths or times that Pyrometer does not write: the file was edited.

    Call it after `refuse_unknown`, because a newer version may name its files differently."""
    fits = "coalesce(regexp_full_match({0}, ?) AND regexp_extract({0}, ?, 1) = kind, false)"
    times = f"from_ms BETWEEN 0 AND {MAX_TIME_MS}"
    for table, name, pattern in (("parts", "path", PART_PATTERN), ("hot", "name", HOT_PATTERN)):
        wrong = f"SELECT {name} FROM {table} WHERE NOT ({fits.format(name)} AND {times}) LIMIT 1"
        row = first_row(connection.execute(wrong, [pattern, pattern]))
        if row:
            raise CatalogError(f"its catalog lists {shown(row[0])}, which Pyrometer did not write: restore a backup")
    try:
        check_meta(meta(connection))
    except GrammarError as error:
        raise CatalogError(f"Pyrometer did not write its catalog ({error}): restore a backup") from None


def refuse_unknown(connection: duckdb.DuckDBPyConnection, known: Mapping[str, Collection[str]]) -> None:
    """Refuses a folder with unknown record kinds or columns: they would be lost when an hour is sealed."""
    for kind, columns in connection.execute("SELECT DISTINCT kind, columns FROM parts").fetchall():
        more = set(columns.split(",")) - set(known.get(kind, ()))
        if kind not in known or more:
            what = f"`{min(more)}` of {kind} records" if kind in known else f"{kind} records"
            raise CatalogError(
                f"it was written by a newer Pyrometer (it has {what}, which this one does not know): upgrade Pyrometer"
            )
    for table in hot_tables(connection):
        if table.kind not in known:
            raise CatalogError(
                f"it was written by a newer Pyrometer (it has {table.kind} records, which this one does not know): "
                "upgrade Pyrometer"
            )


class transaction:  # noqa: N801 - reads as a statement
    """`with transaction(connection):` commits at the end, or rolls back after an exception."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def parts(connection: duckdb.DuckDBPyConnection, kind: str | None = None) -> list[Part]:
    """The listed parts, oldest first."""
    listed = (Part(*row) for row in connection.execute("SELECT * FROM parts").fetchall())
    return sorted((part for part in listed if kind in (None, part.kind)), key=lambda p: (p.kind, p.from_ms, p.path))


def list_parts(connection: duckdb.DuckDBPyConnection, new: Iterable[Part], folder: Path | None = None) -> None:
    """Adds parts to the catalog, with the digests of their files if `folder` is given. The caller has a transaction."""
    for part in new:
        connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", list(part))
        if folder is not None:
            connection.execute("INSERT INTO written VALUES (?, ?)", [part.path, files.sha256(folder / part.path)])


def unlist_parts(connection: duckdb.DuckDBPyConnection, old: Iterable[Part]) -> None:
    """Removes parts from the catalog. The caller has a transaction."""
    for part in old:
        connection.execute("DELETE FROM parts WHERE path = ?", [part.path])
        connection.execute("DELETE FROM written WHERE path = ?", [part.path])


def digests(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The SHA-256 of parts when they were written, by path. Parts of older versions have none."""
    return dict(connection.execute("SELECT path, sha256 FROM written").fetchall())


def hot_tables(connection: duckdb.DuckDBPyConnection, kind: str | None = None) -> list[HotTable]:
    """The hot tables, oldest first."""
    listed = (HotTable(*row) for row in connection.execute("SELECT kind, from_ms, name FROM hot").fetchall())
    return sorted(table for table in listed if kind in (None, table.kind))


def first_row(result: duckdb.DuckDBPyConnection) -> tuple[Any, ...] | None:
    """The first row of a small result. All rows are fetched, because unfetched ones keep the connection busy."""
    rows = result.fetchall()
    return rows[0] if rows else None


def mark_of(connection: duckdb.DuckDBPyConnection, producer: str) -> int:
    """The sequence number of the last stored batch of a producer; -1 if there is none."""
    row = first_row(connection.execute("SELECT sequence FROM marks WHERE producer = ?", [producer]))
    return int(row[0]) if row else -1


def meta(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The small texts that are stored with the data."""
    return dict(connection.execute("SELECT name, value FROM meta").fetchall())


def manifest(listed_parts: Iterable[Part]) -> str:
    """The listed parts as JSON, for engines that read the folder without the DuckDB file."""
    listed = [part._asdict() for part in listed_parts]
    return json.dumps({"schema_version": SCHEMA_VERSION, "parts": listed}, indent=1)


def unlisted_files(connection: duckdb.DuckDBPyConnection, folder: Path) -> list[Path]:
    """Parquet files that are not listed, because a crash interrupted sealing."""
    listed = {folder / part.path for part in parts(connection)}
    return [path for path in (folder / "parts").rglob("*") if path.is_file() and path not in listed]
