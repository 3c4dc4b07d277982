"""Simulated telemetry of training processes: step lengths and complete columns."""

from __future__ import annotations

import numpy as np

from pyrometer.model.columns import SCHEMAS
from pyrometer.simulate.measurements import Meter
from pyrometer.simulate.scenarios import SCENARIOS
from pyrometer.simulate.sdk import _step_lengths


def test_each_window_lists_the_lengths_of_its_steps():
    steps, usual, slowest = (np.array(column) for column in ((10, 1, 0), (500, 600, 0), (700, 650, 0)))
    assert _step_lengths(steps, usual, slowest).to_pylist() == [[500, 9, 700, 1], [650, 1], None]


def test_tables_of_a_night_have_every_column_of_their_kind():
    """A column that is added to a record must be added here too: the store refuses tables without it."""
    meter = Meter(SCENARIOS["overnight"].make(3, 80, 5))
    kinds = set()
    for measured in meter.hours():
        for kind, table in measured.tables.items():
            kinds.add(kind)
            assert sorted(table.column_names) == sorted(SCHEMAS[kind].column_names), kind
    assert {"metric", "step_window", "gpu_sample"} <= kinds
