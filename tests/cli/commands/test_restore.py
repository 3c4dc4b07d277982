"""`pyrometer restore`: which backup it takes, and what it refuses."""

from __future__ import annotations

import pytest

from pyrometer.store.backups.backup_folder import BackupFolder


@pytest.fixture
def backups(pyrometer, nothing, tmp_path):
    """A folder with one backup."""
    assert pyrometer("backup", "--data", nothing, "--out", tmp_path / "backups").code == 0
    return tmp_path / "backups"


def test_restore_takes_the_newest_backup_at_a_minute(pyrometer, backups, tmp_path):
    (row,) = pyrometer("restore", backups, "--list", "-o", "json").json["rows"]
    lines = pyrometer("restore", backups, "--at", row["taken"][:16], "--out", tmp_path / "restored").lines
    assert lines[0].startswith(f"{tmp_path / 'restored'}: restored as of {row['taken']}, ")
    assert lines[1] == "Backups contain no tokens. Create new ones with `pyrometer token create`."


def test_restore_before_the_first_backup_is_an_error(pyrometer, backups, tmp_path):
    assert "the first is" in pyrometer("restore", backups, "--at", "2001-10-10", "--out", tmp_path / "x").failed(1)
    assert not (tmp_path / "x").exists()


def test_restore_refuses_a_folder_with_files(pyrometer, backups, nothing):
    assert "is not empty" in pyrometer("restore", backups, "--out", nothing).failed(1)


def test_restore_needs_a_folder_or_list(pyrometer, backups, tmp_path):
    assert "Pass --out DIR, or --list" in pyrometer("restore", backups).failed(2)
    assert "Pass --out DIR, or --list" in pyrometer("restore", backups, "--list", "--out", tmp_path / "x").failed(2)


def test_list_prints_one_row_per_backup(pyrometer, backups):
    heading, row = pyrometer("restore", backups, "--list").lines
    assert heading.split() == ["backup", "pyrometer", "parts", "size"]
    assert row.split()[0] == BackupFolder(backups).backups()[0].name


def test_list_of_a_folder_without_backups_is_empty(pyrometer, tmp_path):
    assert pyrometer("restore", tmp_path, "--list", "-o", "json").json == {"rows": []}
    assert pyrometer("restore", tmp_path, "--list").lines == ["No backups."]
