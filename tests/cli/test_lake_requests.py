"""Commands on a lake: copying a folder, queries, and errors."""

from __future__ import annotations

import sys

import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store
from tests.support.hand_ledgers import job_records, node_records

START_MS = 1_794_600_000_000 // MS_PER_HOUR * MS_PER_HOUR


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two clusters whose objects have the same IDs. One ends an hour before the other."""
    found = {}
    for name, hours in (("east", 3), ("west", 2)):
        found[name] = tmp_path_factory.mktemp("folders") / name
        with Store(found[name], create=True) as store:
            store.append(node_records(START_MS, START_MS + hours * MS_PER_HOUR))
            store.append(job_records("nlp" if name == "east" else "vision", "pod-0", START_MS, START_MS + MS_PER_HOUR))
    return found


@pytest.fixture
def lake(folders, pyrometer, tmp_path):
    for name, folder in folders.items():
        (printed,) = pyrometer("export", "lake", "--data", folder, "--cluster", name, "--out", tmp_path / "lake").lines
        assert printed.endswith(f": {name} in {tmp_path / 'lake'}")
    return tmp_path / "lake"


def test_lake_answers_equal_those_of_its_folders(folders, lake, pyrometer) -> None:
    for name, folder in folders.items():
        ours = pyrometer("cost", "--lake", lake, "--cluster", name, "--by", "team,state", "-o", "json").json
        (known,) = ours.pop("clusters")
        theirs = pyrometer("cost", "--data", folder, "--by", "team,state", "-o", "json").json
        assert ours == theirs
        assert known == {"cluster": name, "to": theirs["window"]["to"]}
        assert pyrometer("why", "--lake", lake, "--cluster", name).lines == pyrometer("why", "--data", folder).lines
    both = pyrometer("cost", "--lake", lake, "--by", "cluster,team", "--all")
    assert both.code == 0
    assert [line.split()[:2] for line in both.out.splitlines()[1:3]] == [["east", "platform"], ["west", "platform"]]
    assert both.err.startswith("The lake has no data of west after 20")
    csv = pyrometer("export", "csv", "--lake", lake, "--by", "team", "--all")
    assert {line.split(",")[0] for line in csv.out.splitlines()[1:]} >= {"nlp", "vision", "platform"}
    again = pyrometer("export", "lake", "--data", folders["east"], "--cluster", "east", "--out", lake).lines
    assert again == [f"0 files copied, 0.0 MB: east in {lake}"]


def test_impossible_lake_options_are_usage_errors(folders, lake, pyrometer, monkeypatch) -> None:
    assert "Pass --cluster NAME. Clusters in this lake: east, west" in pyrometer("why", "--lake", lake).failed(2)
    assert "Pass only one of" in pyrometer("cost", "--lake", lake, "--data", folders["east"]).failed(2)
    assert "--cluster needs --lake URL" in pyrometer("cost", "--data", folders["east"], "--cluster", "east").failed(2)
    assert "--engine needs --lake URL" in pyrometer("cost", "--data", folders["east"], "--engine", "ray").failed(2)
    assert "--address needs --engine ray" in pyrometer("cost", "--lake", lake, "--address", "auto").failed(2)
    assert "drop --last" in pyrometer("export", "lake", "--data", folders["east"], "--last", "1h").failed(2)
    assert "No lake: pass --out URL" in pyrometer("export", "lake", "--data", folders["east"]).failed(2)
    refused = pyrometer("export", "lake", "--data", folders["east"], "--cluster", "west", "--out", lake).failed(1)
    assert "is copied from another data folder" in refused
    assert "instead of --lake" in pyrometer(
        "export", "mlflow", "--lake", lake, "--tracking-uri", "http://127.0.0.1:9"
    ).failed(2)
    monkeypatch.setitem(sys.modules, "ray", None)
    needed = pyrometer("cost", "--lake", lake, "--engine", "ray").failed(1)
    assert needed == "--engine ray needs what is not installed: pip install 'pyrometer[ray]'"


def test_unreachable_ray_cluster_is_an_error(lake, pyrometer) -> None:
    pytest.importorskip("ray")
    away = pyrometer("cost", "--lake", lake, "--engine", "ray", "--address", "127.0.0.1:9").failed(1)
    assert away == "No Ray cluster answers at --address 127.0.0.1:9: Connection refused."
    assert "is not a Ray cluster" in pyrometer(
        "cost", "--lake", lake, "--engine", "ray", "--address", "nowhere"
    ).failed(1)
