"""`pyrometer check --repair`: what is derived is built again to the same figures, what is broken is kept and told."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys

import duckdb
import pyarrow.parquet as pq
import pytest

from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE
from tests.support.duckdb_files import with_header

DERIVED = ("ledger_row", "carry", "energy", "hour_sum", "minute_sum", "minute_use", "quarter_use", "hour_use")


@pytest.fixture
def bill(pyrometer):
    """All that the ledger of a folder says."""
    return lambda folder: (
        pyrometer(
            "cost", "--data", folder, "--all", "--price", "2.5", "--by", "hour,node,workload,state", "-o", "json"
        ).json
    )


@pytest.fixture(params=["recorded", "autumn"])
def folder(request, tmp_path, pyrometer):
    """A folder that is sealed, and that tests may break."""
    copied = shutil.copytree(request.getfixturevalue(request.param), tmp_path / "copy")
    with Store(copied) as store:
        store.seal()
    assert pyrometer("check", copied).code == 0
    return copied


def parts(folder, *kinds):
    return [path for kind in kinds for path in sorted((folder / "parts" / kind).rglob("*.parquet"))]


@pytest.mark.parametrize("seed", range(3))
def test_repair_rebuilds_derived_parts_to_the_same_figures(folder, bill, pyrometer, seed):
    before = bill(folder)
    chance = random.Random(seed)
    broken = [path for path in parts(folder, *DERIVED) if chance.random() < 0.7] or parts(folder, "ledger_row")[:1]
    for path in broken:
        if chance.random() < 0.5:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
    assert pyrometer("check", folder).code == 1
    result = pyrometer("check", folder, "--repair")
    assert result.out.count("is built again.") == len(broken)
    assert result.out.endswith(": all is well.\n")
    assert (result.code, bill(folder)) == (0, before)


@pytest.mark.parametrize("damage", [None, b"", b"garbage" * 10_000])
def test_repair_recreates_a_damaged_catalog_from_the_parts(folder, bill, pyrometer, damage):
    before = bill(folder)
    if damage is None:
        (folder / DATABASE).unlink()
        (folder / f"{DATABASE}.wal").unlink(missing_ok=True)
    else:
        (folder / DATABASE).write_bytes(damage)
    assert "--repair" in pyrometer("cost", "--data", folder).failed(1)
    result = pyrometer("check", folder, "--repair")
    assert (result.code, result.err) == (0, "")
    assert "Repaired: A new catalog lists" in result.out
    assert bill(folder) == before


def test_repair_needs_only_a_copy_of_the_parts(folder, bill, pyrometer, tmp_path):
    before = bill(folder)
    shutil.copytree(folder / "parts", tmp_path / "again" / "parts")
    if (folder / "settings.yaml").exists():
        shutil.copy(folder / "settings.yaml", tmp_path / "again")
    assert pyrometer("check", tmp_path / "again", "--repair").code == 0
    assert bill(tmp_path / "again") == before


def test_repair_moves_broken_records_aside_and_counts_them(folder, pyrometer):
    gone, cut = (parts(folder, kind)[0] for kind in ("pod", "allocation"))
    rows = pq.read_metadata(cut).num_rows
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-20])
    result = pyrometer("check", folder, "--repair")
    assert result.code == 0
    assert f"Repaired: {rows:,} allocation rows are lost with " in result.out
    (kept,) = (folder / "lost").rglob("*.parquet")
    assert kept.name == cut.name
    assert pyrometer("check", folder).lines[-1].endswith(": all is well.")


def test_repair_lists_a_changed_part_as_it_is(folder, pyrometer):
    path = max(parts(folder, "pod", "gpu_sample"), key=lambda one: one.stat().st_size)
    pq.write_table(pq.read_table(path).slice(1), path)
    result = pyrometer("check", folder, "--repair")
    assert (result.code, result.out.count("is listed as it is")) == (0, 1)


def test_repair_leaves_an_intact_folder_unchanged(folder, pyrometer):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    (line,) = pyrometer("check", folder, "--repair").lines
    assert line.endswith(": all is well.")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before


def test_repair_refuses_a_newer_folder(folder, pyrometer):
    with Store(folder) as store:
        store.set_meta("schema_version", "99")
    assert "upgrade Pyrometer" in pyrometer("check", folder, "--repair").failed(1)
    assert not (folder / "lost").exists()


def headed(database, **header):
    database.write_bytes(with_header(database.read_bytes(), **header))


def overwritten(database):
    with duckdb.connect(str(database)) as connection:
        connection.execute("DROP TABLE meta")


HEALTHY = {
    "another DuckDB": lambda database: headed(database, storage=1_000, library="v9.1.0"),
    "an old DuckDB": lambda database: headed(database, storage=51, library=""),
    "encrypted": lambda database: headed(database, storage=68, flags=1),
    "another program": overwritten,
}


@pytest.mark.parametrize("made", HEALTHY)
def test_repair_leaves_an_undamaged_database_unchanged(folder, pyrometer, made):
    HEALTHY[made](folder / DATABASE)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for options in ((), ("--repair",)):
        assert "--repair" not in pyrometer("check", folder, *options).failed(1)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_repair_keeps_links_to_an_unmounted_volume(folder, pyrometer, tmp_path):
    database = folder / DATABASE
    database.rename(tmp_path / "volume")
    database.symlink_to(tmp_path / "unmounted")
    for options in ((), ("--repair",)):
        error = pyrometer("check", folder, *options).failed(1)
        assert f"is a link to {tmp_path / 'unmounted'}, which is missing" in error
        assert database.is_symlink()
    (tmp_path / "volume").rename(tmp_path / "unmounted")
    assert pyrometer("check", folder).code == 0


KILLED = """
import os, sys
from pyrometer.model.records import Event
from pyrometer.store import Store
store = Store(sys.argv[1])
store.append([Event({at}, "saved")])
store.seal()
store.append([Event({at} + 1, "hot")])
store.connection.execute("CHECKPOINT")
store.append([Event({at} + 2, "logged")])
store.append([Event({at} + 3_600_000, "sealed")])
store.seal()
store.append([Event({at} + 3_600_001, "logged")])
os._exit(0)
"""


def test_repair_of_a_damaged_log_loses_only_its_records(tmp_path, pyrometer):
    """Hot rows that were saved are kept, and so is a part that only the log lists."""
    folder, at_ms = tmp_path / "data", 1_760_054_400_000
    Store(folder, create=True).close()
    subprocess.run([sys.executable, "-c", KILLED.format(at=at_ms), str(folder)], check=True)
    log = folder / f"{DATABASE}.wal"
    data = log.read_bytes()
    log.write_bytes(data[:-20] + bytes(20 - 12) + data[-12:])
    sealed = list((folder / "parts" / "event").rglob("*.parquet"))
    assert "--repair" in pyrometer("check", folder).failed(1)
    assert pyrometer("check", folder, "--repair").code == 0
    with Store(folder) as store:
        store.expose_all(["event"])
        rows = store.connection.execute("SELECT time_ms, kind FROM event ORDER BY ALL").fetchall()
    assert len(sealed) > 1
    assert rows[:2] == [(at_ms, "saved"), (at_ms + 1, "hot")]
    assert (at_ms + 3_600_000, "sealed") in rows
    assert [path.name for path in (folder / "lost").rglob("*.wal")] == [log.name]
