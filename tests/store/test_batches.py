"""Batches before they are stored."""

from __future__ import annotations

import pytest

from pyrometer.model.columns import SCHEMAS, schema_of
from pyrometer.model.records import Event, Metric
from pyrometer.model.units import MS_PER_DAY
from pyrometer.store import StoreError
from pyrometer.store.batches import NEWEST_MS, OLDEST_MS, refused_batch, single_partition, tables_of

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
EVENT = schema_of(Event)


def test_tables_of_groups_records_by_kind():
    tables = tables_of([Event(DAY, "a"), Metric(DAY, "r", 1, 0, "loss", 0.5)], [Event(DAY + 1, "b")])
    assert {kind: table.num_rows for kind, table in tables.items()} == {"event": 2, "metric": 1}
    assert tables["event"].schema == SCHEMAS["event"].arrow()


def test_tables_of_refuses_a_value_of_another_type():
    with pytest.raises(StoreError, match=r"A batch with event records was refused as a whole: "):
        tables_of([Event("noon", "a")])


def test_refused_batch_names_the_kind_and_not_its_table():
    error = refused_batch("event", ValueError("NOT NULL failed: hot_event_0123456789ab\nmore"))
    assert str(error) == "A batch with event records was refused as a whole: NOT NULL failed: event."


def test_single_partition_of_rows_of_one_day():
    step = EVENT.partition_ms
    from_ms = DAY - DAY % step
    assert single_partition(EVENT, EVENT.table([Event(from_ms, "a"), Event(from_ms + step - 1, "b")])) == from_ms


@pytest.mark.parametrize("times", [[DAY, DAY + MS_PER_DAY], [OLDEST_MS - 1], [NEWEST_MS], []])
def test_single_partition_is_none_if_rows_must_be_checked(times):
    assert single_partition(EVENT, EVENT.table([Event(time_ms, "a") for time_ms in times])) is None
