"""A data folder: how it is recognized, and how its database is opened and brought up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from pyrometer.model.columns import SCHEMAS
from pyrometer.store import catalog
from pyrometer.store.catalog import CatalogError
from pyrometer.store.errors import StoreBrokenError, StoreBusyError, StoreError
from pyrometer.store.inbox import of_training
from pyrometer.store.opening import REPAIR, RETRY, connect, why_not

DATABASE, MANIFEST = "pyrometer.duckdb", "manifest.json"


def data_folders(inside: Path, most: int = 5) -> list[str]:
    """The data folders in a folder, as suggestions. One that only `pyrometer run` has written to has just an inbox."""
    with suppress(OSError):
        found = {path for path in inside.iterdir() if (path / DATABASE).exists() or of_training(path).folder.is_dir()}
        return sorted(map(str, found))[:most]
    return []


def refuse_other_folder(folder: Path) -> None:
    """Refuses a folder that is not a data folder, with suggestions."""
    if (folder / DATABASE).exists():
        return
    if _has_parts(folder):
        raise _missing(folder)
    near = data_folders(folder.parent)
    ways = f"Next to it: {', '.join(near)}." if near else "Create one with `pyrometer run`, `demo` or `import`."
    wrong = f"it has no {DATABASE}" if folder.is_dir() else "there is no such folder"
    raise StoreError(f"{folder} is not a Pyrometer data folder ({wrong}). {ways} Choose another with --data DIR.")


@contextmanager
def system_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the operating system into one sentence about the folder."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or folder} cannot be opened: {error.strerror}. {RETRY}") from None


def open_database(folder: Path, wait_s: float) -> duckdb.DuckDBPyConnection:
    """Opens the database of a folder and brings it up to date. Leftovers of a crash are removed."""
    path = folder / DATABASE
    has_parts = _has_parts(folder)
    if path.exists() and not path.stat().st_size and not has_parts and not (folder / MANIFEST).exists():
        path.unlink()  # the first start was killed before it wrote anything
    if has_parts and not path.exists():
        raise _missing(folder)
    connection = prepare_database(path, folder, wait_s)
    try:
        for leftover in catalog.unlisted_files(connection, folder):
            leftover.unlink()
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_database(path: Path, folder: Path, wait_s: float = 0.0) -> duckdb.DuckDBPyConnection:
    """Opens a database, brings it up to date and checks its catalog: paths and names from it reach SQL and files."""
    connection = _connect(path, folder, wait_s)
    try:
        if catalog.is_new(connection) and _has_parts(folder):
            # its write-ahead log is gone, or it is not the right file
            raise _unlisted(folder, f"an empty {DATABASE}")
        catalog.prepare(connection)
        catalog.refuse_unknown(connection, {name: schema.column_names for name, schema in SCHEMAS.items()})
        catalog.refuse_invalid(connection)
        _widen_hot_tables(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, CatalogError):
            raise StoreError(f"{folder} cannot be opened: {error}.") from None
        if isinstance(error, duckdb.Error):
            raise why_not(path, error) from None
        raise
    return connection


def _connect(path: Path, folder: Path, wait_s: float) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return connect(path, reads_of(folder))
        except StoreBusyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def _widen_hot_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Adds new columns to the hot tables of an older version, and widens the types that have become wider."""
    tables = catalog.hot_tables(connection)
    if not tables:  # the query below would double the time to open a folder
        return
    listed = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    known = {(table, column): kind for table, column, kind in connection.execute(listed).fetchall()}
    for table in tables:
        for column in SCHEMAS[table.kind].columns:
            kind = known.get((table.name, column.name))
            if column.nullable and kind is None:
                connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.duckdb_type}")
            elif kind not in (None, column.duckdb_type):
                connection.execute(f"ALTER TABLE {table.name} ALTER {column.name} TYPE {column.duckdb_type}")


def reads_of(folder: Path) -> list[Path]:
    """The folders that SQL may read: the data folder, and its parts if they are on another disk."""
    return [folder.absolute(), (folder / "parts").resolve()]


def _has_parts(folder: Path) -> bool:
    return any((folder / "parts").rglob("*.parquet"))


def _missing(folder: Path) -> StoreError:
    """The error for a folder that has parts and no database. A database on an unmounted volume is not lost."""
    path = folder / DATABASE
    if path.is_symlink():
        return StoreError(f"{path} is a link to {path.readlink()}, which is missing. {RETRY}")
    return _unlisted(folder, f"no {DATABASE}")


def _unlisted(folder: Path, has: str) -> StoreBrokenError:
    return StoreBrokenError(f"{folder} has parts and {has} to list them. {REPAIR.format(folder=folder)}")
