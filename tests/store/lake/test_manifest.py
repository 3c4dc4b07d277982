"""The manifest of a cluster in a lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyrometer.store.catalog import SCHEMA_VERSION, Part
from pyrometer.store.lake import LakeError, LakeStorage, Manifest, manifest_of, manifests
from pyrometer.store.lake.manifest import folder_name

PART = Part("event", 0, 1, "parts/event/2025-10-10/00-1.parquet", 1, 7, None, "time_ms,kind")
MANIFEST = Manifest("east", "source", 5, 1, 2, (PART,), {"closed/2026-09.json": 3}, {}, {}, {})


def lake(folder: Path, **changed: Any) -> LakeStorage:
    """A lake with one cluster, whose manifest has other fields."""
    storage = LakeStorage(str(folder))
    storage.put("east/manifest.json", json.dumps(json.loads(MANIFEST.text()) | changed).encode())
    return storage


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert manifest_of(lake(tmp_path), "east") == MANIFEST
    assert manifest_of(lake(tmp_path), "west") is None
    assert MANIFEST.named == {PART.path: 7, "closed/2026-09.json": 3}


def test_manifests_differ_by_more_than_their_time() -> None:
    assert MANIFEST.says_the_same(MANIFEST._replace(written_ms=6))
    assert not MANIFEST.says_the_same(MANIFEST._replace(end_ms=3))
    assert not MANIFEST.says_the_same(None)


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": "west"},
        {"from_ms": 3},
        {"parts": [PART._asdict()] * 2},
        {"parts": {}},
        {"beside": {"../outside": 1}},
        {"meta": {"kept_from_ms": "x"}},
        {"schema_version": "1"},
    ],
)
def test_invalid_manifests_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(LakeError, match=r"manifest.json of 'east' .* cannot be read: "):
        manifest_of(lake(tmp_path, **changed), "east")


@pytest.mark.parametrize(
    "changed", [{"schema_version": SCHEMA_VERSION + 1}, {"parts": [PART._replace(kind="quark")._asdict()]}]
)
def test_newer_manifests_say_upgrade(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(LakeError, match="was written by a newer Pyrometer"):
        manifest_of(lake(tmp_path, **changed), "east")


def test_manifests_of_named_clusters(tmp_path: Path) -> None:
    assert [one.cluster for one in manifests(lake(tmp_path), ["east"])] == ["east"]
    with pytest.raises(LakeError, match=r"has no cluster 'west'\. There: east"):
        manifests(lake(tmp_path), ["west"])


@pytest.mark.parametrize(("cluster", "folder"), [("gke:eu/1", "gke%3Aeu%2F1"), ("..", "%2E."), ("a b", "a b")])
def test_folder_names_are_safe(cluster: str, folder: str) -> None:
    assert folder_name(cluster) == folder
