"""A folder with backups. They share parts, which never change; everything else belongs to one backup.

FOLDER/2026-11-16T10-00-00Z.json   one backup: its catalog, and the size and SHA-256 of every file. Written last
FOLDER/2026-11-16T10-00-00Z/       its hot tables, inbox, closed months and small files
FOLDER/parts/KIND/DATE/…           sealed parts, each stored once even if several backups list it
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.store import files
from pyrometer.store.backups.backup_contents import (
    Backup,
    check_member_name,
    check_sent,
    digest_of_contents,
    is_part,
    read_backup,
)
from pyrometer.store.backups.backup_members import CONTENTS, EXPECTED, PARTS, BackupError, BackupMember
from pyrometer.store.grammar import GrammarError, read_json
from pyrometer.store.part_store import FileEntry, LocalPartStore, chunks_of, entry_of

UNFINISHED = ".taking"  # the files that an unfinished backup has received; the next backup clears them
LOCK = ".lock"
PRIVATE = 0o700  # mode of folders: backups have everything that their data folders have
MAX_EXPECTED_BYTES, MAX_CONTENTS_BYTES = 1 << 10, 1 << 30
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(_\d+)?")

_CHANGED = (
    "{path} is another than in the backups before: was it mended or changed? Take this backup into another folder."
)

Progress = Callable[[int, int], None]


class ReceivedBackup(NamedTuple):
    """A backup, and how many of its bytes were new to the folder."""

    backup: Backup
    parts_copied: int
    bytes_copied: int


class BackupFolder:
    """A local part store with the lists of its backups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = LocalPartStore(folder, folder_mode=PRIVATE)

    def backups(self) -> list[Backup]:
        """The complete backups, oldest first."""
        named = (path for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem))
        return sorted((read_backup(path) for path in named), key=lambda backup: (backup.taken_ms, backup.name))

    def path_of(self, backup: Backup, path: str) -> Path:
        """The path of a file of a backup."""
        return self._files.path(path if is_part(path) else f"{backup.name}/{path}")

    def chunks(self, backup: Backup, path: str) -> Iterator[bytes]:
        """The content of a file of a backup, chunk by chunk."""
        return chunks_of(self.path_of(backup, path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other writers."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BackupError(f"{self.folder} takes no backup: {error.strerror}. Name another folder.") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise BackupError(f"Another backup is being written to {self.folder}: wait for it.") from None
        try:
            yield
        finally:
            os.close(handle)

    def parts(self) -> set[str]:
        """The complete parts in the folder, judged by their sizes. Parts of unfinished backups count."""
        listed = self._listed_parts()
        sizes = {
            f"{PARTS}/{path}": size for path, size in self._files.sizes(PARTS).items() if path.endswith(".parquet")
        }
        return {path for path, size in sizes.items() if path not in listed or listed[path]["bytes"] == size}

    def _listed_parts(self) -> dict[str, FileEntry]:
        """The parts that backups list."""
        return {path: file for one in self.backups() for path, file in one.files.items() if is_part(path)}

    def receive(self, members: Iterable[BackupMember], progress: Progress = lambda done, total: None) -> ReceivedBackup:
        """Stores a backup. It counts once its list is written, which comes last. The caller has `locked` the folder."""
        if (self.folder / "pyrometer.duckdb").exists():
            raise BackupError(f"{self.folder} is a data folder, and no place for backups. Name another folder.")
        unfinished = self.folder / UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        own_files = LocalPartStore(unfinished, folder_mode=PRIVATE)
        received: dict[str, FileEntry] = {}
        contents: dict[str, Any] | None = None
        listed = self._listed_parts()
        expected_bytes, done_bytes = 0, 0
        for member in members:
            if member.path == EXPECTED:
                expected_bytes = _json_of(member, MAX_EXPECTED_BYTES).get("bytes", 0)
            elif member.path == CONTENTS:
                contents = _json_of(member, MAX_CONTENTS_BYTES)
                check_sent(contents)
            else:
                progress(done_bytes, max(expected_bytes, done_bytes + 1))
                received[member.path] = self._store(member, own_files, listed.get(member.path))
                done_bytes += member.size if is_part(member.path) else 0
        if contents is None:
            raise BackupError("The backup ended before it was whole: what is there is as it was. Take it again.")
        contents["files"] = self._with_digests(contents["files"], received, listed)
        contents["sha256"] = digest_of_contents(contents)
        backup = Backup(self._free_name(int(contents["taken_ms"])), contents)
        unfinished.rename(self.folder / backup.name)
        files.fsync_path(self.folder)
        files.write_text(self.folder / f"{backup.name}.json", json.dumps(contents, indent=1) + "\n", secret=True)
        progress(1, 1)
        copied_bytes = sum(file["bytes"] for file in received.values())
        return ReceivedBackup(backup, sum(map(is_part, received)), copied_bytes)

    def _store(self, member: BackupMember, own_files: LocalPartStore, listed: FileEntry | None) -> FileEntry:
        check_member_name(member.path)
        if member.size > shutil.disk_usage(own_files.folder).free:
            raise BackupError(f"{member.path} has {member.size:,} bytes, and {self.folder} has no room for them.")
        store = self._files if is_part(member.path) else own_files

        def check(entry: FileEntry) -> None:
            if listed not in (None, entry):
                raise BackupError(_CHANGED.format(path=store.path(member.path)))

        return store.write(member.path, member.chunks, check)

    def _with_digests(
        self, sent: Mapping[str, FileEntry], received: Mapping[str, FileEntry], listed: Mapping[str, FileEntry]
    ) -> dict[str, FileEntry]:
        """Every file of a backup with its digest: as it was sent, or as earlier backups list it."""
        entries = {}
        for path, file in sent.items():
            if file.get("sha256") is not None:
                if received.get(path) != file:
                    raise BackupError(f"{path} is not as it was sent: what is there is as it was. Take it again.")
                entries[path] = file
                continue
            known = listed.get(path) or entry_of(self.folder / path)  # an unfinished backup may have left it
            if known is None or known["bytes"] != file["bytes"]:
                raise BackupError(_CHANGED.format(path=path))
            entries[path] = known
        return entries

    def _free_name(self, taken_ms: int) -> str:
        name = f"{datetime.fromtimestamp(taken_ms / 1000, UTC):%Y-%m-%dT%H-%M-%SZ}"
        names = [name, *(f"{name}_{number}" for number in range(2, 1000))]
        free = next(one for one in names if not (self.folder / f"{one}.json").exists())
        shutil.rmtree(self.folder / free, ignore_errors=True)  # left by an unfinished backup
        return free

    def prune(self, keep: int) -> list[str]:
        """Deletes all backups but the newest ones, and the parts that no other backup lists. Returns the names of the
        deleted backups. The caller has `locked` the folder."""
        backups = self.backups()
        old, kept = backups[:-keep], backups[-keep:]
        for backup in old:
            (self.folder / f"{backup.name}.json").unlink()  # first: without its list, a backup does not exist
        files.fsync_path(self.folder)
        listed = {path for backup in kept for path in backup.files}
        for path in (self.folder / PARTS).rglob("*.*"):
            if path.relative_to(self.folder).as_posix() not in listed:
                path.unlink()
        names = {backup.name for backup in kept}
        for path in self.folder.iterdir():
            if path.is_dir() and _NAME.fullmatch(path.name) and path.name not in names:
                shutil.rmtree(path)
        _remove_empty(self.folder / PARTS)
        return [backup.name for backup in old]

    def newest(self, before_ms: int | None = None) -> Backup:
        """The newest backup, or the newest one taken before a time."""
        backups = self.backups()
        found = [backup for backup in backups if before_ms is None or backup.taken_ms < before_ms]
        if found:
            return found[-1]
        if backups:
            raise BackupError(f"There is none in {self.folder} from before that: the first is {backups[0].name}.")
        raise BackupError(f"{self.folder} has no backup. `pyrometer backup --out DIR` takes one.")

    def problems(self, backups: Iterable[Backup], progress: Progress = lambda done, total: None) -> Iterator[str]:
        """What is wrong with backups. Every file is read once, also when several backups list it."""
        listed = {self.path_of(one, path): file for one in backups for path, file in one.files.items()}
        total_bytes, done_bytes = sum(file["bytes"] for file in listed.values()), 0
        for path, file in sorted(listed.items(), key=lambda item: item[0]):
            progress(done_bytes, total_bytes)
            done_bytes += file["bytes"]
            found = entry_of(path, max_bytes=file["bytes"])
            name = path.relative_to(self.folder)
            if found is None:
                yield f"{name} is missing."
            elif found != file:
                yield f"{name} is not as it was backed up: its digest is another."
        progress(total_bytes, total_bytes)


def _json_of(member: BackupMember, max_bytes: int) -> dict[str, Any]:
    """A small member, parsed."""
    if member.size > max_bytes:
        raise BackupError(f"{member.path} has {member.size:,} bytes: that is more than any backup has there.")
    try:
        return read_json(b"".join(member.chunks))
    except GrammarError as error:
        raise BackupError(f"{member.path} of the backup cannot be read: {error}. Take it again.") from None


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
