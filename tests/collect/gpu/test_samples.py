"""GPU values as columns and rows."""

from __future__ import annotations

import numpy as np

from pyrometer.collect.gpu.device import SlotAddress
from pyrometer.collect.gpu.samples import (
    COLUMNS,
    POWER,
    Values,
    address_spans,
    blank_lost_counters,
    fill_table,
    number_rows,
)

A, B = SlotAddress(("a",), 0), SlotAddress(("b",), 0)
ROWS = [(1, A, 0.5, 10), (2, B, 1.5, 20), (1, A, 2.5, 30)]


def test_values_keep_rows():
    assert list(Values.of(ROWS)) == ROWS
    assert list(Values.of([])) == []


def test_values_joined_concatenates_and_drops_unused_addresses():
    parts = [Values.of(ROWS).only(np.array([True, False, False])), Values.of(ROWS[2:])]
    joined = Values.joined(parts)
    assert list(joined) == [ROWS[0], ROWS[2]]
    assert B not in joined.addresses
    assert len(Values.joined([])) == 0


def test_number_rows_sorts_by_device_and_time():
    row, device, time_ms = number_rows(np.array([1, 0, 1, 0]), np.array([20, 10, 10, 10]))
    assert row.tolist() == [2, 0, 1, 0]
    assert (device.tolist(), time_ms.tolist()) == ([0, 1, 1], [10, 10, 20])


def test_fill_table_prefers_value_of_device_over_pods():
    table = fill_table(
        2, np.array([0, 0, 1]), np.array([0, 0, 0]), np.array([5.0, 9.0, 7.0]), np.array([False, True, True])
    )
    assert table[:, 0].tolist() == [5.0, 7.0]
    assert np.isnan(table[:, 1:]).all()


def test_blank_lost_counters_of_busy_board_only():
    table = np.full((2, len(COLUMNS)), np.nan)
    sm_active, util = COLUMNS.index("sm_active_permille"), COLUMNS.index("gpu_util_permille")
    table[:, sm_active], table[:, util], table[:, POWER] = 0, 900, (500, 80)
    blank_lost_counters(table, np.array([100, 100]))
    assert np.isnan(table[:, sm_active]).tolist() == [True, False]


def test_address_spans_are_first_and_last_times():
    assert address_spans(Values.of(ROWS)) == [(10, 30), (20, 20)]
