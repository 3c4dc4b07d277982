"""Restoring a data folder from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.store import Store
from pyrometer.store.backups.backup_folder import BackupFolder
from pyrometer.store.backups.backup_members import BackupError, BackupSnapshot
from pyrometer.store.backups.restore import FOREIGN, UNFINISHED, restore
from pyrometer.store.token_marker import had_tokens
from tests.support.histories import BASE, folder, node


@pytest.fixture
def backups(tmp_path: Path) -> BackupFolder:
    """A folder with one backup: a sealed and a hot row, a mark, settings."""
    backups = BackupFolder(tmp_path / "backups")
    with folder() as store:
        store.append([node(BASE)])
        store.seal()
        store.append([node(BASE + 1)], producer="watch", sequence=2)
        (store.folder / "settings.yaml").write_text("timezone: UTC\n")
        snapshot = BackupSnapshot(store)
        with backups.locked():
            backups.receive(snapshot.members(set(), {}))
        snapshot.close()
    return backups


def test_a_restored_folder_has_all_rows_marks_and_files(backups: BackupFolder, tmp_path: Path) -> None:
    into = tmp_path / "restored"
    progress: list[tuple[int, int]] = []
    restore(backups, backups.newest(), into, lambda done, total: progress.append((done, total)))
    with Store(into) as store:
        store.expose_all(["node"])
        assert store.connection.execute("SELECT time_ms FROM node ORDER BY 1").fetchall() == [(BASE,), (BASE + 1,)]
        assert not store.append([node(BASE + 2)], producer="watch", sequence=2)
    assert (into / "settings.yaml").read_text() == "timezone: UTC\n"
    assert not (into / UNFINISHED).exists()
    assert not had_tokens(into)
    assert progress[-1] == (backups.newest().bytes, backups.newest().bytes)


def test_restore_refuses_a_folder_with_files(backups: BackupFolder, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(BackupError, match="is not empty"):
        restore(backups, backups.newest(), tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


def test_restore_continues_an_unfinished_restore_on_a_new_volume(backups: BackupFolder, tmp_path: Path) -> None:
    into = tmp_path / "restored"
    (into / FOREIGN[0]).mkdir(parents=True)
    (into / UNFINISHED).touch()
    (into / "pyrometer.duckdb.tmp").write_bytes(b"half")
    restore(backups, backups.newest(), into)
    with Store(into) as store:
        assert store.has("node")


def test_restore_into_a_file_is_an_error(backups: BackupFolder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="cannot become a data folder"):
        restore(backups, backups.newest(), tmp_path / "file")
