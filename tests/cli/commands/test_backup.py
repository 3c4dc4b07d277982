"""`pyrometer backup` and `pyrometer restore`: output and errors."""

from __future__ import annotations

import json
import shutil

import pytest

from pyrometer.questions.client import new_address, publish, withdraw
from pyrometer.store import Store
from pyrometer.store.backups.backup_folder import BackupFolder

COMMANDS = {"cost": ("--all", "--price", "2.5", "--by", "hour,node,workload,state"), "why": ("--all",), "runs": ()}


@pytest.fixture
def answers(pyrometer):
    return lambda folder: {
        what: pyrometer(what, "--data", folder, *options, "-o", "json").json for what, options in COMMANDS.items()
    }


def test_restored_folder_gives_the_same_answers(copy_of_recorded, tmp_path, pyrometer, answers):
    before = answers(copy_of_recorded)
    backups = tmp_path / "backups"
    (printed,) = pyrometer("backup", "--data", copy_of_recorded, "--out", backups).lines
    name = BackupFolder(backups).backups()[0].name
    assert printed.startswith(f"{backups / name}: ")
    with Store(copy_of_recorded) as store:  # more comes
        store.seal()
        store.drop_parts(store.parts("step_window")[:1])
    later = pyrometer("backup", "--data", copy_of_recorded, "--out", backups, "-o", "json").json
    assert later["bytes_copied"] < later["bytes"]
    first, second = (backup["taken"] for backup in pyrometer("restore", backups, "--list", "-o", "json").json["rows"])
    assert pyrometer("restore", backups, "--list").lines[1].startswith(name)
    lines = pyrometer("restore", backups, "--at", name, "--out", tmp_path / "restored").lines
    assert lines[0].startswith(f"{tmp_path / 'restored'}: restored as of {first}, ")
    assert answers(tmp_path / "restored") == before
    newest = pyrometer("restore", backups, "--at", second, "--out", tmp_path / "newest", "-o", "json").json
    assert newest["restored"]["taken"] == second
    assert pyrometer("check", tmp_path / "newest").code == 0


def test_keep_deletes_all_but_the_newest_backups(copy_of_recorded, tmp_path, pyrometer):
    names = [
        pyrometer("backup", "--data", copy_of_recorded, "--out", tmp_path / "b", "-o", "json").json["backup"]
        for _ in range(2)
    ]
    printed = pyrometer("backup", "--data", copy_of_recorded, "--out", tmp_path / "b", "--keep", "1").lines
    assert printed[1] == f"Deleted: {names[0]}, {names[1]}."
    (line,) = pyrometer("check", tmp_path / "b").lines
    assert line.startswith("1 backup, ")
    assert line.endswith(": no problems found.")


def test_damaged_backup_is_reported_and_not_restored(copy_of_recorded, tmp_path, pyrometer):
    backups = tmp_path / "backups"
    pyrometer("backup", "--data", copy_of_recorded, "--out", backups)
    broken = next((backups / "parts").rglob("*.parquet"))
    broken.write_bytes(b"x" * broken.stat().st_size)
    shown = broken.relative_to(backups)
    result = pyrometer("check", backups)
    assert (result.code, result.out.splitlines()[0]) == (
        1,
        f"{shown} is not as it was backed up: its digest is another.",
    )
    message = pyrometer("restore", backups, "--out", tmp_path / "restored").failed(1)
    assert message.endswith(f"is damaged, and nothing was restored: {result.out.splitlines()[0]}")
    assert not (tmp_path / "restored").exists()
    assert "never changed" in pyrometer("check", backups, "--repair").failed(2)


def test_impossible_backups_are_one_line_errors(copy_of_recorded, tmp_path, pyrometer):
    backups, elsewhere = tmp_path / "backups", tmp_path / "elsewhere"
    assert "pass --out BACKUP" in pyrometer("backup", "--data", copy_of_recorded).failed(2)
    assert "Pass --out DIR" in pyrometer("restore", backups).failed(2)
    assert "not both" in pyrometer("backup", "--data", "a", "--server", "b", "--out", backups).failed(2)
    assert "has no backup" in pyrometer("restore", tmp_path / "none", "--out", elsewhere).failed(1)
    assert "is a data folder" in pyrometer("backup", "--data", copy_of_recorded, "--out", copy_of_recorded).failed(1)
    pyrometer("backup", "--data", copy_of_recorded, "--out", backups)
    assert "the first is" in pyrometer("restore", backups, "--at", "2001-10-10", "--out", elsewhere).failed(1)
    assert "is not empty" in pyrometer("restore", backups, "--out", copy_of_recorded).failed(1)
    assert "does not answer" in pyrometer("backup", "--server", "http://127.0.0.1:9", "--out", backups).failed(1)
    shutil.rmtree(backups / "parts")
    name = BackupFolder(backups).backups()[0].name
    (backups / f"{name}.json").write_text(json.dumps({"format": 1}))
    assert "not a valid list of a backup" in pyrometer("restore", backups, "--list").failed(1)


def test_backup_of_a_folder_in_use_names_the_server(copy_of_recorded, tmp_path, pyrometer):
    from pyrometer.store import StoreBusyError

    address = new_address("127.0.0.1", 18_999)
    publish(copy_of_recorded, address)
    busy = StoreBusyError("busy")
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise busy

        patch.setattr("pyrometer.cli.commands.backup.open_store", refuse)
        error = pyrometer("backup", "--data", copy_of_recorded, "--out", tmp_path / "b").failed(1)
    withdraw(copy_of_recorded)
    assert f"pass --server {address.url}" in error
