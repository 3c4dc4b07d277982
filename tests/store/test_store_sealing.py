"""Hot tables become Parquet parts that anyone can read, and a part that is not listed does not exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Event, GpuSample, LedgerRow, Metric, Node
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from pyrometer.store import Store, catalog
from pyrometer.store.store import NewPart

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
HOUR = MS_PER_HOUR
ALWAYS = (-(2**62), 2**62)


def event(time_ms, kind="seen", **rest):
    return Event(time_ms, kind, **rest)


def node(time_ms):
    return Node(time_ms, "c", "n", "n", 8)


def rows_of(store, kind="event"):
    store.expose_all([kind])
    rows = store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()
    return [SCHEMAS[kind].record(*row) for row in rows]


def hot(store):
    return [(table.kind, table.from_ms) for table in catalog.hot_tables(store.connection)]


def tables_in(store):
    names = store.connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    return {name for (name,) in names} - {"meta", "marks", "rejections", "hot", "parts", "written"}


def files_in(folder):
    return {str(path.relative_to(folder)) for path in (folder / "parts").rglob("*") if path.is_file()}


# -- sealing ------------------------------------------------------------------------------------------------------


def test_sealing_lists_parts_and_drops_the_hot_tables(store, folder):
    store.append([event(DAY), event(DAY + 5), event(DAY + HOUR)], [node(DAY + 7)])
    sealed = store.seal()
    assert [(p.kind, p.from_ms, p.to_ms, p.row_count, p.newest_ms, p.digest) for p in sealed] == [
        ("event", DAY, DAY + HOUR, 2, DAY + 5, None),
        ("event", DAY + HOUR, DAY + 2 * HOUR, 1, DAY + HOUR, None),
        ("node", DAY, DAY + MS_PER_DAY, 1, DAY + 7, None),
    ]
    assert store.parts() == sealed
    assert store.parts("node") == sealed[2:]
    assert files_in(folder) == {part.path for part in sealed}
    assert [part.bytes for part in sealed] == [(folder / part.path).stat().st_size for part in sealed]
    assert hot(store) == []
    assert tables_in(store) == set()
    assert rows_of(store) == [event(DAY), event(DAY + 5), event(DAY + HOUR)]
    assert store.seal() == []


def test_part_paths_have_kind_and_time(store):
    store.append([event(DAY + 13 * HOUR)], [node(DAY + 13 * HOUR)])
    paths = [part.path for part in store.seal()]
    assert re.fullmatch(r"parts/event/2025-10-10/13-[0-9a-f]{12}.*\.parquet", paths[0])
    assert re.fullmatch(r"parts/node/2025-10-10/00-[0-9a-f]{12}.*\.parquet", paths[1])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, HOUR - 1)), min_size=1, max_size=40)
)
@settings(max_examples=10)
def test_a_part_is_sorted_as_its_kind_declares(lasting_store, drawn):
    lasting_store.drop_before(2**62)
    lasting_store.append([Metric(DAY + offset, run, 1, rank, "loss", 0.5) for run, rank, offset in drawn])
    [part] = lasting_store.seal()
    lying = pq.read_table(lasting_store.folder / part.path, columns=list(SCHEMAS["metric"].sort)).to_pylist()
    order = [tuple(row.values()) for row in lying]
    assert order == sorted(order)
    assert len(order) == part.row_count


def test_anyone_reads_the_parts_through_the_manifest(folder):
    rows = [GpuSample(DAY + i * 1_000, f"n{i % 3}", i % 8, power_w=i) for i in range(5_000)]
    with Store(folder, create=True) as store:
        store.append(rows, [node(DAY)])
        store.seal()
        store.append([GpuSample(DAY + 9 * HOUR, "still hot", 0)])
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["schema_version"] == catalog.SCHEMA_VERSION
    read = []
    for part in manifest["parts"]:
        if part["kind"] == "gpu_sample":
            table = pq.read_table(folder / part["path"])
            assert table.num_rows == part["row_count"]
            assert table.column_names == part["columns"].split(",") == list(GpuSample._fields)
            read += [GpuSample(**row) for row in table.to_pylist()]
    assert sorted(read) == sorted(rows)
    assert {part["kind"] for part in manifest["parts"]} == {"gpu_sample", "node"}


def test_parts_are_zstd_parquet_of_the_declared_types(store, folder):
    store.append([GpuSample(DAY, "n", 0, power_w=700)])
    [part] = store.seal()
    file = pq.ParquetFile(folder / part.path)
    group = file.metadata.row_group(0)
    assert {group.column(i).compression for i in range(group.num_columns)} == {"ZSTD"}
    declared = [(field.name, field.type) for field in SCHEMAS["gpu_sample"].arrow()]
    assert [(field.name, field.type) for field in file.schema_arrow] == declared


def test_late_rows_make_a_second_part(store):
    store.append([event(DAY)])
    store.seal()
    store.append([event(DAY + 1)])
    assert rows_of(store) == [event(DAY), event(DAY + 1)]
    store.seal()
    assert [(part.from_ms, part.row_count) for part in store.parts()] == [(DAY, 1), (DAY, 1)]
    assert rows_of(store) == [event(DAY), event(DAY + 1)]


def test_sealing_keeps_partitions_that_may_still_change(store):
    store.append([event(DAY + hour * HOUR) for hour in range(4)], [node(DAY)])
    sealed = store.seal(before_ms=DAY + 3 * HOUR - 1)
    assert [(part.kind, part.from_ms) for part in sealed] == [("event", DAY), ("event", DAY + HOUR)]
    assert hot(store) == [("event", DAY + 2 * HOUR), ("event", DAY + 3 * HOUR), ("node", DAY)]
    assert [part.from_ms for part in store.seal(before_ms=DAY + 3 * HOUR)] == [DAY + 2 * HOUR]
    assert rows_of(store) == [event(DAY + hour * HOUR) for hour in range(4)]
    assert rows_of(store, "node") == [node(DAY)]


def test_a_hot_table_that_holds_only_duplicates_leaves_no_part(store, folder):
    store.append([event(DAY)])
    [part] = store.seal()
    store.append([event(DAY)])
    assert store.seal() == []
    assert hot(store) == []
    assert files_in(folder) == {part.path}


# -- what is not listed does not exist ----------------------------------------------------------------------------


def leave_strays(store):
    """Copies of a listed part, as a crash in the middle of sealing leaves them behind."""
    listed = store.folder / store.parts("event")[0].path
    strays = [
        listed.with_name("00-0123456789ab.parquet"),
        listed.with_name("00-0123456789ab.tmp"),
        store.folder / "parts" / "event" / "2030-01-01" / "00-0123456789ab.parquet",
        store.folder / "parts" / "no_such_kind" / "x.parquet",
    ]
    for path in strays:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(listed.read_bytes())
    return strays


def test_the_manifest_follows_every_change_while_the_store_is_open(store, folder):
    def listed():
        return [part["path"] for part in json.loads((folder / "manifest.json").read_text())["parts"]]

    assert listed() == []
    store.append([event(DAY)])
    store.append([event(DAY + 48 * HOUR)])
    store.seal()
    assert listed() == [part.path for part in store.parts()]
    assert len(listed()) == 2
    store.drop_before(DAY + 24 * HOUR)
    assert listed() == [part.path for part in store.parts()]
    assert len(listed()) == 1
    store.drop_parts(store.parts())
    assert listed() == []


def test_unlisted_files_are_never_read(store):
    store.append([event(DAY)])
    store.seal()
    strays = leave_strays(store)
    assert rows_of(store) == [event(DAY)]
    assert store.newest_ms(["event"], 2**62) == DAY
    assert all(path.exists() for path in strays)


def test_unlisted_files_are_removed_at_start_and_nothing_else(folder):
    with Store(folder, create=True) as store:
        store.append([event(DAY)])
        [part] = store.seal()
        strays = leave_strays(store)
    listed = [entry["path"] for entry in json.loads((folder / "manifest.json").read_text())["parts"]]
    assert listed == [part.path]
    notes = folder / "notes.txt"
    notes.write_text("mine")
    with Store(folder) as store:
        assert [path for path in strays if path.exists()] == []
        assert files_in(folder) == {part.path}
        assert rows_of(store) == [event(DAY)]
        assert notes.read_text() == "mine"


# -- retention ----------------------------------------------------------------------------------------------------


def test_retention_drops_parts_files_and_hot_tables_and_nothing_newer(store, folder):
    for hour in range(4):
        store.append([event(DAY + hour * HOUR)])
    store.append([node(DAY)])
    store.seal(before_ms=DAY + 2 * HOUR)
    late = event(DAY + 1)
    store.append([late])  # hot again in an hour that is sealed
    assert store.drop_before(DAY + 3 * HOUR) == 4  # two parts, the late rows, hour 2
    assert rows_of(store) == [event(DAY + 3 * HOUR)]
    assert rows_of(store, "node") == [node(DAY)]  # its day is not over
    assert store.parts() == []
    assert files_in(folder) == set()
    assert hot(store) == [("event", DAY + 3 * HOUR), ("node", DAY)]
    assert len(tables_in(store)) == 2
    assert store.drop_before(DAY + 3 * HOUR) == 0


def test_kinds_can_have_their_own_retention(store, folder):
    metric = Metric(DAY, "r", 1, 0, "loss", 0.5)
    store.append([event(DAY), metric, GpuSample(DAY, "n", 0)])
    store.seal()
    store.append([event(DAY + 1), metric._replace(step=1), GpuSample(DAY + 1, "n", 0)])
    assert store.drop_before(DAY + HOUR, kinds=["metric", "gpu_sample"]) == 4
    assert rows_of(store) == [event(DAY), event(DAY + 1)]
    assert rows_of(store, "metric") == rows_of(store, "gpu_sample") == []
    assert files_in(folder) == {part.path for part in store.parts("event")}
    assert hot(store) == [("event", DAY)]
    assert store.drop_before(DAY + HOUR, kinds=[]) == 0


def test_retention_keeps_an_incomplete_partition(store):
    store.append([event(DAY), event(DAY + HOUR)])
    store.seal(before_ms=DAY + HOUR)
    assert store.drop_before(DAY + HOUR - 1) == 0
    assert store.drop_before(DAY + HOUR) == 1
    assert rows_of(store) == [event(DAY + HOUR)]
    assert store.drop_before(DAY + 2 * HOUR - 1) == 0
    assert store.drop_before(DAY + 2 * HOUR) == 1
    assert rows_of(store) == []


@given(st.lists(st.integers(0, 30), max_size=10, unique=True), st.integers(0, 31), st.integers(0, 31))
@settings(max_examples=15)
def test_after_retention_exactly_the_newer_partitions_are_left(lasting_store, hours, sealed, dropped):
    lasting_store.drop_before(2**62)
    lasting_store.append([event(DAY + hour * HOUR) for hour in hours], [node(DAY + hour * HOUR) for hour in hours])
    lasting_store.seal(before_ms=DAY + sealed * HOUR)
    lasting_store.drop_before(DAY + dropped * HOUR)
    assert [row.time_ms for row in rows_of(lasting_store)] == [DAY + h * HOUR for h in sorted(hours) if h >= dropped]
    days = dropped // 24 * 24
    assert [r.time_ms for r in rows_of(lasting_store, "node")] == [DAY + h * HOUR for h in sorted(hours) if h >= days]
    assert files_in(lasting_store.folder) == {part.path for part in lasting_store.parts()}


def test_dropped_parts_are_gone(store, folder):
    store.append([event(DAY), event(DAY + HOUR)])
    first, second = store.seal()
    store.drop_parts([first])
    assert store.parts() == [second]
    assert files_in(folder) == {second.path}
    assert rows_of(store) == [event(DAY + HOUR)]


def test_retention_ignores_missing_files(store, folder):
    store.append([event(DAY)])
    [part] = store.seal()
    (folder / part.path).unlink()
    assert store.drop_before(2**62) == 1
    assert rows_of(store) == []


# -- derived parts ------------------------------------------------------------------------------------------------


def ledger(from_ms, state, digest, hours=1):
    query = (
        f"SELECT {from_ms} + i * 60000 AS minute_ms, 'n' AS node_uid, 0 AS slot_index, NULL AS pod_uid, 1 AS attempt, "
        f"'{state}' AS state, 1 AS evidence, NULL AS usd_micro_per_hour, 60000 AS ms FROM range({60 * hours}) t(i)"
    )
    return NewPart("ledger_row", from_ms, from_ms + hours * HOUR, query, digest)


def states(store):
    store.expose_all(["ledger_row"])
    return store.connection.execute(
        "SELECT min(minute_ms), state, count(*) FROM ledger_row GROUP BY state ORDER BY 1"
    ).fetchall()


def test_derived_parts_keep_their_digest(folder):
    with Store(folder, create=True) as store:
        store.replace([ledger(DAY, "free", "first")])
    with Store(folder) as store:
        [part] = store.parts("ledger_row")
        assert (part.from_ms, part.to_ms, part.row_count, part.digest) == (DAY, DAY + HOUR, 60, "first")
        assert rows_of(store, "ledger_row")[0] == LedgerRow(DAY, "n", 0, None, 1, "free", 1, None, 60_000)


def test_new_parts_take_the_place_of_those_whose_time_they_cover(store, folder):
    store.replace([ledger(DAY + hour * HOUR, f"old{hour}", "old") for hour in range(4)])
    before = {part.from_ms: part for part in store.parts()}
    store.replace([ledger(DAY + HOUR, "new", "new", hours=2)])
    assert states(store) == [(DAY, "old0", 60), (DAY + HOUR, "new", 120), (DAY + 3 * HOUR, "old3", 60)]
    kept = [part for part in store.parts() if part.digest == "old"]
    assert kept == [before[DAY], before[DAY + 3 * HOUR]]
    assert files_in(folder) == {part.path for part in store.parts()}
    assert len(files_in(folder)) == 3


def test_only_parts_that_overlap_a_replacement_are_replaced(store):
    store.replace([ledger(DAY, "wide", "old", hours=3), ledger(DAY + 3 * HOUR, "next", "old")])
    store.replace([ledger(DAY + 2 * HOUR, "narrow", "new")])
    assert states(store) == [(DAY + 2 * HOUR, "narrow", 60), (DAY + 3 * HOUR, "next", 60)]


def test_replacing_one_kind_leaves_the_others(store):
    store.append([event(DAY)])
    store.seal()
    store.replace([ledger(DAY, "free", "a")])
    store.replace([ledger(DAY, "train", "b")])
    assert rows_of(store) == [event(DAY)]
    assert states(store) == [(DAY, "train", 60)]


def test_an_empty_derived_part_is_listed(store):
    nothing = ledger(DAY, "free", "a")
    store.replace([nothing._replace(query=f"SELECT * FROM ({nothing.query}) WHERE false")])
    [part] = store.parts()
    assert (part.row_count, part.newest_ms, part.digest) == (0, None, "a")
    assert rows_of(store, "ledger_row") == []
    assert store.newest_ms(["ledger_row"], 2**62) is None


def test_when_one_part_cannot_be_written_the_old_ones_stay(folder):
    good, bad = ledger(DAY, "new", "new"), ledger(DAY + HOUR, "new", "new")._replace(query="SELECT no_such_column")
    with Store(folder, create=True) as store:
        store.replace([ledger(DAY, "old", "old"), ledger(DAY + HOUR, "old", "old")])
        before = store.parts()
        with pytest.raises(duckdb.Error, match="no_such_column"):
            store.replace([good, bad])
        assert store.parts() == before
        assert states(store) == [(DAY, "old", 120)]
    with Store(folder) as store:
        assert files_in(folder) == {part.path for part in before}
        assert states(store) == [(DAY, "old", 120)]


def test_when_listing_fails_the_old_parts_stay(store, monkeypatch):
    store.replace([ledger(DAY, "old", "old")])
    before = store.parts()

    def fails(*_):
        raise RuntimeError("between unlisting and listing")

    monkeypatch.setattr(catalog, "list_parts", fails)
    with pytest.raises(RuntimeError, match="between"):
        store.replace([ledger(DAY, "new", "new")])
    assert store.parts() == before
    assert states(store) == [(DAY, "old", 60)]


# -- fingerprint --------------------------------------------------------------------------------------------------


def test_the_fingerprint_changes_when_rows_are_added_or_dropped(store):
    seen = [store.fingerprint(["event"], *ALWAYS)]
    for change in (
        lambda: store.append([event(DAY)]),
        lambda: store.append([event(DAY + 1)]),
        lambda: store.append([event(DAY + HOUR)]),
        store.seal,
        lambda: store.append([event(DAY + 2)]),
        lambda: store.drop_parts(store.parts()[:1]),
        lambda: store.drop_before(2**62),
    ):
        change()
        if change != store.seal:
            seen.append(store.fingerprint(["event"], *ALWAYS))
    assert len(set(seen[:-1])) == len(seen) - 1
    assert seen[-1] == seen[0]  # nothing is nothing


def test_replacing_dropped_rows_changes_the_fingerprint(store):
    store.append([event(DAY)])
    hot_before = store.fingerprint(["event"], *ALWAYS)
    store.drop_before(2**62)
    store.append([event(DAY + 1)])
    assert store.fingerprint(["event"], *ALWAYS) != hot_before
    store.seal()
    sealed_before = store.fingerprint(["event"], *ALWAYS)
    store.drop_before(2**62)
    store.append([event(DAY + 2)])
    store.seal()
    assert store.fingerprint(["event"], *ALWAYS) != sealed_before


def test_the_fingerprint_of_a_replaced_part_is_another(store):
    store.replace([ledger(DAY, "free", "a")])
    before = store.fingerprint(["ledger_row"], *ALWAYS)
    store.replace([ledger(DAY, "train", "b")])
    assert store.fingerprint(["ledger_row"], *ALWAYS) != before


def test_the_fingerprint_changes_only_then(folder):
    with Store(folder, create=True) as store:
        for sequence in range(3):
            rows = [event(DAY + sequence), event(DAY + HOUR), event(DAY + 2 * HOUR + sequence)]
            store.append(rows, producer="node-1", sequence=sequence)
        before = store.fingerprint(["event"], *ALWAYS)
        unchanged = {
            "sent twice": lambda: store.append([event(DAY + 9)], producer="node-1", sequence=2),
            "rejected": lambda: store.append([event(1)]),
            "another kind": lambda: store.append([node(DAY)]),
            "a text": lambda: store.set_meta("a", "b"),
            "read": lambda: rows_of(store),
            "one hour sealed": lambda: store.seal(before_ms=DAY + HOUR),
            "all sealed": store.seal,
            "nothing that old": lambda: store.drop_before(DAY),
        }
        for what, change in unchanged.items():
            change()
            assert store.fingerprint(["event"], *ALWAYS) == before, what
    with Store(folder) as store:
        assert store.fingerprint(["event"], *ALWAYS) == before


def test_late_rows_that_are_sealed_keep_their_fingerprint(store):
    store.append([event(DAY), event(DAY + HOUR)])
    store.seal()
    store.append([event(DAY + 1)])
    before = store.fingerprint(["event"], *ALWAYS)
    store.seal()
    assert store.fingerprint(["event"], *ALWAYS) == before


def test_the_fingerprint_covers_the_requested_time(store):
    store.append([event(DAY)])
    before = store.fingerprint(["event"], DAY, DAY + HOUR)
    store.append([event(DAY + HOUR), event(DAY - 1)])
    store.seal(before_ms=DAY)
    assert store.fingerprint(["event"], DAY, DAY + HOUR) == before
    assert store.fingerprint(["event"], DAY - 1, DAY + HOUR) != before
    store.drop_before(DAY)
    assert store.fingerprint(["event"], DAY - 1, DAY + HOUR) == before


def test_catalog_paths_are_relative(folder, tmp_path):
    with Store(folder, create=True) as store:
        store.append([event(DAY)])
        [part] = store.seal()
    assert not Path(part.path).is_absolute()
    moved = folder.rename(tmp_path / "moved")
    with Store(moved) as store:
        assert rows_of(store) == [event(DAY)]
