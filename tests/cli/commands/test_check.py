"""`pyrometer check`: finds missing and changed files; `--repair` rebuilds derived data and keeps broken files."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyrometer.model.records import Event
from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE
from tests.support.duckdb_files import with_header

DERIVED = ("ledger_row", "carry", "energy", "hour_sum", "minute_sum", "minute_use", "quarter_use", "hour_use")


@pytest.fixture
def bill(pyrometer):
    """All figures in the ledger of a folder."""
    return lambda folder: (
        pyrometer(
            "cost", "--data", folder, "--all", "--price", "2.5", "--by", "hour,node,workload,state", "-o", "json"
        ).json
    )


@pytest.fixture(params=["recorded", "autumn"])
def folder(request, tmp_path, pyrometer):
    """A sealed folder that a test can break."""
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
    assert result.out.endswith(": no problems found.\n")
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
    assert pyrometer("check", folder).lines[-1].endswith(": no problems found.")


def test_repair_lists_a_changed_part_as_it_is(folder, pyrometer):
    path = max(parts(folder, "pod", "gpu_sample"), key=lambda one: one.stat().st_size)
    pq.write_table(pq.read_table(path).slice(1), path)
    result = pyrometer("check", folder, "--repair")
    assert (result.code, result.out.count("is listed as it is")) == (0, 1)


def test_repair_leaves_an_intact_folder_unchanged(folder, pyrometer):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    (line,) = pyrometer("check", folder, "--repair").lines
    assert line.endswith(": no problems found.")
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


def part(folder, kind):
    (path,) = (folder / "parts" / kind).rglob("*.parquet")
    return path


def tamper(path, change):
    """Rewrites a ledger part with its rows changed."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, compression="zstd")


@pytest.mark.parametrize("folder", ["recorded", "recorded_without_steps", "autumn", "unpriced"])
def test_check_accepts_an_intact_folder(pyrometer, request, folder):
    (line,) = pyrometer("check", request.getfixturevalue(folder)).lines
    assert line.endswith(": no problems found.")


def test_check_counts_rejected_records(pyrometer, copy_of_recorded):
    with Store(copy_of_recorded) as store:
        store.append([Event(5, "a clock that was never set")])
    rejected, verdict = pyrometer("check", copy_of_recorded).lines
    assert rejected.startswith("1 event record rejected: ")
    assert verdict.endswith(": no problems found.")


@pytest.mark.parametrize("kind", ["gpu_sample", "ledger_row", "pod"])
def test_check_names_a_missing_part(pyrometer, copy_of_recorded, kind):
    path = part(copy_of_recorded, kind)
    path.unlink()
    result = pyrometer("check", copy_of_recorded)
    assert (result.code, result.err) == (1, "")
    problem, verdict = result.out.splitlines()
    assert str(path.relative_to(copy_of_recorded)) in problem
    assert "missing" in problem
    assert verdict.endswith(": problems found.")


@pytest.mark.parametrize("keep", [0, 100, -20])
@pytest.mark.parametrize("kind", ["metric", "ledger_row"])
def test_check_names_a_truncated_part(pyrometer, copy_of_recorded, kind, keep):
    path = part(copy_of_recorded, kind)
    path.write_bytes(path.read_bytes()[:keep])
    result = pyrometer("check", copy_of_recorded)
    assert (result.code, result.err) == (1, "")
    problem, verdict = result.out.splitlines()
    assert str(path.relative_to(copy_of_recorded)) in problem
    assert "cannot be read" in problem
    assert verdict.endswith(": problems found.")


def test_check_names_a_part_with_changed_rows(pyrometer, copy_of_recorded):
    path = part(copy_of_recorded, "gpu_sample")
    pq.write_table(pq.read_table(path).slice(1), path)
    result = pyrometer("check", copy_of_recorded)
    assert result.code == 1
    assert str(path.relative_to(copy_of_recorded)) in result.out


def row_of_a_full_minute(rows):
    def minute(row):
        return row["minute_ms"], row["node_uid"], row["slot_index"]

    sums = Counter()
    for row in rows:
        sums[minute(row)] += row["ms"]
    return next(row for row in rows if sums[minute(row)] == 60_000)


def shorter(rows):
    row_of_a_full_minute(rows)["ms"] -= 1


def longer(rows):
    row_of_a_full_minute(rows)["ms"] += 1


def negative(rows):
    rows[0]["ms"] = -5


def unheard_of(rows):
    rows[0]["state"] = "asleep"


def twice(rows):
    rows[1] = dict(rows[0])


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (shorter, "60,000 ms"),
        (longer, "60,000 ms"),
        (negative, "negative"),
        (unheard_of, "state that does not exist"),
        (twice, "duplicates"),
    ],
)
def test_check_finds_tampered_ledger_rows(pyrometer, autumn, tmp_path, change, law):
    folder = shutil.copytree(autumn, tmp_path / "copy")
    assert pyrometer("check", folder).code == 0
    path = max((folder / "parts" / "ledger_row").rglob("*.parquet"), key=lambda one: one.stat().st_size)
    tamper(path, change)
    result = pyrometer("check", folder)
    assert (result.code, result.err) == (1, "")
    assert law in result.out
    assert result.out.endswith(": problems found.\n")


@pytest.mark.parametrize("change", [shorter, longer])
def test_check_finds_tampered_rows_without_node_records(pyrometer, copy_of_recorded, change):
    """A slot of a recording exists for a known time, and its ledger must have exactly that time."""
    tamper(part(copy_of_recorded, "ledger_row"), change)
    result = pyrometer("check", copy_of_recorded)
    assert (result.code, result.err) == (1, "")
    assert "ms" in result.out


def test_check_builds_a_missing_ledger(pyrometer, tmp_path, autumn):
    folder = shutil.copytree(autumn, tmp_path / "copy")
    with Store(folder) as store:
        store.drop_parts([*store.parts("ledger_row"), *store.parts("carry")])
        store.set_meta("ledger_fingerprint", "")
    assert pyrometer("check", folder).code == 0
    with Store(folder) as store:
        assert store.parts("ledger_row")
