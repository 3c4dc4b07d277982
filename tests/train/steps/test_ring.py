"""The ring: the numbers of a rank in memory that other processes read."""

from __future__ import annotations

import pytest

from pyrometer.train.steps import ring as columns
from pyrometer.train.steps.ring import FLAGS, LIGHT, OTHER, Ring, RingError


def test_ring_open_reads_what_another_handle_wrote(tmp_path):
    written = Ring.create(tmp_path / "1.ring", rows=4)
    written.view[columns.COUNT] = 3
    read = Ring.open(tmp_path / "1.ring")
    assert read.rows == 4
    assert read.snapshot().steps == 3
    assert read.snapshot().phase == columns.STARTUP
    assert not read.snapshot().ended
    read.close()
    written.close()


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"x" * 4096, bytes(8 * columns.HEADER)])
def test_ring_open_rejects_other_files(tmp_path, content):
    (tmp_path / "1.ring").write_bytes(content)
    with pytest.raises(RingError, match=r"1\.ring"):
        Ring.open(tmp_path / "1.ring")


def test_column_of_steps_that_wrap_around_the_end():
    ring = Ring.in_memory(rows=4)
    for step in range(6):
        ring.view[columns.HEADER + step % 4 * columns.COLUMNS + columns.SAMPLES] = step
    assert list(ring.column(columns.SAMPLES, 2, 6)) == [2, 3, 4, 5]
    assert list(ring.column(columns.SAMPLES, 4, 6)) == [4, 5]
    assert list(ring.column(columns.SAMPLES, 5, 5)) == []
    assert ring.value(5, columns.SAMPLES) == 5


def test_write_lengths_appends_steps_of_which_only_the_length_is_known():
    ring = Ring.in_memory(rows=4)
    ring.view[columns.HEADER + columns.SAMPLES] = 9  # of an older step
    ring.write_lengths(100, [110, 130])
    assert ring.view[columns.COUNT] == 2
    assert ring.view[columns.MOVED_NS] == 130
    assert list(ring.column(OTHER, 0, 2)) == [10, 20]
    assert list(ring.column(columns.BEGIN_NS, 0, 2)) == [100, 110]
    assert list(ring.column(columns.END_NS, 0, 2)) == [110, 130]
    assert list(ring.column(FLAGS, 0, 2)) == [LIGHT, LIGHT]
    assert ring.value(0, columns.SAMPLES) == 0


@pytest.mark.parametrize(
    ("stored", "stores", "code"),
    [
        (0, False, None),
        (columns.EXIT_GUESSED, False, None),
        (columns.NO_EXIT_YET, True, None),
        (columns.HAS_EXIT | 3, True, 3),
        (columns.HAS_EXIT | 0xFFFF_FFFF, True, 255),
    ],
)
def test_exit_code_is_the_low_byte_of_what_is_stored(stored, stores, code):
    ring = Ring.in_memory()
    ring.view[columns.EXIT] = stored
    assert ring.stores_exit() is stores
    assert ring.exit_code() == code


def test_wall_ns_converts_the_monotonic_clock_to_utc():
    ring = Ring.in_memory()
    ring.view[columns.WALL_NS], ring.view[columns.MONOTONIC_NS] = 1_000, 300
    assert ring.wall_ns(350) == 1_050


def test_ring_create_allocates_the_whole_file(tmp_path):
    ring = Ring.create(tmp_path / "1.ring")
    found = ring.path.stat()
    assert found.st_blocks * 512 >= found.st_size > 2_000_000
    ring.close()
