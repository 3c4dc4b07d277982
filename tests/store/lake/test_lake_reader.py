"""One cluster of a lake, readable like a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyrometer.store import StoreError
from pyrometer.store.lake import Cache, LakeError, LakeReader, LakeStorage, manifest_of
from tests.support.hand_lakes import copy_to_lake, facts, fill_store
from tests.support.histories import folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeStorage:
    """A lake with one cluster."""
    storage = LakeStorage(str(tmp_path_factory.mktemp("lake")))
    with folder() as store:
        fill_store(store, facts(4))
        copy_to_lake(store, storage, "east")
    return storage


def test_a_reader_has_the_parts_of_its_manifest(lake: LakeStorage, tmp_path: Path) -> None:
    manifest = manifest_of(lake, "east")
    assert manifest is not None
    with LakeReader(lake, manifest, Cache(tmp_path, 0), threads=1) as reader:
        assert reader.parts() == list(manifest.parts)
        assert reader.hot_tables() == []
        reader.expose_all(["node"])
        assert reader.connection.execute("SELECT count(*) > 0 FROM node").fetchall() == [(True,)]
        assert reader.connection.execute("SELECT current_setting('threads')").fetchall() == [(1,)]


def test_a_cluster_that_is_not_visible_is_an_error(lake: LakeStorage, tmp_path: Path) -> None:
    manifest = manifest_of(lake, "east")
    assert manifest is not None
    with pytest.raises(LakeError, match="cannot be seen here: there is no such folder"):
        LakeReader(LakeStorage(str(tmp_path)), manifest, Cache(tmp_path, 0))


def test_the_cache_removes_the_least_recently_used_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 150)
    root = cache.of(LakeStorage("s3://bucket/lake"), "east")
    root.mkdir(parents=True)
    for number in range(3):
        (root / str(number)).write_bytes(bytes(100))
        os.utime(root / str(number), (1_000 + number, 1_000 + number))
    cache._make_room()
    assert [path.name for path in root.iterdir()] == ["2"]


def test_the_cache_changes_only_its_own_files(tmp_path, monkeypatch) -> None:
    """Whatever a manifest says: here, one that was never checked."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "cache" / "mine").mkdir(parents=True)
    (tmp_path / "cache" / "mine" / "kept").write_bytes(bytes(100))
    os.utime(tmp_path / "cache" / "mine" / "kept", (0, 0))
    fetched: list[Path] = []
    monkeypatch.setattr(LakeStorage, "download", lambda self, path, into: fetched.append(into))
    cache = Cache(tmp_path / "cache", 0)
    for path in ("../../../mine", "/tmp/mine"):
        with pytest.raises(StoreError, match="leads out of"):
            cache.paths(LakeStorage("s3://bucket/lake"), "east", [(path, 1)])
    root = cache.of(LakeStorage("s3://bucket/lake"), "east")
    root.mkdir(parents=True)
    (root / "parts").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="leads out of"):
        cache.paths(LakeStorage("s3://bucket/lake"), "east", [("parts/new", 1)])
    cache._make_room()
    assert fetched == []
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "cache" / "mine" / "kept").exists()
