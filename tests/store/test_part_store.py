"""Part stores in a local folder. Buckets are tested with a server in tests/store/engines/test_ray.py."""

from __future__ import annotations

import hashlib
import os

import pytest

from pyrometer.store import StoreError
from pyrometer.store.part_store import LocalPartStore, chunks_of, entry_of


@pytest.fixture
def parts(tmp_path):
    return LocalPartStore(tmp_path / "parts")


def test_put_and_read_a_file(parts, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    parts.put("east/a", b"bytes")
    parts.put("east/sub/b", source)
    assert (parts.read("east/a"), parts.read("east/sub/b")) == (b"bytes", b"from a file")
    assert parts.folders() == ["east"]
    assert parts.sizes("east") == {"a": 5, "sub/b": 11}
    assert parts.sizes("west") == {}


def test_write_returns_size_and_digest(parts):
    entry = parts.write("a", [b"ab", b"", b"c"])
    assert entry == {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()} == entry_of(parts.path("a"))
    assert b"".join(parts.chunks("a")) == b"abc"


def test_a_refused_write_leaves_the_earlier_file(parts):
    def refuse(entry):
        raise StoreError("wrong digest")

    parts.put("a", b"before")
    with pytest.raises(StoreError, match="wrong digest"):
        parts.write("a", [b"after"], refuse)
    assert parts.sizes(".") == {"a": 6}


def test_remove_accepts_a_missing_file(parts):
    parts.put("a", b"1")
    parts.remove("a")
    parts.remove("a")
    assert parts.sizes(".") == {}


@pytest.mark.parametrize("path", ["../outside", "/outside", "link/outside"])
def test_paths_out_of_the_folder_are_refused(parts, tmp_path, path):
    parts.folder.mkdir()
    (parts.folder / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="leads out of"):
        parts.put(path, b"x")
    assert not (tmp_path / "outside").exists()


def test_chunks_of_a_file_are_limited(tmp_path):
    (tmp_path / "a").write_bytes(b"abcdefg")
    assert list(chunks_of(tmp_path / "a", 3)) == [b"abc", b"def", b"g"]


def test_entry_of_other_paths_is_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert entry_of(tmp_path / "pipe") is None
    assert entry_of(tmp_path / "missing") is None
    assert entry_of(tmp_path) is None


def test_entry_of_a_file_that_is_too_large_is_not_its_size(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert entry_of(tmp_path / "a", max_bytes=3)["bytes"] == 3
    assert entry_of(tmp_path / "a", max_bytes=2)["bytes"] > 2
