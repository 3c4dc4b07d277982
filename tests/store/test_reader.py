"""Reading the parts and hot tables of a kind as one view."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Event, Slot
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
