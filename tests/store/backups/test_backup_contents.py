"""The list of a backup's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyrometer.store.backups.backup_contents import (
    check_member_name,
    check_sent,
    digest_of_contents,
    is_part,
    read_backup,
)
from pyrometer.store.backups.backup_members import FORMAT, BackupError
from pyrometer.store.catalog import SCHEMA_VERSION


def contents(**changed: Any) -> dict[str, Any]:
    """The list of a backup with one small file."""
    return {
        "format": FORMAT,
        "pyrometer": "0.1.0",
        "schema_version": SCHEMA_VERSION,
        "taken_ms": 1_790_000_000_000,
        "meta": {"schema_version": str(SCHEMA_VERSION)},
        "marks": [["watch", 3]],
        "rejections": [],
        "hot": [],
        "parts": [],
        "files": {"settings.yaml": {"bytes": 3, "sha256": "0" * 64}},
    } | changed


def test_a_valid_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "2026-11-16T10-00-00Z.json"
    listed = contents()
    path.write_text(json.dumps(listed | {"sha256": digest_of_contents(listed)}))
    backup = read_backup(path)
    assert (backup.name, backup.taken_ms, backup.bytes) == (path.stem, 1_790_000_000_000, 3)


def test_a_changed_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(contents(taken_ms=5) | {"sha256": digest_of_contents(contents())}))
    with pytest.raises(BackupError, match="it was changed after it was written"):
        read_backup(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"taken_ms": "now"},
        {"files": {"../outside": {"bytes": 1}}},
        {"files": {"tokens.json": {"bytes": 1}}},
        {"files": {"hot/hot_event_0123456789ab.parquet": {"bytes": 1}}},
        {"meta": {"schema_version": "7"}},
        {"parts": [{}]},
    ],
)
def test_an_invalid_list_is_refused(changed: dict[str, Any]) -> None:
    check_sent(contents())
    with pytest.raises(BackupError, match="is not a backup"):
        check_sent(contents(**changed))


@pytest.mark.parametrize("changed", [{"format": FORMAT + 1}, {"schema_version": SCHEMA_VERSION + 1}])
def test_a_newer_list_says_upgrade(changed: dict[str, Any]) -> None:
    with pytest.raises(BackupError, match="upgrade this one"):
        check_sent(contents(**changed))


@pytest.mark.parametrize("name", ["tokens.json", "TOKENS.json.tmp", "lost/a", "../a", "pyrometer.duckdb.wal", ""])
def test_member_names_of_other_files_are_refused(name: str) -> None:
    with pytest.raises(BackupError, match="is not the name of a file in a backup"):
        check_member_name(name)


def test_parts_are_recognized_by_their_folder() -> None:
    check_member_name("parts/event/a.parquet")
    assert is_part("parts/event/a.parquet")
    assert not is_part("hot/a.parquet")
