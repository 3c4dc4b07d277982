"""Restores a data folder from a backup, identical to the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb

from pyrometer.model import records  # noqa: F401 - declares the schemas
from pyrometer.model.columns import SCHEMAS
from pyrometer.store import catalog, files, token_marker
from pyrometer.store.backups.backup_contents import Backup
from pyrometer.store.backups.backup_folder import BackupFolder
from pyrometer.store.backups.backup_members import HOT, BackupError
from pyrometer.store.catalog import HotTable, Part
from pyrometer.store.data_folder import DATABASE
from pyrometer.store.errors import READ_ERRORS, first_line
from pyrometer.store.opening import connect
from pyrometer.store.part_store import LocalPartStore
from pyrometer.store.reader import quoted

UNFINISHED = ".restoring"  # marks a folder while it is restored: an unfinished restore can be repeated
FOREIGN = ("lost+found",)  # present on a new volume

AGAIN = "Restore again, or choose another backup with --at."

Progress = Callable[[int, int], None]


def restore(backups: BackupFolder, backup: Backup, into: Path, progress: Progress = lambda done, total: None) -> None:
    """Restores a backup into a data folder. The caller has verified it, and every digest is checked again."""
    _claim(into)
    try:
        _fill_folder(backups, backup, into, progress)
    except OSError as error:
        raise BackupError(f"{error.filename or into} cannot be restored: {error.strerror}. {AGAIN}") from None
    except READ_ERRORS as error:
        raise BackupError(f"{backups.folder / backup.name} cannot be restored: {first_line(error)}. {AGAIN}") from None


def _fill_folder(backups: BackupFolder, backup: Backup, into: Path, progress: Progress) -> None:
    restored = LocalPartStore(into)
    total, done = backup.bytes, 0
    for path, file in backup.files.items():
        progress(done, total)
        done += file["bytes"]
        if path.startswith(f"{HOT}/"):
            continue  # its rows go into the database
        if restored.write(path, backups.chunks(backup, path)) != file:
            raise BackupError(f"{path} changed while it was restored. Restore again.")
    _make_database(backups, backup, into)
    if backup.contents.get("had_tokens", True):  # older backups do not record it
        token_marker.mark(into)
    (into / UNFINISHED).unlink()
    files.fsync_path(into)
    progress(total, total)


def _claim(into: Path) -> None:
    try:
        into.mkdir(parents=True, exist_ok=True)
        there = [path.name for path in into.iterdir() if path.name not in FOREIGN]
    except OSError as error:
        raise BackupError(f"{into} cannot become a data folder: {error.strerror}. Choose another.") from None
    if there and UNFINISHED not in there:
        raise BackupError(f"{into} is not empty ({', '.join(sorted(there)[:3])}…): restore into a new folder.")
    (into / UNFINISHED).touch()


def _make_database(backups: BackupFolder, backup: Backup, into: Path) -> None:
    """Creates the database with the catalog and the hot tables. It gets its final name when it is complete."""
    temporary = into / f"{DATABASE}.tmp"
    for left in (temporary, into / f"{temporary.name}.wal"):
        left.unlink(missing_ok=True)
    contents = backup.contents
    with connect(temporary, [into.absolute(), (backups.folder / backup.name).absolute()]) as connection:
        catalog.prepare(connection)
        with catalog.transaction(connection):
            catalog.list_parts(connection, (Part(**part) for part in contents["parts"]))
            kept = {"meta": contents["meta"].items(), "marks": contents["marks"], "rejections": contents["rejections"]}
            for name, rows in kept.items():
                for row in rows:
                    values = ", ".join("?" * len(row))
                    connection.execute(f"INSERT OR REPLACE INTO {name} VALUES ({values})", list(row))
            for table in (HotTable(**one) for one in contents["hot"]):
                _fill(connection, table, backups.path_of(backup, f"{HOT}/{table.name}.parquet"))
        catalog.prepare(connection)  # brings the catalog of an older version up to date
    files.publish(temporary, into / DATABASE)


def _fill(connection: duckdb.DuckDBPyConnection, table: HotTable, path: Path) -> None:
    """Restores a hot table with its name, which digests of the ledger refer to, and its order of rows."""
    schema = SCHEMAS[table.kind]
    rows = f"read_parquet('{quoted(path)}', file_row_number = true)"
    found = connection.execute(f"SELECT column_name FROM (DESCRIBE FROM {rows})").fetchall()
    there = {name for (name,) in found}
    columns = ", ".join(name for name in schema.column_names if name in there)
    connection.execute(f"CREATE TABLE {table.name} ({schema.duckdb_columns()})")
    connection.execute("INSERT INTO hot VALUES (?, ?, ?)", list(table))
    connection.execute(f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {rows} ORDER BY file_row_number")
