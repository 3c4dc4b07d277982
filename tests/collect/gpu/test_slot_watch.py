"""Changes of boards and XID codes in slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.gpu import slot_watch
from pyrometer.collect.gpu.slot_watch import WORKS_AGAIN_MS, SlotSighting, SlotWatch
from pyrometer.model.records import Event, Slot
from pyrometer.model.units import MS_PER_DAY

T0 = 1_794_700_000_000
BOARD = (("GPU-a", "H100"),)


def test_slot_watch_records_first_board_once():
    watch = SlotWatch()
    assert watch.take([SlotSighting("a", 0, T0, BOARD)]) == [Slot(T0, "a", 0, "GPU-a", "H100")]
    assert watch.take([SlotSighting("a", 0, T0 + 1, BOARD)]) == []


def test_slot_watch_records_event_when_xid_changes():
    watch = SlotWatch([Slot(T0, "a", 0, "GPU-a", "H100")])
    assert watch.take([SlotSighting("a", 0, T0, xid=0)]) == []
    (event,) = watch.take([SlotSighting("a", 0, T0 + 1, xid=13)])
    assert isinstance(event, Event)
    assert (event.reason, event.slot_index) == ("13", 0)


def test_slot_watch_ignores_late_sighting():
    watch = SlotWatch([Slot(T0, "a", 0, "GPU-a", "H100")])
    assert watch.take([SlotSighting("a", 0, T0 - 1, (("GPU-b", "H100"),))]) == []


def test_slot_watch_forgets_slots_of_previous_day(monkeypatch):
    monkeypatch.setattr(slot_watch, "MAX_EXTRA_SLOTS", 2)
    watch = SlotWatch()
    watch.take([SlotSighting("old", index, T0, BOARD) for index in range(3)])
    later_ms = T0 + 2 * MS_PER_DAY
    watch.take([SlotSighting("new", index, later_ms, BOARD) for index in range(6)])
    assert len(watch.take([SlotSighting("old", 0, later_ms, BOARD)])) == 1  # recorded again


class ThoroughSlotWatch(SlotWatch):
    """One that takes no sighting for what is known."""

    def _is_as_before(self, sighting):
        return False


BOARDS = st.sampled_from([(), (("GPU-a", "H100"),), (("GPU-b", "H100"),), (("GPU-a", "H100"), ("GPU-b", None))])
SIGHTINGS = st.builds(
    SlotSighting,
    st.sampled_from(["a", "b"]),
    st.integers(0, 1),
    st.integers(0, 4).map(lambda n: n * WORKS_AGAIN_MS),
    BOARDS,
    st.sampled_from([None, 0, 13, 79]),
    st.booleans(),
)


@given(st.lists(st.lists(SIGHTINGS, max_size=6), max_size=5))
def test_slot_watch_shortcut_equals_full_comparison(batches):
    """Late or not, in whatever order: slots of which all sightings say what is known need not be looked at."""
    quick, thorough = SlotWatch(), ThoroughSlotWatch()
    for sightings in batches:
        assert quick.take(sightings) == thorough.take(sightings)
