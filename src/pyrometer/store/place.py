"""Where backups lie: parts that they share, by their names, and what belongs to each of them alone.

PLACE/2026-11-16T10-00-00Z.json   one backup: its catalogue, and the size and SHA-256 of every file; written last
PLACE/2026-11-16T10-00-00Z/       its hot tables, inbox, closed months, small files
PLACE/parts/KIND/DATE/…           sealed parts, each once, however many backups name it
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.store import catalog, files
from pyrometer.store.backup import CHUNK, CONTENTS, EXPECTED, FORMAT, PARTS, BackupError, Member

TAKING = ".taking"  # what a backup has so far; one that came to no end leaves it, and the next one clears it
LOCK = ".lock"
_PATH = re.compile(r"(?!.*(^|/)\.\.?(/|$))[\w.+:@ -]+(/[\w.+:@ -]+)*")
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(_\d+)?")

_ANOTHER = (
    "{path} is another than in the backups before: was it mended or changed? Take this backup into another folder."
)

Progress = Callable[[int, int], None]


class Taken(NamedTuple):
    """One backup that is whole."""

    name: str
    contents: dict[str, Any]

    @property
    def taken_ms(self) -> int:
        """The moment that it is of."""
        return int(self.contents["taken_ms"])

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Every file of it, with its `bytes` and `sha256`."""
        found: dict[str, dict[str, Any]] = self.contents["files"]
        return found

    @property
    def bytes(self) -> int:
        """Of all its files, shared or not."""
        return sum(file["bytes"] for file in self.files.values())


class Received(NamedTuple):
    """A backup, and how much of it was not there before."""

    backup: Taken
    parts_copied: int
    bytes_copied: int


