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

from pyrometer.model.columns import SCHEMAS
from pyrometer.store import catalog, files
from pyrometer.store.backup import (
    CHUNK,
    CONTENTS,
    EXPECTED,
    FORMAT,
    HOT,
    PARTS,
    RESERVED,
    RESERVED_FOLDERS,
    BackupError,
    Member,
)
from pyrometer.store.catalog import HotTable, Part
from pyrometer.store.grammar import (
    Count,
    FilePath,
    GrammarError,
    Int,
    Sha256,
    Text,
    TimeMs,
    UnknownKindError,
    check_kind,
    check_meta,
    checked,
    read_json,
    record_of,
    shown,
)

TAKING = ".taking"  # what a backup has so far; one that came to no end leaves it, and the next one clears it
LOCK = ".lock"
MAX_EXPECTED, MAX_CONTENTS = 1 << 10, 1 << 30  # bytes
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


class File(NamedTuple):
    """What a backup says of a file. Without a digest, it was not sent: an earlier backup has it."""

    bytes: Count
    sha256: Sha256 | None = None


class Contents(NamedTuple):
    """What `NAME.json` says, by types; tables, parts and files are checked one by one."""

    format: Count
    pyrometer: Text
    schema_version: Count
    taken_ms: TimeMs
    meta: dict[Text, Text]
    marks: list[tuple[Text, Int]]
    rejections: list[tuple[Text, Text, Count]]
    hot: list[Any]
    parts: list[Any]
    files: dict[FilePath, Any]
    had_tokens: bool = True  # older backups do not record it
    sha256: Sha256 | None = None  # of everything else in it; older backups have none


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
        return files.inside(self.folder, path if _is_part(path) else f"{backup.name}/{path}")

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
                expected = _json_of(member, MAX_EXPECTED).get("bytes", 0)
            elif member.path == CONTENTS:
                contents = _json_of(member, MAX_CONTENTS)
                _check_sent(contents)
            else:
                progress(done, max(expected, done + 1))
                received[member.path] = self._keep(taking, member, known.get(member.path))
                done += member.size if _is_part(member.path) else 0
        if contents is None:
            raise BackupError("The backup ended before it was whole: what is there is as it was. Take it again.")
        contents["files"] = self._agreed(contents["files"], received, known)
        contents["sha256"] = _digest_of(contents)
        backup = Taken(self._free_name(int(contents["taken_ms"])), contents)
        taking.rename(self.folder / backup.name)
        files.fsync_path(self.folder)
        files.write_text(self.folder / f"{backup.name}.json", json.dumps(contents, indent=1) + "\n", secret=True)
        progress(1, 1)
        copied = sum(file["bytes"] for file in received.values())
        return Received(backup, sum(map(_is_part, received)), copied)

    def _keep(self, taking: Path, member: Member, known: dict[str, Any] | None) -> dict[str, Any]:
        try:
            checked(Named, [member.path])
            _check_name(member.path)
        except GrammarError:
            raise BackupError(f"{shown(member.path)} is not the name of a file in a backup.") from None
        if member.size > shutil.disk_usage(taking).free:
            raise BackupError(f"{member.path} has {member.size:,} bytes, and {self.folder} has no room for them.")
        final = files.inside(self.folder if _is_part(member.path) else taking, member.path)
        final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return written(member.chunks, final, known)

    def _agreed(
        self, told: dict[str, dict[str, Any]], received: dict[str, Any], known: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Every file of a backup with its digest: as it was sent, or as it is known from the backups before."""
        agreed = {}
        for path, file in told.items():
            if file.get("sha256") is not None:
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
            found = digested(path, at_most=file["bytes"])
            name = path.relative_to(self.folder)
            if found is None:
                yield f"{name} is missing."
            elif found != file:
                yield f"{name} is not as it was backed up: its digest is another."
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


def digested(path: Path, at_most: int | None = None) -> dict[str, Any] | None:
    """A file's size and digest; None when there is no file. One that is larger than `at_most` is not read further."""
    digest, size = hashlib.sha256(), 0
    try:
        if not path.is_file():  # a pipe would never end
            return None
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                if at_most is not None and size > at_most:
                    break
    except (FileNotFoundError, NotADirectoryError):
        return None
    return {"bytes": size, "sha256": digest.hexdigest()}


def _is_part(path: str) -> bool:
    return path.startswith(f"{PARTS}/")


def _read(path: Path) -> Taken:
    """A backup that is here. Nothing of what it says is used before all of it is checked."""
    way_out = "Move it away to use the others."
    try:
        contents = read_json(path.read_bytes())
        _refuse_newer(contents)
        if contents.get("sha256") not in (None, _digest_of(contents)):
            raise GrammarError("it was changed after it was written")
        _check(contents)
        for name, file in contents["files"].items():
            if file.get("sha256") is None:
                raise GrammarError(f"files.{shown(name)}.sha256 is missing")
    except _NewerError as error:
        raise BackupError(f"{path} was written by a newer Pyrometer ({error}): upgrade Pyrometer.") from None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}. {way_out}") from None
    except GrammarError as error:
        raise BackupError(f"{path} is not a valid list of a backup's files: {error}. {way_out}") from None
    return Taken(path.stem, contents)


