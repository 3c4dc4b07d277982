"""Data folders of every earlier version: the current code opens them and gives the same answers."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Span
from pyrometer.store import Store, StoreError
from pyrometer.store.catalog import SCHEMA_VERSION

FOLDERS = Path(__file__).parents[1] / "data" / "folders"
NAMES = sorted(path.stem for path in FOLDERS.glob("*.json"))
SEVERAL_SECONDS = pytest.mark.heavy
EACH = [NAMES[0], *(pytest.param(name, marks=SEVERAL_SECONDS) for name in NAMES[1:])]


def unpacked(name: str, into: Path) -> Path:
    with tarfile.open(FOLDERS / f"{name}.tar.xz") as tar:
        tar.extractall(into, filter="data")
    return into / "data"


def expected_answers(name: str) -> dict:
    return json.loads((FOLDERS / f"{name}.json").read_text())


def rows_of(answer: dict) -> dict:
    return {
        (row["hour"], row["node"], row["workload"] and row["workload"]["uid"], row["state"]): (
            row["gpu_ms"],
            row["usd_micro"],
        )
        for row in answer["rows"]
    }


@pytest.mark.parametrize("name", EACH)
def test_folder_of_an_earlier_version_gives_the_same_answers(name, tmp_path, pyrometer):
    folder, expected = unpacked(name, tmp_path), expected_answers(name)["answers"]
    hot = pyrometer("check", folder)
    assert (hot.code, hot.out.endswith(": no problems found.\n")) == (0, True)
    cost = pyrometer("cost", "--data", folder, "--all", "--by", "hour,node,workload,state", "-o", "json").json
    assert rows_of(cost) == rows_of(expected["cost"])
    for amount in ("gpu_ms", "usd_micro", "unpriced_gpu_ms"):
        assert cost["total"].get(amount) == expected["cost"]["total"].get(amount, 0)
    assert cost["total"]["gpu_ms"] == 2 * 3 * 3_600_000  # capacity × time
    why = pyrometer("why", "--data", folder, "--all", "-o", "json").json
    states = {state["state"]: state["gpu_ms"] for state in expected["why"]["states"]}
    assert {state["state"]: state["gpu_ms"] for state in why["states"]} == states
    assert [finding["cause"] for finding in why["findings"]] == expected["why"]["causes"]
    runs = pyrometer("runs", "--data", folder, "-o", "json").json["rows"]
    for name in ("run", "experiment", "attempts", "ranks", "steps", "gpu_hours", "usd", "goodput"):
        assert [row[name] for row in runs] == [row[name] for row in expected["runs"]["rows"]]
    _opens_again_as_it_is(folder, pyrometer)


def _opens_again_as_it_is(folder: Path, pyrometer) -> None:
    """Nothing is rebuilt or rewritten, and hot tables can be sealed."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    assert pyrometer("cost", "--data", folder, "--all").code == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before
    with Store(folder) as store:
        assert store.hot_tables()
        store.seal()
    assert pyrometer("check", folder).code == 0


def test_newest_schema_has_a_stored_folder():
    now = {name: {column.name: column.type for column in schema.columns} for name, schema in sorted(SCHEMAS.items())}
    newest = expected_answers(NAMES[-1])
    assert (newest["kinds"], newest["schema_version"]) == (now, SCHEMA_VERSION), (
        "The stored schema changed. Keep a folder with the new schema: "
        f"`python tools/old_folder.py tests/data/folders/{len(NAMES) + 1:02d}-what-changed`, and describe the "
        "change in its README."
    )


def test_column_that_became_wider_accepts_larger_values(tmp_path):
    folder = unpacked("07-batches-and-span-order", tmp_path)
    with Store(folder) as store:
        store.expose_all(["span"])
        ((newest_ms,),) = store.connection.execute("SELECT max(time_ms) FROM span").fetchall()
        store.append([Span(newest_ms, "trace", "late", "step", 1, "sft", 1, 0, 1, after_us=100_000)])
        store.expose_all(["span"])
        late = store.connection.execute("SELECT after_us FROM span WHERE span_id = 'late'").fetchall()
    assert late == [(100_000,)]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = '99' WHERE name = 'schema_version'",
        "INSERT INTO parts SELECT * REPLACE ('quantum_sample' AS kind, 'parts/q' AS path) FROM parts LIMIT 1",
        "UPDATE parts SET columns = columns || ',qubits' WHERE kind = 'node'",
        "INSERT INTO hot VALUES ('quantum_sample', 0, 'hot_quantum_sample_0')",
    ],
)
def test_folder_of_a_newer_version_is_left_unchanged(tmp_path, pyrometer, change):
    folder = unpacked(NAMES[-1], tmp_path)
    with Store(folder) as store:
        store.connection.execute(change)
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    error = pyrometer("cost", "--data", folder).failed(1)
    assert "it was written by a newer Pyrometer (" in error
    assert error.endswith(": upgrade Pyrometer.")
    assert pyrometer("check", folder, "--repair").failed(1) == error
    assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == before
    with pytest.raises(StoreError):
        Store(folder)


def test_error_about_a_newer_duckdb_names_the_storage_version(tmp_path, pyrometer):
    folder = unpacked(NAMES[-1], tmp_path)
    path = folder / "pyrometer.duckdb"
    body = bytearray(path.read_bytes())
    assert body[8:12] == b"DUCK"  # after a checksum; then the version of the storage
    body[12:20] = (10_000).to_bytes(8, "little")
    path.write_bytes(body)
    error = pyrometer("cost", "--data", folder).failed(1)
    assert str(path) in error
    assert "storage version 10000" in error
    assert "upgrade" in error
    assert "--repair" not in error
