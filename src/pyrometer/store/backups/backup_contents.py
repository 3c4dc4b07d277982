"""The list of a backup's files: what `NAME.json` contains, and its checks, which come before any use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.model.columns import SCHEMAS
from pyrometer.store import catalog
from pyrometer.store.backups.backup_members import FORMAT, HOT, PARTS, RESERVED, RESERVED_FOLDERS, BackupError
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
from pyrometer.store.part_store import FileEntry


class BackupFile(NamedTuple):
    """One file in the list. Without a digest it was not sent, because an earlier backup has it."""

    bytes: Count
    sha256: Sha256 | None = None


class BackupContents(NamedTuple):
    """The fields of `NAME.json`. Tables, parts and files are checked one by one."""

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


class Backup(NamedTuple):
    """One complete backup."""

    name: str
    contents: dict[str, Any]

    @property
    def taken_ms(self) -> int:
        """When it was taken."""
        return int(self.contents["taken_ms"])

    @property
    def files(self) -> dict[str, FileEntry]:
        """Every file, with its `bytes` and `sha256`."""
        found: dict[str, FileEntry] = self.contents["files"]
        return found

    @property
    def bytes(self) -> int:
        """The size of all its files, shared or not."""
        return sum(file["bytes"] for file in self.files.values())


class MemberName(NamedTuple):
    """The path of a received file."""

    path: FilePath


class _NewerError(Exception):
    """A backup of a newer version. The text names the version, or what this one does not know."""


def is_part(path: str) -> bool:
    """Whether a file is a part, which backups share."""
    return path.startswith(f"{PARTS}/")


def read_backup(path: Path) -> Backup:
    """Reads the list of a backup. Nothing in it is used before the whole list is checked."""
    way_out = "Move it away to use the others."
    try:
        contents = read_json(path.read_bytes())
        _refuse_newer(contents)
        if contents.get("sha256") not in (None, digest_of_contents(contents)):
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
    return Backup(path.stem, contents)


def check_sent(contents: dict[str, Any]) -> None:
    """Refuses a list that was sent and is not valid."""
    try:
        _refuse_newer(contents)
        _check(contents)
    except _NewerError as error:
        raise BackupError(f"The server has a newer Pyrometer ({error}): upgrade this one.") from None
    except GrammarError as error:
        raise BackupError(f"What was sent is not a backup: {error}. What is there is as it was.") from None


def digest_of_contents(contents: dict[str, Any]) -> str:
    """The digest of the list, which is stored in it."""
    rest = {name: value for name, value in contents.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def check_member_name(path: str) -> None:
    """Refuses a name that no file of a backup has."""
    try:
        checked(MemberName, [path])
        _check_name(path)
    except GrammarError:
        raise BackupError(f"{shown(path)} is not the name of a file in a backup.") from None


def _refuse_newer(contents: dict[str, Any]) -> None:
    """Refuses a list of a newer format."""
    for name, known in (("format", FORMAT), ("schema_version", catalog.SCHEMA_VERSION)):
        version = contents.get(name)
        if isinstance(version, int) and version > known:
            raise _NewerError(str(contents.get("pyrometer"))[:80])


def _check(contents: dict[str, Any]) -> None:
    """Checks every field against its grammar, and that the listed parts and hot tables are the listed files."""
    record_of(BackupContents, {name: contents[name] for name in BackupContents._fields if name in contents})
    listed: dict[str, dict[str, Any]] = contents["files"]
    for path, file in listed.items():
        record_of(BackupFile, file, f"files.{shown(path)}")
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


def _check_name(path: str) -> None:
    """Refuses files of a data folder that no backup contains: foreign tokens, for example."""
    first = path.split("/")[0].casefold()
    if first in RESERVED_FOLDERS or any(first == name or first.startswith(f"{name}.") for name in RESERVED):
        raise GrammarError(f"files.{shown(path)} does not belong into a backup")
