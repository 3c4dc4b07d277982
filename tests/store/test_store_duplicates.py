"""Sources without a sequence send things twice: a fact counts once, hot, sealed or late, and the first one counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Event, GpuSample
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
HOUR = MS_PER_HOUR


def rows_of(store, kind="event"):
    store.expose_all([kind])
    rows = store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()
    return [SCHEMAS[kind].record(*row) for row in rows]


def first_and_second(**key):
    """Two rows that state the same fact in other words."""
    return Event(DAY, "seen", message="first", **key), Event(DAY, "seen", message="second", **key)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param({}, id="everything null"),
        pytest.param({"node_uid": "n", "slot_index": 3}, id="some null"),
        pytest.param(
            {
                "node_uid": "",
                "slot_index": 0,
                "pod_uid": "",
                "workload_uid": "",
                "run": "",
                "attempt": 0,
                "rank": 0,
                "step": 0,
            },
            id="nothing null",
        ),
    ],
)
def test_the_first_one_of_a_key_counts_hot_sealed_and_late(store, key):
    first, second = first_and_second(**key)
    store.append([first, second, first])
    assert rows_of(store) == [first]
    store.append([second])
    assert rows_of(store) == [first]
    assert [part.row_count for part in store.seal()] == [1]
    assert rows_of(store) == [first]
    store.append([second, first])
    assert rows_of(store) == [first]
    assert store.seal() == []
    assert rows_of(store) == [first]


def test_null_keys_are_equal(store):
    rows = [Event(DAY, "seen", node_uid=node_uid, step=step) for node_uid in (None, "") for step in (None, 0)]
    store.append(rows)
    store.append(rows)
    assert set(rows_of(store)) == set(rows)
    store.seal()
    store.append(rows)
    assert len(rows_of(store)) == 4


def test_late_rows_are_sealed_without_duplicates(store):
    first, second = first_and_second()
    news = Event(DAY + 1, "seen")
    store.append([first])
    store.seal()
    store.append([second, news, second, news])
    assert rows_of(store) == [first, news]
    assert [part.row_count for part in store.seal()] == [1]
    store.append([second, news])
    assert rows_of(store) == [first, news]
    assert len(store.parts()) == 2
    assert store.seal() == []


def test_a_late_duplicate_is_compared_with_every_part_of_its_hour(store):
    rows = [Event(DAY + i, "seen", message="first") for i in range(3)]
    for row in rows:
        store.append([row])
        store.seal()
    store.append([row._replace(message="second") for row in rows])
    assert rows_of(store) == rows


def test_another_value_of_any_part_of_the_key_is_another_fact(store):
    row = GpuSample(DAY, "n", 0, -1, power_w=1)
    rows = [
        row,
        row._replace(time_ms=DAY + 1),
        row._replace(node_uid="m"),
        row._replace(slot_index=1),
        row._replace(instance=0),
    ]
    store.append(rows)
    store.append([row._replace(power_w=2)])
    assert sorted(rows_of(store, "gpu_sample")) == sorted(rows)


# -- the law ------------------------------------------------------------------------------------------------------


class Reopened:
    """A store that can be closed and opened again in the middle of an example."""

    def __init__(self, folder):
        self.store = Store(folder, create=True)

    def reopen(self):
        self.store.close()
        self.store = Store(self.store.folder)
        return self.store


@pytest.fixture(scope="module")
def reopened(tmp_path_factory):
    made = Reopened(tmp_path_factory.mktemp("law"))
    yield made
    made.store.close()


def messages(store):
    """The rows by the one thing that no two of them share."""
    store.expose_all(["event"])
    return [message for (message,) in store.connection.execute("SELECT message FROM event ORDER BY 1").fetchall()]


keys = st.tuples(st.integers(0, 1), st.sampled_from([None, "", "n"]), st.sampled_from([None, 0]))
operations = st.one_of(
    st.tuples(st.just("append"), st.lists(keys, min_size=1, max_size=6)),
    st.tuples(st.just("send twice"), st.lists(keys, min_size=1, max_size=4)),
    st.tuples(st.just("repeat"), st.integers(0, 5)),
    st.tuples(st.just("seal"), st.sampled_from([None, 1, 2])),
    st.tuples(st.just("reopen"), st.none()),
)


@given(st.lists(operations, min_size=2, max_size=8))
@settings(max_examples=40)
@pytest.mark.heavy
def test_any_order_of_appending_sealing_repeating_and_reopening_keeps_the_first_of_every_key(reopened, script):
    model: dict[tuple, Event] = {}
    sent: list[list[Event]] = []
    store = reopened.store
    store.drop_before(2**62)
    store.connection.execute("DELETE FROM marks")
    for place, (what, value) in enumerate(script):
        if what in ("append", "send twice"):
            rows = [
                Event(DAY + hour * HOUR, "seen", node_uid=node, step=step, message=f"{place}.{i}")
                for i, (hour, node, step) in enumerate(value)
            ]
            sent.append(rows)
            for row in rows:
                model.setdefault((row.time_ms, row.node_uid, row.step), row)
            if what == "append":
                store.append(rows)
            else:
                assert store.append(rows, producer="p", sequence=place)
                assert not store.append(rows, producer="p", sequence=place)
        elif what == "repeat" and sent:
            store.append([row._replace(message="again") for row in sent[value % len(sent)]])
        elif what == "seal":
            store.seal(None if value is None else DAY + value * HOUR)
        elif what == "reopen":
            store = reopened.reopen()
        assert messages(store) == sorted(row.message for row in model.values())
    store.seal()
    assert sum(part.row_count for part in store.parts()) == len(model)
    assert set(rows_of(store)) == set(model.values())
