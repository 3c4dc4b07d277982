"""The members of a backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyrometer.store import Store
from pyrometer.store.backups.backup_members import (
    CONTENTS,
    EXPECTED,
    BackupError,
    BackupMember,
    BackupSnapshot,
    SentFiles,
    clear_leftovers,
    inbox_members,
)
from tests.support.histories import BASE, folder, node


def taken(store: Store, have: set[str] = frozenset()) -> dict[str, bytes]:
    """The members of a backup with their contents, in order."""
    snapshot = BackupSnapshot(store)
    try:
        return {member.path: b"".join(member.chunks) for member in snapshot.members(have, {})}
    finally:
        snapshot.close()


def test_members_are_the_catalog_hot_tables_and_parts() -> None:
    with folder() as store:
        store.append([node(BASE)])
        (part,) = store.seal()
        store.append([node(BASE + 1)], producer="watch", sequence=2)
        (hot,) = store.hot_tables()
        found = taken(store)
        assert list(found) == [EXPECTED, f"hot/{hot.name}.parquet", part.path, CONTENTS]
        assert json.loads(found[EXPECTED]) == {"bytes": part.bytes, "parts": 1}
        contents = json.loads(found[CONTENTS])
        assert contents["marks"] == [["watch", 2]]
        assert set(contents["files"]) == {f"hot/{hot.name}.parquet", part.path}


def test_parts_of_the_receiver_are_listed_and_not_sent() -> None:
    with folder() as store:
        store.append([node(BASE)])
        (part,) = store.seal()
        found = taken(store, {part.path})
        assert list(found) == [EXPECTED, CONTENTS]
        assert json.loads(found[CONTENTS])["files"] == {part.path: {"bytes": part.bytes}}


def test_a_missing_part_is_an_error() -> None:
    with folder() as store:
        store.append([node(BASE)])
        (part,) = store.seal()
        (store.folder / part.path).unlink()
        with pytest.raises(BackupError, match="is listed and missing: no backup was taken"):
            taken(store)


def test_inbox_members_are_complete_files(tmp_path: Path) -> None:
    (tmp_path / "inbox" / "otlp").mkdir(parents=True)
    (tmp_path / "inbox" / "1").write_bytes(b"body")
    (tmp_path / "inbox" / "2.tmp").write_bytes(b"half")
    (tmp_path / "inbox" / "otlp" / "3").write_bytes(b"other")
    sent: SentFiles = {}
    members: list[BackupMember] = list(inbox_members(tmp_path, sent))
    assert [(one.path, b"".join(one.chunks)) for one in members] == [("inbox/1", b"body"), ("inbox/otlp/3", b"other")]
    assert {path: entry["bytes"] for path, entry in sent.items()} == {"inbox/1": 4, "inbox/otlp/3": 5}


def test_leftovers_of_a_killed_backup_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "backup-1").mkdir(parents=True)
    (tmp_path / "tmp" / "other").mkdir()
    clear_leftovers(tmp_path)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["other"]
