"""The history of a cluster from Prometheus."""

from __future__ import annotations

import pytest

from pyrometer.collect.prometheus.source import missing


@pytest.mark.parametrize(
    ("read", "gaps"),
    [
        ([], [(0, 100)]),
        ([(0, 100)], []),
        ([(20, 30), (10, 25)], [(0, 10), (30, 100)]),
        ([(-50, 10), (90, 200)], [(10, 90)]),
        ([(150, 200)], [(0, 100)]),
    ],
)
def test_missing_is_unread_part_of_range(read, gaps):
    assert missing(0, 100, read) == gaps
