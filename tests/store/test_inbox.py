"""The inbox: acknowledged bodies, one file each."""

from __future__ import annotations

import os

import pytest

from pyrometer.store import files
from pyrometer.store.inbox import ABANDONED_S, HALF, REFUSED, Inbox, of_training


@pytest.fixture
def inbox(tmp_path):
    return Inbox(tmp_path / "inbox")


def test_bodies_are_read_in_the_order_of_arrival(inbox):
    for number in range(12):
        inbox.put(b"%d" % number)
    assert [body for _, body in inbox.left()] == [b"%d" % number for number in range(12)]


def test_a_later_inbox_continues_after_existing_files(inbox):
    first = inbox.put(b"first")
    assert Inbox(inbox.folder).put(b"second").name > first.name


def test_put_together_keeps_the_suffix_of_each_body(inbox):
    path = inbox.put_together([(".logs", b"a"), (".traces", b"b")], ".http")
    number = path.name.partition(".")[0]
    assert inbox.bodies(path) == [(f"{number}.logs", b"a"), (f"{number}.traces", b"b")]


def test_a_single_body_has_the_name_of_its_file(inbox):
    path = inbox.put(b"a", ".logs")
    assert inbox.bodies(path) == [(path.name, b"a")]


def test_incomplete_files_are_removed(inbox):
    inbox.put(b"a")
    (inbox.folder / f"1{HALF}").write_bytes(b"half")
    assert len(inbox.paths()) == 1
    assert not (inbox.folder / f"1{HALF}").exists()


def test_incomplete_files_of_a_shared_inbox_are_removed_after_a_while(tmp_path):
    shared = of_training(tmp_path)
    shared.folder.mkdir(parents=True)
    half = shared.folder / f"1{HALF}"
    half.write_bytes(b"half")
    assert shared.paths() == []
    assert half.exists()
    old_s = half.stat().st_mtime - ABANDONED_S - 1
    os.utime(half, (old_s, old_s))
    assert shared.paths() == []
    assert not half.exists()


def test_refused_files_are_set_aside(inbox):
    path = inbox.put(b"a")
    inbox.refuse(path)
    assert inbox.paths() == []
    assert (inbox.folder / f"{path.name}{REFUSED}").read_bytes() == b"a"


def test_dropped_files_may_be_gone_already(inbox):
    path = inbox.put(b"a")
    inbox.drop([path, path])
    assert inbox.paths() == []


def test_a_failed_write_leaves_no_file(inbox, monkeypatch):
    def fail(temporary, final):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "publish", fail)
    with pytest.raises(OSError, match="No space"):
        inbox.put(b"a")
    assert list(inbox.folder.iterdir()) == []
