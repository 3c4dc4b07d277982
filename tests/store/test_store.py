"""What goes into the store: batches that count once, rows in their partitions, bad rows counted and left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Batch, Event, GpuSample, LedgerRow, Metric, Node
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from pyrometer.store import Store, StoreError, catalog
from pyrometer.store import store as store_module
from pyrometer.store.batches import NEWEST_MS, OLDEST_MS
from pyrometer.store.store import MAX_PARTITIONS_PER_BATCH

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
HOUR = MS_PER_HOUR
METRIC = Metric(DAY, "r", 1, 0, "loss", 1.0)
TOO_OLD = "their time is before September 2001"
TOO_NEW = "their time is after November 2286"
NO_TIME = "they have no time"


def event(time_ms, kind="seen", **rest):
    return Event(time_ms, kind, **rest)


def rows_of(store, kind="event", from_ms=-(2**62), to_ms=2**62):
    store.expose([kind], from_ms, to_ms)
    rows = store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()
    return [SCHEMAS[kind].record(*row) for row in rows]


def hot(store, kind=None):
    return [(table.kind, table.from_ms) for table in catalog.hot_tables(store.connection, kind)]


def in_hot_tables(store):
    """The rows of every hot table in their stored order."""
    return {
        (table.kind, table.from_ms): store.connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()[0][0]
        for table in catalog.hot_tables(store.connection)
    }


# -- a batch counts once ------------------------------------------------------------------------------------------


def test_a_batch_sent_twice_counts_once(store):
    batch = [event(DAY), event(DAY + 1)]
    assert store.append(batch, producer="node-1", sequence=0) is True
    assert store.append(batch, producer="node-1", sequence=0) is False
    assert sum(in_hot_tables(store).values()) == 2
    assert rows_of(store) == batch


def test_a_decreasing_sequence_is_ignored(store):
    assert store.append([event(DAY)], producer="node-1", sequence=7)
    assert not store.append([event(DAY + 1)], producer="node-1", sequence=3)
    assert store.append([event(DAY + 2)], producer="node-1", sequence=9)  # a gap is the producer's loss, not ours
    assert rows_of(store) == [event(DAY), event(DAY + 2)]
    assert catalog.mark_of(store.connection, "node-1") == 9


def test_producers_count_for_themselves(store):
    assert store.append([event(DAY)], producer="node-1", sequence=5)
    assert store.append([event(DAY + 1)], producer="node-2", sequence=0)
    assert not store.append([event(DAY + 2)], producer="node-1", sequence=5)
    assert rows_of(store) == [event(DAY), event(DAY + 1)]


def test_marks_survive_a_restart(folder):
    with Store(folder, create=True) as store:
        assert store.append([event(DAY)], producer="node-1", sequence=0)
    with Store(folder) as store:
        assert not store.append([event(DAY)], producer="node-1", sequence=0)
        assert rows_of(store) == [event(DAY)]


def test_a_batch_without_rows_advances_the_mark(store):
    assert store.append([], producer="node-1", sequence=0)
    assert catalog.mark_of(store.connection, "node-1") == 0
    assert not store.append([event(DAY)], producer="node-1", sequence=0)


def test_an_empty_table_is_accepted(store):
    nothing = SCHEMAS["event"].table([])
    assert store.append_tables({"event": nothing}, producer="node-1", sequence=0)
    assert hot(store) == []
    assert store.append([event(DAY)], producer="node-1", sequence=1)


def test_one_batch_holds_several_kinds(store):
    sample, seen = GpuSample(DAY, "n", 0, power_w=700), event(DAY)
    store.append([seen, sample], [event(DAY + 1)])
    assert rows_of(store, "gpu_sample") == [sample]
    assert rows_of(store) == [seen, event(DAY + 1)]


def test_a_table_may_lack_nullable_columns(store):
    older = SCHEMAS["metric"].table([METRIC._replace(source="backward", first_step=1, last_step=1)])
    store.append_tables({"metric": older.drop_columns(["source", "first_step", "last_step"])})
    assert rows_of(store, "metric") == [METRIC._replace(source=None, first_step=None, last_step=None)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"metric": SCHEMAS["metric"].table([METRIC._replace(name=None)])}, id="null"),
        pytest.param({"metric": SCHEMAS["metric"].table([METRIC]).drop_columns(["name"])}, id="no such column"),
        pytest.param({"no_such_kind": SCHEMAS["metric"].table([METRIC])}, id="no such kind"),
    ],
)
def test_a_batch_with_an_invalid_table_leaves_no_rows(store, bad):
    store.append([event(DAY)], producer="node-1", sequence=0)
    good = {"event": SCHEMAS["event"].table([event(DAY + 1), event(5)])}
    with pytest.raises((StoreError, KeyError), match=r"name|no_such_kind"):
        store.append_tables({**good, **bad}, producer="node-1", sequence=1)
    assert rows_of(store) == [event(DAY)]
    assert hot(store) == [("event", DAY)]
    assert catalog.mark_of(store.connection, "node-1") == 0
    assert store.rejections() == {}
    assert store.append_tables(good, producer="node-1", sequence=1)  # the same number, now good
    assert rows_of(store) == [event(DAY), event(DAY + 1)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(METRIC._replace(step=2**64), id="too large"),
        pytest.param(METRIC._replace(attempt=99_999), id="too large for its column"),
        pytest.param(METRIC._replace(value="much"), id="no number"),
        pytest.param(METRIC._replace(name=None), id="null"),
    ],
)
def test_an_invalid_value_refuses_its_batch_in_one_sentence(store, bad):
    with pytest.raises(StoreError, match=r"^A batch with metric .* refused as a whole: .*\.$"):
        store.append([event(DAY)], [METRIC, bad])
    assert hot(store) == []


def test_a_batch_that_fails_while_read_leaves_no_rows(store):
    def breaks_off():
        yield event(DAY)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.append(breaks_off(), producer="node-1", sequence=0)
    assert hot(store) == []
    assert store.append([event(DAY)], producer="node-1", sequence=0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6)), max_size=12))
@settings(max_examples=20)
def test_only_rising_sequences_of_a_producer_are_taken(lasting_store, sent):
    lasting_store.drop_before(2**62)
    lasting_store.connection.execute("DELETE FROM marks")
    marks, expected = {"a": -1, "b": -1}, []
    for place, (producer, sequence) in enumerate(sent):
        is_new = sequence > marks[producer]
        assert lasting_store.append([event(DAY + place)], producer=producer, sequence=sequence) is is_new
        if is_new:
            marks[producer] = sequence
            expected.append(event(DAY + place))
    assert rows_of(lasting_store) == expected


# -- rows in their partitions -------------------------------------------------------------------------------------


def test_rows_land_in_the_hour_or_day_of_their_kind(store):
    times = [DAY - 1, DAY, DAY + HOUR - 1, DAY + HOUR, DAY + MS_PER_DAY]
    store.append([event(t) for t in times], [Node(t, "c", "n", "n", 8) for t in times])
    assert in_hot_tables(store) == {
        ("event", DAY - HOUR): 1,
        ("event", DAY): 2,
        ("event", DAY + HOUR): 1,
        ("event", DAY + MS_PER_DAY): 1,
        ("node", DAY - MS_PER_DAY): 1,
        ("node", DAY): 3,
        ("node", DAY + MS_PER_DAY): 1,
    }
    assert [row.time_ms for row in rows_of(store)] == times
    assert [row.time_ms for row in rows_of(store, "node")] == times


def test_a_window_reads_the_partitions_that_it_touches(store):
    store.append([event(DAY + hour * HOUR) for hour in range(4)])
    store.seal(before_ms=DAY + 2 * HOUR)
    inside = rows_of(store, from_ms=DAY + HOUR + 5, to_ms=DAY + 2 * HOUR + 1)
    assert inside == [event(DAY + HOUR), event(DAY + 2 * HOUR)]
    assert rows_of(store, from_ms=DAY + HOUR, to_ms=DAY + 2 * HOUR) == [event(DAY + HOUR)]
    assert rows_of(store, from_ms=DAY + 9 * HOUR, to_ms=DAY + 10 * HOUR) == []


def test_out_of_order_rows_are_taken(store):
    rows = [event(DAY + offset) for offset in (7 * HOUR, 0, 3 * HOUR + 5, 3 * HOUR, MS_PER_DAY, 1)]
    store.append(rows[:3])
    store.append(rows[3:])
    assert rows_of(store) == sorted(rows)


def test_the_ledger_is_cut_by_its_minute(store):
    row = LedgerRow(DAY + HOUR, "n", 0, None, 1, "free", 1, None, 60_000)
    store.append([row])
    assert hot(store) == [("ledger_row", DAY + HOUR)]
    assert store.newest_ms(["ledger_row"], DAY + MS_PER_DAY) == DAY + HOUR
    [part] = store.seal()
    assert (part.from_ms, part.newest_ms) == (DAY + HOUR, DAY + HOUR)
    assert rows_of(store, "ledger_row") == [row]


def test_a_batch_over_too_many_partitions_names_its_kind(store):
    rows = [event(DAY + hour * HOUR) for hour in range(MAX_PARTITIONS_PER_BATCH + 1)]
    with pytest.raises(StoreError, match=rf"event.*{len(rows)}.*{MAX_PARTITIONS_PER_BATCH}"):
        store.append(rows, producer="node-1", sequence=0)
    assert hot(store) == []
    assert catalog.mark_of(store.connection, "node-1") == -1


def test_the_limit_of_partitions_itself_is_allowed_and_rejected_rows_do_not_count(store, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_PARTITIONS_PER_BATCH", 2)
    clock_not_set = [event(hour * HOUR) for hour in range(5)]
    store.append([event(DAY), event(DAY + HOUR), *clock_not_set])
    assert len(hot(store)) == 2
    with pytest.raises(StoreError, match="event"):
        store.append([event(DAY), event(DAY + HOUR), event(DAY + 2 * HOUR)])


def test_appending_and_reading_do_not_conflict(store):
    """`batch` is the name of a record kind too."""
    store.append([event(DAY)])
    store.expose_all(["batch", "event"])
    mine = Batch(DAY, "r", 1, 0, 0, 0, 0, samples=("a", "b"))
    store.append([mine], [event(DAY + 1)])
    assert store.connection.execute("SELECT count(*) FROM event").fetchall() == [(2,)]
    assert store.connection.execute("SELECT count(*) FROM batch").fetchall() == [(0,)]  # exposed before there was any
    assert [row._replace(samples=tuple(row.samples)) for row in rows_of(store, "batch")] == [mine]


# -- bad times ----------------------------------------------------------------------------------------------------


def test_a_record_from_the_future_is_stored_and_does_not_move_the_newest(store):
    now_ms = DAY + 10 * HOUR
    future = event(DAY + 400 * MS_PER_DAY)
    store.append([event(DAY), event(now_ms), future, event(now_ms + 1)])
    assert future in rows_of(store)
    assert store.newest_ms(["event"], now_ms) == now_ms
    store.seal()
    assert future in rows_of(store)
    assert store.newest_ms(["event"], now_ms) == now_ms
    assert store.newest_ms(["event"], now_ms + 1) == now_ms + 1
    assert store.newest_ms(["event"], 2**62) == future.time_ms
    assert store.newest_ms(["event"], DAY - 1) is None
    assert store.rejections() == {}


@given(
    st.lists(st.tuples(st.sampled_from(["event", "node"]), st.integers(0, 72 * 4)), max_size=12),
    st.integers(-1, 80 * 4),
    st.integers(0, 80),
)
@settings(max_examples=20)
def test_the_newest_is_the_newest_row_until_now(lasting_store, quarters, now_quarter, sealed_hours):
    lasting_store.drop_before(2**62)
    now_ms = DAY + now_quarter * HOUR // 4
    times = [DAY + quarter * HOUR // 4 for _, quarter in quarters]
    made = {"event": event, "node": lambda t: Node(t, "c", "n", "n", 8)}
    lasting_store.append([made[kind](t) for (kind, _), t in zip(quarters, times, strict=True)])
    lasting_store.seal(before_ms=DAY + sealed_hours * HOUR)
    expected = max((t for t in times if t <= now_ms), default=None)
    assert lasting_store.newest_ms(["event", "node"], now_ms) == expected


def test_newest_of_an_empty_store_is_none(store):
    assert store.newest_ms([], DAY) is None
    assert store.newest_ms(["event", "node"], DAY) is None


def test_times_before_september_2001_are_left_out_and_counted(store):
    in_seconds = [event(DAY // 1000), event(DAY // 1000 + 1)]
    assert store.append([event(DAY), *in_seconds, event(0), event(-5)], [Node(1, "c", "n", "n", 8)])
    assert rows_of(store) == [event(DAY)]
    assert rows_of(store, "node") == []
    assert store.rejections() == {("event", TOO_OLD): 4, ("node", TOO_OLD): 1}
    store.append([event(1)])
    assert store.rejections() == {("event", TOO_OLD): 5, ("node", TOO_OLD): 1}


def test_a_batch_sent_twice_is_rejected_once(store):
    for _ in range(2):
        store.append([event(1)], producer="node-1", sequence=0)
    assert store.rejections() == {("event", TOO_OLD): 1}


def test_the_hour_that_holds_the_oldest_time_is_cut_in_the_middle(store):
    assert OLDEST_MS % HOUR
    assert OLDEST_MS % MS_PER_DAY
    store.append([event(OLDEST_MS - 1), event(OLDEST_MS)], [Node(OLDEST_MS - 1, "c", "n", "n", 8)])
    assert rows_of(store) == [event(OLDEST_MS)]
    assert rows_of(store, "node") == []
    assert store.rejections() == {("event", TOO_OLD): 1, ("node", TOO_OLD): 1}


@pytest.mark.parametrize("factor", [1_000, 1_000_000])
def test_microseconds_and_nanoseconds_are_rejected_and_sealing_continues(store, factor):
    store.append([event(DAY), event(DAY * factor)])
    assert rows_of(store) == [event(DAY)]
    assert store.rejections() == {("event", TOO_NEW): 1}
    assert [part.from_ms for part in store.seal()] == [DAY]
    assert hot(store) == []


@pytest.mark.parametrize(("time_ms", "reason"), [(2**63 - 1, TOO_NEW), (-(2**63), TOO_OLD)])
def test_the_ends_of_the_integers_are_left_out(store, time_ms, reason):
    store.append([event(DAY), event(time_ms)])
    assert rows_of(store) == [event(DAY)]
    assert store.rejections() == {("event", reason): 1}


def test_the_latest_accepted_time_can_be_sealed(store):
    store.append([event(NEWEST_MS - 1), event(NEWEST_MS)], [Node(NEWEST_MS - 1, "c", "n", "n", 8)])
    assert store.rejections() == {("event", TOO_NEW): 1}
    assert len(store.seal()) == 2
    assert rows_of(store) == [event(NEWEST_MS - 1)]


def test_a_row_without_a_time_is_left_out_and_counted(store):
    store.append([event(DAY), event(None), event(None)])
    assert rows_of(store) == [event(DAY)]
    assert store.rejections() == {("event", NO_TIME): 2}


def test_rejections_survive_a_restart(folder):
    with Store(folder, create=True) as store:
        store.append([event(1)])
    with Store(folder) as store:
        store.append([event(2)])
        assert store.rejections() == {("event", TOO_OLD): 2}


# -- small texts --------------------------------------------------------------------------------------------------


def test_a_small_text_is_kept_with_the_store(folder):
    with Store(folder, create=True) as store:
        assert store.meta("zone") is None
        store.set_meta("zone", "Europe/Zürich")
        store.set_meta("zone", "it's UTC")
    with Store(folder) as store:
        assert store.meta("zone") == "it's UTC"


# -- what there is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_has_is_exact_to_the_partition(store, sealed):
    assert not store.has("event")
    store.append([event(DAY)])
    if sealed:
        store.seal()
    partition_ms = SCHEMAS["event"].partition_ms
    assert store.has("event")
    assert store.has("event", DAY + partition_ms - 1, DAY + partition_ms)
    assert not store.has("event", DAY + partition_ms, DAY + 2 * partition_ms)
    assert not store.has("event", DAY - 1, DAY)
    assert not store.has("metric")


def test_a_view_includes_later_appends_and_sealing(store):
    for number in range(3):
        store.append([event(DAY + number)])
        assert len(rows_of(store)) == number + 1
        store.seal()
        assert len(rows_of(store)) == number + 1
