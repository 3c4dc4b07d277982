"""Simulated windows list the lengths of their steps, as real ones do."""

from __future__ import annotations

import numpy as np

from pyrometer.simulate.sdk import _step_lengths


def test_each_window_lists_all_its_steps():
    steps, usual, slowest = (np.array(column) for column in ((10, 1, 0), (500, 600, 0), (700, 650, 0)))
    assert _step_lengths(steps, usual, slowest).to_pylist() == [[500, 9, 700, 1], [650, 1], None]
