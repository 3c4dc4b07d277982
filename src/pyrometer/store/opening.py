"""Opens databases, limits what their SQL can access, and explains why a database cannot be opened.

A repair sets the database aside, so it is only suggested for damage. Other reasons are ruled out first: another
process, the operating system, memory, encryption, another version of DuckDB.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import duckdb

from pyrometer.store.errors import StoreBrokenError, StoreBusyError, StoreError, first_line
from pyrometer.store.reader import quoted

REPAIR = "Run `pyrometer check {folder} --repair` to rebuild what it can from the parts."
PUT_BACK = "put the right file back, or restore a backup."
RETRY = "Fix that and try again: the folder is unchanged."
# Errors of the operating system when a file is opened. DuckDB quotes their texts.
SYSTEM_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EIO,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOLCK,
    errno.ESTALE,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
)
# The storage versions of DuckDB 0.10 to 2.0, which all later versions read. `_own_storage` is that of the installed
# version.
OLDER_STORAGE = range(64, 70)
HEADER = struct.Struct("<8x4sQQ24x32s")  # checksum, magic, storage version, flags, library version
ENCRYPTED = 1  # of the flags
NO_DOWNLOADS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


class Header(NamedTuple):
    """The header of a DuckDB file."""

    storage: int
    is_encrypted: bool
    library: str  # `v2.0.0`; empty in old files


def connect(path: Path | None, reads: Iterable[Path]) -> duckdb.DuckDBPyConnection:
    """Opens a database (None: in memory). Its SQL can access only files below the given folders."""
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=NO_DOWNLOADS)
    except duckdb.Error as error:
        if path is None:
            raise
        raise why_not(path, error) from None
    connection.execute("SET TimeZone = 'UTC'")
    with suppress(duckdb.InvalidInputException):  # notebooks without progress bars have none to switch off
        connection.execute("SET enable_progress_bar = false")  # it would be mixed with answers
    if path is not None:
        connection.execute(f"SET temp_directory = '{quoted(path.parent / 'tmp')}'")
    folders = ", ".join(f"'{quoted(folder)}'" for folder in reads)
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET enable_external_access = false")  # cannot be enabled again
    return connection


def why_not(path: Path, error: duckdb.Error) -> StoreError:
    """The error for a database that cannot be used, with the fix."""
    message = str(error)
    first = first_line(error)
    system = next((os.strerror(code) for code in SYSTEM_ERRORS if os.strerror(code) in message), None)
    if system is not None:
        return StoreError(f"{path} cannot be opened: {system}. {RETRY}")
    if "Could not set lock" in message:
        holder = re.search(r"PID (\d+)", message)
        who = f"process {holder[1]}" if holder else "another process"
        return StoreBusyError(
            f"{path.parent} is in use by {who}: a data folder admits one process at a time. Wait for it, or stop it."
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return StoreError(f"{path} cannot be opened: not enough memory ({first}). {RETRY}")
    if isinstance(error, duckdb.ConnectionException):  # open in this process; closing it here would end DuckDB's lock
        return StoreError(f"{path} cannot be opened: {first}.")
    try:
        header = _header(path)
    except OSError as trouble:
        return StoreError(f"{path} cannot be opened: {trouble.strerror}. {RETRY}")
    if header is None:
        return _not_duckdb(path)
    if header.is_encrypted:
        return StoreError(f"{path} is an encrypted DuckDB database, which Pyrometer does not write: {PUT_BACK}")
    if "version number" in message or _is_of_another_version(header):
        return StoreError(_upgrade(path, header))
    if isinstance(error, duckdb.ProgrammingError) and not isinstance(error, duckdb.InvalidInputException):
        return StoreError(f"{path} is a DuckDB database, but not one of Pyrometer ({first}): {PUT_BACK}")
    return StoreBrokenError(f"{path} is damaged: {first}. {REPAIR.format(folder=path.parent)}")


def _header(path: Path) -> Header | None:
    """The beginning of a file; None when it is not a DuckDB database."""
    with path.open("rb") as stream:
        start = stream.read(HEADER.size)
    if len(start) < HEADER.size:
        return None
    magic, storage, flags, library = HEADER.unpack(start)
    if magic != b"DUCK":
        return None
    return Header(storage, bool(flags & ENCRYPTED), library.split(b"\0")[0].decode("ascii", "replace"))


def _not_duckdb(path: Path) -> StoreError:
    """The error for a file that is not a DuckDB database. Without parts, there is nothing to repair from."""
    what = "is empty" if not path.stat().st_size else "is not a DuckDB database"
    if any((path.parent / "parts").rglob("*.parquet")):
        return StoreBrokenError(
            f"{path} {what}: put the right file back if you have it. {REPAIR.format(folder=path.parent)}"
        )
    return StoreError(f"{path} {what}: {PUT_BACK}")


def _is_of_another_version(header: Header) -> bool:
    """Whether the installed DuckDB may be unable to read a file with this header."""
    is_known = header.storage in OLDER_STORAGE or header.storage == _own_storage()
    return not is_known or _numbers(header.library) > _numbers(duckdb.__version__)


def _upgrade(path: Path, header: Header) -> str:
    wrote = f"DuckDB {header.library.removeprefix('v')}" if header.library else "another version of DuckDB"
    problem = (
        f"{path} was written by {wrote} (storage version {header.storage}), and the installed DuckDB "
        f"{duckdb.__version__} cannot read it: "
    )
    if header.storage < OLDER_STORAGE.start:
        return f"{problem}open it with the version that wrote it, or restore a backup."
    return f"{problem}upgrade with `pip install --upgrade pyrometer duckdb`. The data is intact."


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version; an empty tuple, which is less than all others, if it has none."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


@cache
def _own_storage() -> int:
    """The storage version that the installed DuckDB writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.duckdb"
        duckdb.connect(str(path)).close()
        header = _header(path)
    return header.storage if header else 0
