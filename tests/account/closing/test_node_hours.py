"""Node-hours by day and instance type."""

from __future__ import annotations

from datetime import UTC

from pyrometer.account.closing.node_hours import node_hours
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.records import LedgerRow, Node
from pyrometer.model.units import MS_PER_DAY
from tests.support.hand_ledgers import FIRST, ms_of, write_days
from tests.support.histories import folder

START_MS = ms_of(FIRST)
DAY = TimeRange(START_MS, START_MS + MS_PER_DAY)


def row(slot: int, ms: int, price: int | None = 3_600_000) -> LedgerRow:
    return LedgerRow(START_MS, "n0", slot, None, 1, "free", 1, price, ms)


def test_time_of_a_node_is_that_of_its_longest_gpu() -> None:
    with folder() as store:
        store.append([Node(START_MS, "here", "n0", "node-0", 2, "H100", pool="blue", instance_type="p5")])
        write_days(store, {FIRST: [row(0, 60_000), row(1, 40_000)]})
        (found,) = node_hours(store, DAY, zone=UTC)["rows"]
    assert (found["day"], found["instance_type"], found["pool"]) == (str(FIRST), "p5", "blue")
    assert (found["nodes"], found["node_ms"], found["gpu_ms"], found["usd_micro"]) == (1, 60_000, 100_000, 100_000)


def test_money_is_none_without_any_price() -> None:
    with folder() as store:
        store.append([Node(START_MS, "here", "n0", "node-0", 2, "H100")])
        write_days(store, {FIRST: [row(0, 60_000, None)]})
        (found,) = node_hours(store, DAY, zone=UTC)["rows"]
        assert (found["usd_micro"], found["unpriced_gpu_ms"]) == (None, 60_000)
        (priced,) = node_hours(store, DAY, zone=UTC, price_usd_micro=3_600_000)["rows"]
        assert (priced["usd_micro"], priced["unpriced_gpu_ms"]) == (60_000, 0)


def test_a_range_without_rows_has_no_nodes() -> None:
    with folder() as store:
        assert node_hours(store, DAY, zone=UTC)["rows"] == []
