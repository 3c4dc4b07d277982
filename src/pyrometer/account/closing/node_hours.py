"""Node-hours and money by local day and instance type, for comparing the ledger with an invoice."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

from pyrometer.account.query.answer_json import time_and_money, time_range_json
from pyrometer.account.query.quarters import label_quarters
from pyrometer.account.query.sums import price_of
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_HOUR, MS_PER_QUARTER, round_nested
from pyrometer.store import StoreReader

KEY = ("day", "instance_type", "pool", "gpu_model")


def node_hours(
    store: StoreReader, time_range: TimeRange, *, zone: tzinfo, price_usd_micro: int | None = None
) -> dict[str, Any]:
    """One row per day and kind of node: the number of nodes, their time, and what their GPUs cost, held or not.

    The time of a node is that of its GPU with the most time.
    """
    store.expose_all(["node"])
    store.expose(["ledger_row"], *time_range)
    label_quarters(store, time_range, zone)
    price = price_of(price_usd_micro)
    found = store.connection.execute(
        f"""
        WITH slot AS (
            SELECT day_label AS day, node_uid, slot_index, sum(gpu_ms) AS gpu_ms, sum(ms_price) AS ms_price,
                sum(unpriced_ms) AS unpriced_ms
            FROM (
                SELECT minute_ms // {MS_PER_QUARTER} AS quarter, node_uid, slot_index, sum(ms) AS gpu_ms,
                    coalesce(sum(ms * {price}), 0) AS ms_price,
                    coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0) AS unpriced_ms
                FROM ledger_row WHERE minute_ms >= {time_range.from_ms} AND minute_ms < {time_range.to_ms} GROUP BY ALL
            ) LEFT JOIN quarter_label USING (quarter) GROUP BY ALL
        ),
        machine AS (
            SELECT day, node_uid, max(gpu_ms) AS node_ms, sum(gpu_ms) AS gpu_ms, sum(ms_price) AS ms_price,
                sum(unpriced_ms) AS unpriced_ms
            FROM slot GROUP BY ALL
        )
        SELECT day, instance_type, pool, gpu_model, count(*), sum(node_ms), sum(gpu_ms), sum(ms_price), sum(unpriced_ms)
        FROM machine LEFT JOIN (
            SELECT node_uid, instance_type, pool, gpu_model FROM node
            QUALIFY row_number() OVER (PARTITION BY node_uid ORDER BY time_ms DESC) = 1
        ) USING (node_uid)
        GROUP BY ALL ORDER BY ALL
        """
    ).fetchall()
    money = round_nested([int(row[7]) for row in found], [(str(row[0]), repr(row[1:4])) for row in found], MS_PER_HOUR)
    rows = [
        dict(zip(KEY, row, strict=False))
        | {"nodes": row[4], "node_ms": int(row[5])}
        | time_and_money(int(row[6]), None if row[8] == row[6] else micro)
        | {"unpriced_gpu_ms": int(row[8])}
        for row, micro in zip(found, money, strict=True)
    ]
    return {"window": time_range_json(time_range, zone), "rows": rows}
