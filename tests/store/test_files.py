"""What was published is there whole; in between, readers see the old file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyrometer.store import files


@pytest.fixture
def trace(monkeypatch):
    """What happens to files, in order, by name."""
    done = []
    real_fsync_path, real_replace = files.fsync_path, Path.replace

    def fsync_path(path):
        done.append(("fsync", path.name))
        real_fsync_path(path)

    def replace(self, target):
        done.append(("rename", Path(target).name))
        return real_replace(self, target)

    monkeypatch.setattr(files, "fsync_path", fsync_path)
    monkeypatch.setattr(Path, "replace", replace)
    return done


def test_publishing_forces_the_bytes_to_disk_before_the_name_and_then_the_name(tmp_path, trace):
    temporary = tmp_path / "part.tmp"
    temporary.write_bytes(b"rows")
    files.publish(temporary, tmp_path / "folder" / "part.parquet")
    assert trace == [("fsync", "part.tmp"), ("rename", "part.parquet"), ("fsync", "folder")]
    assert (tmp_path / "folder" / "part.parquet").read_bytes() == b"rows"
    assert not temporary.exists()


def test_publishing_replaces_what_was_there(tmp_path):
    temporary, final = tmp_path / "new", tmp_path / "final"
    final.write_text("old")
    temporary.write_text("new")
    files.publish(temporary, final)
    assert final.read_text() == "new"


def test_a_small_text_is_replaced_as_a_whole(tmp_path, trace):
    path = tmp_path / "manifest.json"
    files.write_text(path, "first")
    files.write_text(path, "zweitens: ü")
    assert path.read_text(encoding="utf-8") == "zweitens: ü"
    assert [step for step in trace if step[0] == "rename"] == [("rename", "manifest.json")] * 2
    assert list(tmp_path.iterdir()) == [path]


def test_when_writing_fails_the_old_text_stays(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    files.write_text(path, "old")

    def disk_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old"


def test_a_file_and_a_folder_are_forced_to_disk_and_closed(tmp_path, monkeypatch):
    done = []
    real_fsync, real_close = os.fsync, os.close

    def fsync(descriptor):
        done.append(("fsync", descriptor))
        real_fsync(descriptor)

    def close(descriptor):
        done.append(("close", descriptor))
        real_close(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "close", close)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        done.clear()
        files.fsync_path(path)
        [(first, synced), (second, closed)] = done
        assert (first, second) == ("fsync", "close")
        assert synced == closed


def test_publishing_a_missing_file_fails(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.publish(tmp_path / "nothing", tmp_path / "final")
    assert list(tmp_path.iterdir()) == []
