"""The ledger of runs by minute and state."""

from __future__ import annotations

from collections.abc import Sequence

from pyrometer.account.query.sums import price_of
from pyrometer.account.query.time_range import TimeRange
from pyrometer.store import StoreReader

_MINUTES = """
CREATE OR REPLACE TEMP TABLE {table} AS
SELECT placed.run, ledger.minute_ms, ledger.state, sum(ms) AS ms, sum(ms * {price}) AS ms_price,
    coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0) AS unpriced_ms
FROM ledger_row ledger
JOIN (SELECT * FROM placed_run WHERE {which}) placed
    ON placed.pod_uid = ledger.pod_uid AND placed.node_uid = ledger.node_uid AND placed.slot_index = ledger.slot_index
    AND (placed.is_first OR ledger.minute_ms >= at_ms // 60000 * 60000)
    AND coalesce(ledger.minute_ms < next_ms // 60000 * 60000, true)
WHERE ledger.minute_ms >= {from_ms} AND ledger.minute_ms < {to_ms}
GROUP BY ALL
"""


def open_run_minutes(store: StoreReader, window: TimeRange, price_usd_micro: int | None, runs: Sequence[str]) -> None:
    """Create `run_minute`, the ledger of some runs by minute, and `wanted_run`, their names. Requires `placed_run`."""
    store.connection.execute(
        "CREATE OR REPLACE TEMP TABLE wanted_run AS SELECT unnest(?::VARCHAR[]) AS run", [list(runs)]
    )
    _open_minutes(store, "run_minute", "run IN (FROM wanted_run)", window, price_usd_micro)


def open_shared_minutes(store: StoreReader, window: TimeRange, price_usd_micro: int | None) -> None:
    """Create `shared_minute`: the same for the slots that several runs used. Requires `placed_run`."""
    _open_minutes(store, "shared_minute", "NOT is_alone", window, price_usd_micro)


def _open_minutes(store: StoreReader, table: str, which: str, window: TimeRange, price_usd_micro: int | None) -> None:
    store.connection.execute(
        _MINUTES.format(
            table=table, which=which, price=price_of(price_usd_micro), from_ms=window.from_ms, to_ms=window.to_ms
        )
    )