class _NewerError(Exception):
    """A backup of a newer version; the text says which, or what it has."""


def _refuse_newer(contents: dict[str, Any]) -> None:
    for name, known in (("format", FORMAT), ("schema_version", catalog.SCHEMA_VERSION)):
        version = contents.get(name)
        if isinstance(version, int) and version > known:
            raise _NewerError(str(contents.get("pyrometer"))[:80])


def _check_sent(contents: dict[str, Any]) -> None:
    try:
        _refuse_newer(contents)
        _check(contents)
    except _NewerError as error:
        raise BackupError(f"The server has a newer Pyrometer ({error}): upgrade this one.") from None
    except GrammarError as error:
        raise BackupError(f"What was sent is not a backup: {error}. What is there is as it was.") from None


def _check(contents: dict[str, Any]) -> None:
    """Holds everything that a backup says to its grammar, and every name to what it names."""
    record_of(Contents, {name: contents[name] for name in Contents._fields if name in contents})
    listed: dict[str, dict[str, Any]] = contents["files"]
    for path, file in listed.items():
        record_of(File, file, f"files.{shown(path)}")
        _check_name(path)
    check_meta(contents["meta"])
    if contents["meta"].get("schema_version") != str(contents["schema_version"]):
        raise GrammarError(f"meta.schema_version is {shown(contents['meta'].get('schema_version'))}")
    parts = [record_of(Part, part, f"parts[{at}]") for at, part in enumerate(contents["parts"])]
    tables = [record_of(HotTable, table, f"hot[{at}]") for at, table in enumerate(contents["hot"])]
    try:
        for part in parts:
            check_kind(part.kind, part.path)
            if more := set(part.columns.split(",")) - set(SCHEMAS[part.kind].column_names):
                raise _NewerError(f"it has `{min(more)}` of {part.kind} records")
            if part.from_ms >= part.to_ms or listed.get(part.path, {}).get("bytes") != part.bytes:
                raise GrammarError(f"{part.path} does not have the times or bytes that are listed")
        for table in tables:
            check_kind(table.kind, table.name)
    except UnknownKindError as error:
        raise _NewerError(str(error)) from None
    named = [part.path for part in parts] + [f"{HOT}/{table.name}.parquet" for table in tables]
    there = [path for path in listed if path.startswith((f"{PARTS}/", f"{HOT}/"))]
    if sorted(named) != sorted(there):
        raise GrammarError("its parts and hot tables are not those of its files")


class Named(NamedTuple):
    """The path of a file that is sent."""

    path: FilePath


def _check_name(path: str) -> None:
    """Refuses files of a data folder that no backup has: tokens of others, say."""
    first = path.split("/")[0].casefold()
    if first in RESERVED_FOLDERS or any(first == name or first.startswith(f"{name}.") for name in RESERVED):
        raise GrammarError(f"files.{shown(path)} does not belong into a backup")


def _digest_of(contents: dict[str, Any]) -> str:
    """Of all that a backup says, but this digest."""
    rest = {name: value for name, value in contents.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _json_of(member: Member, at_most: int) -> dict[str, Any]:
    """A member that is read whole."""
    if member.size > at_most:
        raise BackupError(f"{member.path} has {member.size:,} bytes: no backup has so many there.")
    try:
        return read_json(b"".join(member.chunks))
    except GrammarError as error:
        raise BackupError(f"{member.path} of the backup cannot be read: {error}. Take it again.") from None


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
