"""The members of a backup: a store at one moment, as files.

Parts never change, so a part that the receiver already has is not sent again. Hot tables, marks of producers and small
files belong to one backup. Acknowledged bodies that are not in the tables yet are in the inbox. The inbox is copied
before the snapshot is taken, so every body is in at least one of them, and keys make it count once.

A backup does not contain tokens (revoked ones would become valid again), the audit log, or the server's address.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Container, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer import __version__
from pyrometer.store import catalog
from pyrometer.store.catalog import HotTable, Part
from pyrometer.store.errors import StoreError
from pyrometer.store.inbox import HALF
from pyrometer.store.part_store import FileEntry, chunks_of
from pyrometer.store.reader import quoted
from pyrometer.store.store import Snapshot, Store
from pyrometer.store.token_marker import had_tokens

FORMAT = 1
CONTENTS = "backup.json"  # the last member: the list of all files, with digests of those that were sent
EXPECTED = "expected.json"  # sent once the snapshot is taken: the amount that follows
INBOX, CLOSED, PARTS, HOT = "inbox", "closed", "parts", "hot"
SMALL = ("settings.yaml", "told.json", "truth.json")
# Other files of a data folder, and those that a restore writes. No backup may contain them.
RESERVED = ("pyrometer.duckdb", "manifest.json", "tokens.json", "audit.log", "server.json", ".restoring")
RESERVED_FOLDERS = ("lost", "tmp", "lake")


class BackupError(StoreError):
    """A backup cannot be taken, or is incomplete. The text names it and the fix."""


SentFiles = dict[str, FileEntry]  # the files that were sent, by path


class BackupMember(NamedTuple):
    """One file of a backup, chunk by chunk."""

    path: str
    size: int  # in bytes
    chunks: Iterable[bytes]


def inbox_members(folder: Path, sent: SentFiles) -> Iterator[BackupMember]:
    """The files in the inbox of a data folder. A file that disappears meanwhile has been stored in the tables."""
    for path in sorted((folder / INBOX).rglob("*")):
        if path.suffix != HALF and path.is_file():
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                continue
            yield _counted(BackupMember(path.relative_to(folder).as_posix(), len(body), [body]), sent)


class BackupSnapshot:
    """A store at one moment. Taking it takes milliseconds, during which nothing is written. It is read while others
    write. `also` are files that the settings name."""

    def __init__(self, store: Store, also: Iterable[Path] = ()) -> None:
        self.taken_ms = time.time_ns() // 1_000_000
        self._folder = store.folder
        self._small = {name: body for name in _named(store.folder, also) if (body := _read(store.folder / name))}
        # a closed month is never changed
        closed = (path for path in (store.folder / CLOSED).glob("*") if path.suffix != HALF and path.is_file())
        self._closed = sorted(path.relative_to(store.folder).as_posix() for path in closed)
        self._had_tokens = had_tokens(store.folder)
        self._snapshot: Snapshot = store.snapshot()

    def close(self) -> None:
        """Releases the snapshot: files that were replaced since may be removed."""
        self._snapshot.close()

    def members(self, have: Container[str], sent: SentFiles) -> Iterator[BackupMember]:
        """Every member except parts that the receiver has, and the inbox, which was sent before. The caller reads each
        member before it requests the next."""
        parts, hot = self._snapshot.parts(), self._snapshot.hot_tables()
        missing = [part for part in parts if part.path not in have]
        expected = json.dumps({"bytes": sum(part.bytes for part in missing), "parts": len(missing)}).encode()
        yield BackupMember(EXPECTED, len(expected), [expected])
        fields = self._catalog(parts, hot)
        for member in chain(self._of_hot(hot), self._of_small()):
            yield _counted(member, sent)
        self._snapshot.connection.execute("COMMIT")  # parts are files, so the database is no longer needed
        for path in self._closed:
            yield _counted(_of_file(self._folder, path), sent)
        for part in missing:
            yield _counted(self._of_part(part), sent)
        files = {part.path: {"bytes": part.bytes} for part in parts} | sent
        contents = json.dumps({**fields, "files": files}, indent=1).encode()
        yield BackupMember(CONTENTS, len(contents), [contents])

    def _catalog(self, parts: list[Part], hot: list[HotTable]) -> dict[str, Any]:
        ask = self._snapshot.connection.execute
        meta = catalog.meta(self._snapshot.connection)
        return {
            "format": FORMAT,
            "pyrometer": __version__,
            "schema_version": int(meta["schema_version"]),
            "taken_ms": self.taken_ms,
            "had_tokens": self._had_tokens,  # a restored folder still requires tokens
            "meta": meta,
            "marks": ask("SELECT producer, sequence FROM marks ORDER BY ALL").fetchall(),
            "rejections": ask("SELECT kind, reason, row_count FROM rejections ORDER BY ALL").fetchall(),
            "hot": [table._asdict() for table in hot],
            "parts": [part._asdict() for part in parts],
        }

    def _of_hot(self, tables: list[HotTable]) -> Iterator[BackupMember]:
        """Hot tables as Parquet, with rows in the order of their arrival: of rows that state the same fact, the first
        one counts."""
        spare = self._folder / "tmp"
        spare.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="backup-", dir=spare) as made:
            for table in tables:
                path = Path(made) / f"{table.name}.parquet"
                self._snapshot.connection.execute(
                    f"COPY (FROM {table.name} ORDER BY rowid) TO '{quoted(path)}' (FORMAT parquet, COMPRESSION zstd)"
                )
                yield BackupMember(f"{HOT}/{path.name}", path.stat().st_size, chunks_of(path))
                path.unlink()

    def _of_small(self) -> Iterator[BackupMember]:
        for name, body in self._small.items():
            yield BackupMember(name, len(body), [body])

    def _of_part(self, part: Part) -> BackupMember:
        way_out = "`pyrometer check DIR` says what is wrong with a data folder."
        try:
            member = _of_file(self._folder, part.path)
        except FileNotFoundError:
            raise BackupError(f"{part.path} is listed and missing: no backup was taken. {way_out}") from None
        if member.size != part.bytes:
            raise BackupError(
                f"{part.path} has {member.size:,} bytes, {part.bytes:,} are listed: no backup was taken. {way_out}"
            )
        return member


def clear_leftovers(folder: Path) -> None:
    """Removes the leftovers of a killed backup from a data folder."""
    for left in (folder / "tmp").glob("backup-*"):
        shutil.rmtree(left, ignore_errors=True)


def _named(folder: Path, also: Iterable[Path]) -> list[str]:
    """The names of the small files to back up: those of every data folder, and those of `also` that are in this one."""
    inside = [path.resolve() for path in also]
    root = folder.resolve()
    more = [path.relative_to(root).as_posix() for path in inside if path.is_relative_to(root)]
    return list(dict.fromkeys((*SMALL, *more)))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return None


def _of_file(folder: Path, path: str) -> BackupMember:
    return BackupMember(path, (folder / path).stat().st_size, chunks_of(folder / path))


def _counted(member: BackupMember, sent: SentFiles) -> BackupMember:
    """The same member, which adds its size and digest to `sent` after it is read."""

    def passing() -> Iterator[bytes]:
        digest, size = hashlib.sha256(), 0
        for chunk in member.chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk
        if size != member.size:
            raise BackupError(f"{member.path} changed while it was read: no backup was taken. Take it again.")
        sent[member.path] = FileEntry(bytes=size, sha256=digest.hexdigest())

    return member._replace(chunks=passing())
