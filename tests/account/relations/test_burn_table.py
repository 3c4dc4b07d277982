"""The ledger of a time range, summed over slots."""

from __future__ import annotations

import random

import pytest

from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.burn_table import MAX_BUCKET_MINUTES, bucket_length_ms, open_burn
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.hand_ledgers import FIRST, ms_of, random_day, write_days
from tests.support.histories import folder

DAY = TimeRange(ms_of(FIRST), ms_of(FIRST) + MS_PER_DAY)


@pytest.mark.parametrize(
    ("length_ms", "max_buckets", "minutes"),
    [
        (0, 60, 1),
        (MS_PER_HOUR, 60, 1),
        (MS_PER_HOUR + MS_PER_MINUTE, 60, 2),
        (MS_PER_DAY, 60, 30),
        (400_000 * MS_PER_DAY, 60, MAX_BUCKET_MINUTES),
    ],
)
def test_bucket_length_is_the_shortest_that_fits(length_ms: int, max_buckets: int, minutes: int) -> None:
    assert bucket_length_ms(TimeRange(0, length_ms), max_buckets) == minutes * MS_PER_MINUTE


@pytest.mark.parametrize("bucket_ms", [None, MS_PER_HOUR])
def test_burn_has_the_time_of_the_ledger(bucket_ms: int | None) -> None:
    rows = random_day(random.Random(4), FIRST, 30)
    with folder() as store:
        write_days(store, {FIRST: rows})
        store.expose(["ledger_row"], *DAY)
        open_burn(store, DAY, bucket_ms, 7)
        found = store.connection.execute("SELECT sum(ms), min(usd_micro_per_hour), max(usd_micro_per_hour) FROM burn")
        assert found.fetchall() == [(sum(row.ms for row in rows), 7, 7)]
        buckets = store.connection.execute("SELECT DISTINCT (minute_ms - ?) % 3600000 FROM burn", [DAY.from_ms])
        assert buckets.fetchall() == [(0,)]
