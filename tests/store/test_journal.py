"""Bodies one behind the other: what was acknowledged is there after a crash, and nothing else is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyrometer.store.journal import Journal

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=5)


def left(folder):
    """What a process that starts finds."""
    return [body for _, bodies in Journal(folder).left_bodies() for body in bodies]


@given(st.lists(BODIES, max_size=4))
def test_bodies_are_read_in_the_order_of_arrival(files):
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "inbox")
        paths = []
        for bodies in files:
            paths.append({journal.put(body) for body in bodies})
            journal.turn()
        assert [len(mine) for mine in paths] == [bool(bodies) for bodies in files]  # a file each
        assert left(journal.folder) == [body for bodies in files for body in bodies]
        for mine in paths:
            journal.drop(mine)
        assert left(journal.folder) == []


@given(BODIES, st.integers(0, 200), st.binary(max_size=8))
@example([b"a"], 0, bytes(8))
def test_incomplete_bodies_are_dropped(bodies, kept, torn):
    """A journal cut anywhere, followed by arbitrary bytes: the complete bodies before the cut are read."""
    with tempfile.TemporaryDirectory() as folder:
        journal, ends, path = Journal(Path(folder)), [], None
        for body in bodies:
            path = journal.put(body)
            ends.append(path.stat().st_size)
        journal.turn()
        if path is None:
            return
        written = path.read_bytes()
        path.write_bytes(written[:kept])
        assert left(journal.folder) == [body for body, end in zip(bodies, ends, strict=True) if end <= kept]
        path.write_bytes(written + torn.ljust(8, b"\1"))
        assert left(journal.folder) == bodies


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_body_is_set_aside_alone(tmp_path, number):
    journal = Journal(tmp_path)
    bodies = [b"first", b"second", b"third"]
    (path,) = {journal.put(body) for body in bodies}
    content = bytearray(path.read_bytes())
    content[content.index(bodies[number])] ^= 1
    path.write_bytes(content)
    assert left(tmp_path) == [body for body in bodies if body is not bodies[number]]
    assert [one.read_bytes() for one in tmp_path.glob("*.refused")] == [content]


def test_a_body_of_an_older_version_is_a_file(tmp_path):
    (tmp_path / f"{1:020d}").write_bytes(b"old")
    Journal(tmp_path).put(b"new")
    assert left(tmp_path) == [b"old", b"new"]


def test_journal_starts_a_new_file_after_an_error(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    first = journal.put(b"first")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space left"):
            journal.put(b"second")
    assert journal.put(b"third") != first
    assert left(tmp_path)[0] == b"first"
    assert left(tmp_path)[-1] == b"third"