class Place:
    """A folder with backups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def backups(self) -> list[Taken]:
        """The backups that are whole, oldest first."""
        named = (path for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem))
        return sorted((_read(path) for path in named), key=lambda backup: (backup.taken_ms, backup.name))

    def path_of(self, backup: Taken, path: str) -> Path:
        """Where a file of a backup lies."""
        return self.folder / path if _is_part(path) else self.folder / backup.name / path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else writes here meanwhile."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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
        """The parts that are here, whole as far as their size says: also those of a backup that came to no end."""
        known = self._known()
        there = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in (self.folder / PARTS).rglob("*.parquet")
        }
        return {path for path, size in there.items() if known.get(path, {"bytes": size})["bytes"] == size}

    def _known(self) -> dict[str, dict[str, Any]]:
        """The parts that backups name."""
        return {path: file for one in self.backups() for path, file in one.files.items() if _is_part(path)}

    def take(self, members: Iterable[Member], progress: Progress = lambda done, total: None) -> Received:
        """Keeps a backup. Until its last word is written, those before it are all there is. The caller is `alone`."""
        if (self.folder / "pyrometer.duckdb").exists():
            raise BackupError(f"{self.folder} is a data folder, and no place for backups. Name another folder.")
        taking = self.folder / TAKING
        shutil.rmtree(taking, ignore_errors=True)
        taking.mkdir()
        received: dict[str, dict[str, Any]] = {}
        contents: dict[str, Any] | None = None
        known = self._known()
        expected, done = 0, 0
        for member in members:
            if member.path == EXPECTED:
                expected = json.loads(b"".join(member.chunks))["bytes"]
            elif member.path == CONTENTS:
                contents = json.loads(b"".join(member.chunks))
            else:
                progress(done, max(expected, done + 1))
                received[member.path] = self._keep(taking, member, known.get(member.path))
                done += member.size if _is_part(member.path) else 0
        if contents is None:
            raise BackupError("The backup ended before it was whole: what is there is as it was. Take it again.")
        contents["files"] = self._agreed(contents["files"], received, known)
        backup = Taken(self._free_name(int(contents["taken_ms"])), contents)
        taking.rename(self.folder / backup.name)
        files.fsync_path(self.folder)
        files.write_text(self.folder / f"{backup.name}.json", json.dumps(contents, indent=1) + "\n", secret=True)
        progress(1, 1)
        copied = sum(file["bytes"] for file in received.values())
        return Received(backup, sum(map(_is_part, received)), copied)

    def _keep(self, taking: Path, member: Member, known: dict[str, Any] | None) -> dict[str, Any]:
        if not _PATH.fullmatch(member.path):
            raise BackupError(f"{member.path!r} is no name of a file in a backup.")
        final = (self.folder if _is_part(member.path) else taking) / member.path
        final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return written(member.chunks, final, known)

    def _agreed(
        self, told: dict[str, dict[str, Any]], received: dict[str, Any], known: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Every file of a backup with its digest: as it was sent, or as it is known from the backups before."""
        agreed = {}
        for path, file in told.items():
            if "sha256" in file:
                if received.get(path) != file:
                    raise BackupError(f"{path} is not as it was sent: what is there is as it was. Take it again.")
                agreed[path] = file
                continue
            here = known.get(path) or digested(self.folder / path)  # of a backup that came to no end
            if here is None or here["bytes"] != file["bytes"]:
                raise BackupError(_ANOTHER.format(path=path))
            agreed[path] = here
        return agreed

    def _free_name(self, taken_ms: int) -> str:
        name = f"{datetime.fromtimestamp(taken_ms / 1000, UTC):%Y-%m-%dT%H-%M-%SZ}"
        names = [name, *(f"{name}_{number}" for number in range(2, 1000))]
        free = next(one for one in names if not (self.folder / f"{one}.json").exists())
        shutil.rmtree(self.folder / free, ignore_errors=True)  # of one that came to no end
        return free

    def prune(self, keep: int) -> list[str]:
        """Forgets all but the newest backups, and the parts that none of them names; says which. The caller is
        `alone`."""
        backups = self.backups()
        old, kept = backups[:-keep], backups[-keep:]
        for backup in old:
            (self.folder / f"{backup.name}.json").unlink()  # first: what is not whole is not there
        files.fsync_path(self.folder)
        named = {path for backup in kept for path in backup.files}
        for path in (self.folder / PARTS).rglob("*.*"):
            if path.relative_to(self.folder).as_posix() not in named:
                path.unlink()
        there = {backup.name for backup in kept}
        for path in self.folder.iterdir():
            if path.is_dir() and _NAME.fullmatch(path.name) and path.name not in there:
                shutil.rmtree(path)
        _remove_empty(self.folder / PARTS)
        return [backup.name for backup in old]

    def newest(self, before_ms: int | None = None) -> Taken:
        """The newest backup, or the newest from before a time."""
        backups = self.backups()
        found = [backup for backup in backups if before_ms is None or backup.taken_ms < before_ms]
        if found:
            return found[-1]
        if backups:
            raise BackupError(f"There is none in {self.folder} from before that: the first is {backups[0].name}.")
        raise BackupError(f"{self.folder} has no backup. `pyrometer backup --out DIR` takes one.")

    def problems(self, backups: Iterable[Taken], progress: Progress = lambda done, total: None) -> Iterator[str]:
        """What is wrong with backups: every file of them is read, those that they share once."""
        wanted = {self.path_of(one, path): file for one in backups for path, file in one.files.items()}
        total, done = sum(file["bytes"] for file in wanted.values()), 0
        for path, file in sorted(wanted.items()):
            progress(done, total)
            done += file["bytes"]
            found = digested(path)
            shown = path.relative_to(self.folder)
            if found is None:
                yield f"{shown} is missing."
            elif found != file:
                yield f"{shown} is not as it was backed up: its digest is another."
        progress(total, total)


def written(chunks: Iterable[bytes], final: Path, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Writes a file, durably; what it is, by size and digest. One that is `known` must be as it was."""
    temporary = final.with_name(final.name + ".tmp")
    digest, size = hashlib.sha256(), 0
    with temporary.open("wb") as stream:
        for chunk in chunks:
            digest.update(chunk)
            size += stream.write(chunk)
    is_now = {"bytes": size, "sha256": digest.hexdigest()}
    if known not in (None, is_now):
        temporary.unlink()
        raise BackupError(_ANOTHER.format(path=final))
    files.publish(temporary, final)
    return is_now


def digested(path: Path) -> dict[str, Any] | None:
    """A file's size and digest; None when there is none."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return {"bytes": size, "sha256": digest.hexdigest()}


def _is_part(path: str) -> bool:
    return path.startswith(f"{PARTS}/")


def _read(path: Path) -> Taken:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        backup = Taken(path.stem, contents)
        newer = contents["format"] > FORMAT or contents["schema_version"] > catalog.SCHEMA_VERSION
        fits = newer or all(_PATH.fullmatch(name) and file["sha256"] for name, file in backup.files.items())
        by = contents["pyrometer"] if backup.taken_ms else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        newer, fits, by = False, False, None
    if not fits:
        raise BackupError(f"{path} cannot be read: it says what is in a backup. Move it away to use the others.")
    if newer:
        raise BackupError(f"{path} was written by a newer Pyrometer ({by}): upgrade Pyrometer.")
    return backup


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
