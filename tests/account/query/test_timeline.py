"""Intervals of states, computed again from the facts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from pyrometer.account.query.timeline import open_intervals
from pyrometer.model.settings import Settings
from tests.support.histories import BASE, account, at, folder, hold, node, pod, rows_of, samples, until, workload

INTERVALS = "SELECT state, from_ms, to_ms FROM state_interval ORDER BY from_ms"


def test_intervals_add_up_to_the_ledger() -> None:
    with folder() as store:
        store.append(
            [node(), until(at(60)), pod("p", workload_uid="w", node_uid="n0"), workload("w"), hold("p")],
            samples("busy", BASE, at(20), 30_000),
            samples("idle", at(20), at(60), 30_000),
        )
        account(store)
        expected: Counter[str] = Counter()
        for row in rows_of(store):
            expected[row.state] += row.ms
        open_intervals(store, Settings(), ["p"], [at(30)])
        intervals = store.connection.execute(INTERVALS).fetchall()
    found: Counter[str] = Counter()
    for state, from_ms, to_ms in intervals:
        found[state] += to_ms - from_ms
    assert found == expected
    assert all(one[2] <= following[1] for one, following in pairwise(intervals))


def test_intervals_without_pods_or_without_a_ledger_are_empty() -> None:
    with folder() as store:
        open_intervals(store, Settings(), ["p"], [at(30)])
        assert store.connection.execute(INTERVALS).fetchall() == []
        open_intervals(store, Settings(), [], [at(30)])
        assert store.connection.execute(INTERVALS).fetchall() == []
