"""The ledger of a time range, summed over slots."""

from __future__ import annotations

from pyrometer.account.query.stored_sums import open_hours
from pyrometer.account.query.sums import price_of
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store import StoreReader

BUCKET_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080)
MAX_BUCKET_MINUTES = 40320

# One pass over the ledger. Answers sum this table, and detectors use it to decide where to look closer.
_BURN = """
CREATE OR REPLACE TEMP TABLE burn AS
SELECT {bucket} AS minute_ms, pod_uid, state, evidence, {price} AS usd_micro_per_hour, sum(ms) AS ms
FROM {ledger} WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms}
GROUP BY ALL
"""


def open_burn(store: StoreReader, window: TimeRange, bucket_ms: int | None, price_usd_micro: int | None) -> None:
    """Create the table `burn`: the ledger of a time range without slots, in time buckets, or in one if None."""
    bucket = str(window.from_ms) if bucket_ms is None else f"minute_ms // {bucket_ms} * {bucket_ms}"
    price, (from_ms, to_ms) = price_of(price_usd_micro), window
    rows = open_hours(store, *window) if bucket_ms is None else "ledger_row"
    store.connection.execute(_BURN.format(bucket=bucket, price=price, ledger=rows, from_ms=from_ms, to_ms=to_ms))


def bucket_length_ms(window: TimeRange, max_buckets: int) -> int:
    """The length of the buckets of a timeline: the shortest round length that gives at most `max_buckets`."""
    minutes = (window.to_ms - window.from_ms) // MS_PER_MINUTE
    lengths = (length for length in BUCKET_MINUTES if minutes <= length * max_buckets)
    return next(lengths, MAX_BUCKET_MINUTES) * MS_PER_MINUTE
