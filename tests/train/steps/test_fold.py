"""Steps without marks get the phases of marked steps, to the millisecond."""

from __future__ import annotations

from array import array

from pyrometer.train.steps import fold
from pyrometer.train.steps import ring as columns
from pyrometer.train.steps.ring import FORWARD, OTHER, Ring

MS = 1_000_000


def test_unmarked_steps_get_the_phases_of_marked_steps():
    ring = Ring.in_memory(rows=16)
    # Marked: 20 ms each, of which 15 forward. Others: 10 ms each, with unknown phases.
    for number in range(8):
        marked = number % 4 == 0
        row = [0] * columns.COLUMNS
        row[FORWARD], row[OTHER] = (15 * MS, 5 * MS) if marked else (0, 10 * MS)
        row[columns.BEGIN_NS] = 1_000 * MS + number * 20 * MS
        row[columns.END_NS] = row[columns.BEGIN_NS] + (20 if marked else 10) * MS
        row[columns.SAMPLES] = 32 if marked else 0
        row[columns.FLAGS] = 0 if marked else columns.LIGHT
        place = columns.HEADER + number * columns.COLUMNS
        ring.view[place : place + columns.COLUMNS] = array("q", row)
    ring.view[columns.COUNT] = 8
    window = fold.window(ring, 0, 8)
    assert window is not None
    assert (window["steps"], window["samples"]) == (8, 8 * 32)
    assert window["forward_ms"] == (2 * 20 + 6 * 10) * 15 // 20
