"""Checks of the metrics in a Prometheus."""

from __future__ import annotations

import asyncio

import numpy as np

from pyrometer.collect.prometheus.api import Series
from pyrometer.collect.prometheus.doctor import NEEDS, examine


class CountingPrometheus:
    async def at_steps(self, query, from_ms, to_ms, step_ms):
        return [Series({}, np.array([to_ms]), np.array([8.0]))] if "DCGM_FI_DEV" in query else []


def test_examine_counts_series_of_every_need():
    counts = asyncio.run(examine(CountingPrometheus()))
    assert [count.series for count in counts] == [8] + [0] * (len(NEEDS) - 1)
    assert all(count.costs for count in counts)
