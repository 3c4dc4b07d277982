"""Reading the parts and hot tables of a kind as one view."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Event, Slot
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store, catalog
from pyrometer.store.reader import newest_slots, quoted, time_column_of

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z


def kinds(store, query="SELECT kind FROM event ORDER BY time_ms"):
    return [kind for (kind,) in store.connection.execute(query).fetchall()]


@pytest.fixture
def half_sealed(store):
    """A store with a sealed and a hot row."""
    store.append([Event(DAY, "sealed")])
    store.seal()
    store.append([Event(DAY + 1, "hot")])
    return store


def test_a_view_has_sealed_and_hot_rows(half_sealed):
    half_sealed.expose_all(["event"])
    assert kinds(half_sealed) == ["sealed", "hot"]


def test_a_view_can_leave_out_parts_and_limit_rows(half_sealed):
    half_sealed.expose(["event"], DAY, DAY + 10, without=half_sealed.parts())
    assert kinds(half_sealed) == ["hot"]
    half_sealed.expose(["event"], DAY, DAY + 10, suffix="_kept", keep="WHERE kind = 'sealed'")
    assert kinds(half_sealed, "SELECT kind FROM event_kept") == ["sealed"]


def test_a_view_of_a_kind_without_rows_is_empty(store):
    store.expose_all(["event"])
    assert kinds(store) == []


def test_only_limits_what_can_be_read(half_sealed):
    with half_sealed.only({"event": "FROM {rows} WHERE kind = 'hot'"}):
        assert half_sealed.is_limited
        half_sealed.expose_all(["event", "pod"])
        assert kinds(half_sealed) == ["hot"]
    assert not half_sealed.is_limited
    half_sealed.expose_all(["event"])
    assert kinds(half_sealed) == ["sealed", "hot"]


def test_fingerprint_changes_with_rows_and_not_with_sealing(half_sealed):
    everything = (["event"], 0, 2**62)
    before = half_sealed.fingerprint(*everything)
    half_sealed.seal()
    assert half_sealed.fingerprint(*everything) == before
    half_sealed.append([Event(DAY + 2, "more")])
    assert half_sealed.fingerprint(*everything) != before
    assert half_sealed.fingerprint(["pod"], 0, 2**62) == ""


def test_newest_time_is_limited(half_sealed):
    assert half_sealed.newest_ms(["event"], 2**62) == DAY + 1
    assert half_sealed.newest_ms(["event"], DAY) == DAY
    assert half_sealed.newest_ms(["event"], DAY - 1) is None


def test_newest_slots_have_one_record_per_slot(store):
    store.append([Slot(DAY, "n0", 0, healthy=False), Slot(DAY + 1, "n0", 0, healthy=True), Slot(DAY, "n0", 1)])
    assert sorted((slot.slot_index, slot.time_ms) for slot in newest_slots(store)) == [(0, DAY + 1), (1, DAY)]


def test_the_ledger_has_its_own_time_column():
    assert time_column_of(SCHEMAS["ledger_row"]) == "minute_ms"
    assert time_column_of(SCHEMAS["event"]) == "time_ms"


def test_quoted_paths_are_safe_in_sql():
    assert quoted(Path("it's/here")) == "it''s/here"


# -- parts of older versions ------------------------------------------------------------------------------------------


def event(time_ms, kind="seen", **rest):
    return Event(time_ms, kind, **rest)


def rows_of(store, kind="event"):
    store.expose_all([kind])
    rows = store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()
    return [SCHEMAS[kind].record(*row) for row in rows]


def list_an_older_part(folder, rows, without):
    """What a Pyrometer wrote that did not know some columns yet."""
    table = SCHEMAS["event"].table(rows).drop_columns(list(without))
    path = "parts/event/2025-10-10/00-000000000000.parquet"
    (folder / path).parent.mkdir(parents=True)
    with Store(folder, create=True) as store:
        pq.write_table(table, folder / path)
        part = catalog.Part(
            "event", DAY, DAY + MS_PER_HOUR, path, len(rows), 1, rows[-1].time_ms, ",".join(table.column_names)
        )
        with catalog.transaction(store.connection):
            catalog.list_parts(store.connection, [part])


def test_a_newer_column_of_an_older_part_is_null(folder):
    old = [event(DAY, message="old"), event(DAY + 1, message="old")]
    list_an_older_part(folder, old, without=("duration_ms", "message"))
    new = event(DAY + 2, duration_ms=5, message="new")
    hot = event(DAY + 3, message="hot")
    with Store(folder) as store:
        store.append([new])
        store.seal()
        store.append([hot])
        assert rows_of(store) == [*(row._replace(message=None) for row in old), new, hot]
        store.expose_all(["event"])
        described = store.connection.execute("DESCRIBE event").fetchall()
        assert [row[:2] for row in described] == [(c.name, c.duckdb_type) for c in SCHEMAS["event"].columns]
        assert store.newest_ms(["event"], DAY + 1) == DAY + 1
        assert store.newest_ms(["event"], DAY) == DAY


def test_a_late_duplicate_of_an_older_part_counts_once(folder):
    list_an_older_part(folder, [event(DAY)], without=("message", "duration_ms"))
    with Store(folder) as store:
        store.append([event(DAY, message="again"), event(DAY + 1)])
        assert rows_of(store) == [event(DAY), event(DAY + 1)]
        store.seal()
        assert rows_of(store) == [event(DAY), event(DAY + 1)]


def test_a_newer_column_of_the_key_is_null_in_older_parts(folder):
    list_an_older_part(folder, [event(DAY)], without=("step",))
    with Store(folder) as store:
        store.append([event(DAY), event(DAY, step=1)])
        assert rows_of(store) == [event(DAY, step=1), event(DAY)]
        store.seal()
        assert rows_of(store) == [event(DAY, step=1), event(DAY)]


def test_columns_are_read_in_the_order_of_the_schema(folder):
    row = event(DAY, node_uid="n", message="m", step=3)
    table = SCHEMAS["event"].table([row])
    backwards = table.select(table.column_names[::-1])
    with Store(folder, create=True) as store:
        store.append_tables({"event": backwards})
        assert rows_of(store) == [row]
        wider = backwards.append_column("not_declared", pa.array([1]))
        store.append_tables({"event": wider})
        assert rows_of(store) == [row]
