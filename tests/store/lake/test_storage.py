"""The storage of a lake: a folder or a bucket."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyrometer.store.lake import LakeError, LakeStorage


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://AKIAKEY:hunter2@bucket/prefix", "has credentials in it: leave them out"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/x?secret_key=hunter2", "which is not known: endpoint, region"),
        ("gs://bucket", "a folder, or s3://BUCKET/PREFIX"),
    ],
)
def test_an_invalid_address_is_refused_without_secrets(url, message) -> None:
    with pytest.raises(LakeError) as refused:
        LakeStorage(url)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_folder_is_addressed_by_path_or_url(tmp_path: Path) -> None:
    for url in (str(tmp_path), f"file://{tmp_path}"):
        storage = LakeStorage(url)
        assert (storage.folder, storage.url) == (tmp_path, str(tmp_path))
    assert LakeStorage("s3://bucket/prefix").folder is None


def test_files_are_written_read_and_removed(tmp_path: Path) -> None:
    storage = LakeStorage(str(tmp_path))
    storage.put("east/a", b"1")
    assert (storage.folders(), storage.sizes("east"), storage.read("east/a")) == (["east"], {"a": 1}, b"1")
    storage.remove("east/a")
    assert storage.read("east/a") is None


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="the folder does not exist"):
        LakeStorage(str(tmp_path / "no")).folders()


def test_system_errors_are_one_sentence_about_the_lake(tmp_path: Path) -> None:
    (tmp_path / "east").mkdir()
    with pytest.raises(LakeError, match=r"^The lake .* cannot be read now: Is a directory\.$"):
        LakeStorage(str(tmp_path)).read("east")


def test_a_storage_can_be_sent_to_another_process(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(LakeStorage(str(tmp_path)))).url == str(tmp_path)
