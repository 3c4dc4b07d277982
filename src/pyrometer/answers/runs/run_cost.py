"""The cost of training runs: in total, and at the time of each reported value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pyrometer.account.query.sums import Sum, price_of
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import runs_without_steps
from pyrometer.account.relations.run_minutes import open_shared_minutes
from pyrometer.answers.runs.metric_curves import curves
from pyrometer.model.units import usd_micro
from pyrometer.store import StoreReader

# A slot that a pod used for one run needs no minutes: they are many, and their sum is the same.
_WHOLE = """
WITH held AS (
    SELECT pod_uid, node_uid, slot_index, {price} AS price, sum(ms) AS ms,
        coalesce(sum(ms) FILTER (WHERE state = 'train'), 0) AS train_ms
    FROM ledger_row WHERE pod_uid IS NOT NULL AND minute_ms >= {from_ms} AND minute_ms < {to_ms} GROUP BY ALL
),
spent AS (
    SELECT run, ms, ms * price AS ms_price, CASE WHEN price IS NULL THEN ms ELSE 0 END AS unpriced_ms, train_ms
    FROM held
    JOIN (SELECT DISTINCT run, pod_uid, node_uid, slot_index FROM placed_run WHERE is_alone)
        USING (pod_uid, node_uid, slot_index)
    UNION ALL
    SELECT run, ms, ms_price, unpriced_ms, CASE WHEN state = 'train' THEN ms ELSE 0 END FROM shared_minute
)
SELECT run, sum(ms), coalesce(sum(ms_price), 0), sum(unpriced_ms), sum(train_ms) FROM spent GROUP BY run
"""


class RunCost(NamedTuple):
    """The cost of a run, and how much of its time was training."""

    held: Sum
    train_ms: int | None  # None: its steps are not known

    @property
    def goodput(self) -> float | None:
        """The trained part of the held time."""
        return None if self.train_ms is None or not self.held.gpu_ms else round(self.train_ms / self.held.gpu_ms, 4)


NOTHING = RunCost(Sum((), 0, 0, 0), 0)


def costs(store: StoreReader, window: TimeRange, price_usd_micro: int | None) -> dict[str, RunCost]:
    """The cost of every run. Requires `placed_run`."""
    terms = _terms(window, price_usd_micro)
    open_shared_minutes(store, window, price_usd_micro)
    return _spent(store, _WHOLE.format(**terms))


def costs_of_minutes(store: StoreReader) -> dict[str, RunCost]:
    """The cost of the runs in `run_minute`."""
    return _spent(
        store,
        "SELECT run, sum(ms), coalesce(sum(ms_price), 0), sum(unpriced_ms), "
        "coalesce(sum(ms) FILTER (WHERE state = 'train'), 0) FROM run_minute GROUP BY run",
    )


def states_of_minutes(store: StoreReader) -> list[Sum]:
    """The cost of the runs in `run_minute` by state."""
    rows = store.connection.execute(
        "SELECT state, sum(ms), coalesce(sum(ms_price), 0), sum(unpriced_ms) FROM run_minute "
        "GROUP BY state ORDER BY 2 DESC, 1"
    ).fetchall()
    return [Sum((state,), int(ms), int(ms_price), int(unpriced_ms)) for state, ms, ms_price, unpriced_ms in rows]


# What a run had cost at a moment of a minute: it paid evenly while it held its GPUs. In the first of several minutes
# that is the end, in the last the beginning: the same part as of a minute in which it held all its GPUs. For a single
# minute it is not known, and the whole minute counts.
_WITH_COST = """
WITH reported AS MATERIALIZED ({reported}),  -- first: DuckDB 2.0 stumbles over a view of hot rows in an ASOF join
minute AS (
    SELECT run, minute_ms, sum(ms)::BIGINT AS ms, sum(ms_price)::HUGEINT AS ms_price
    FROM run_minute GROUP BY run, minute_ms
),
spent AS (
    SELECT *, sum(ms) OVER in_time - ms AS ms_before,
        sum(ms_price) OVER in_time - coalesce(ms_price, 0) AS price_before,
        coalesce(lag(minute_ms) OVER in_time < minute_ms - 60000, true) AS is_first,
        coalesce(lead(minute_ms) OVER in_time > minute_ms + 60000, true) AS is_last,
        max(ms) OVER of_run AS most_ms,
        CASE WHEN most_ms > 60000 THEN (most_ms + 59999) // 60000 * 60000 ELSE greatest(most_ms, 1) END AS whole_ms,
        (60000 * ms // whole_ms)::BIGINT AS held_ms,
        minute_ms + CASE WHEN is_first THEN 60000 - held_ms ELSE 0 END AS from_ms,
        CASE WHEN is_first OR is_last THEN greatest(held_ms, 1) ELSE 60000 END AS length_ms
    FROM minute WINDOW of_run AS (PARTITION BY run), in_time AS (of_run ORDER BY minute_ms)
)
SELECT reported.*,
    CASE WHEN is_first AND is_last THEN length_ms ELSE greatest(least(time_ms + 1 - from_ms, length_ms), 0) END
        AS part_ms,
    ms_before + ms * part_ms // length_ms, price_before + coalesce(ms_price, 0) * part_ms // length_ms
FROM reported ASOF LEFT JOIN spent ON reported.run = spent.run AND time_ms >= spent.minute_ms
ORDER BY ALL
"""


def with_costs(store: StoreReader, reported: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a query with `run` and `time_ms`, each followed by the GPU-milliseconds and micro-dollars that its run
    had cost by then; None without a price. Requires `run_minute`."""
    rows = store.connection.execute(_WITH_COST.format(reported=reported), list(values)).fetchall()
    return [
        (*row, int(gpu_ms or 0), None if ms_price is None else usd_micro(int(ms_price)))
        for *row, _, gpu_ms, ms_price in rows
    ]


def metrics_of(store: StoreReader, run: str) -> dict[str, list[list[Any]]]:
    """Each value with the cost of the run until then. A non-finite value is null."""
    metrics: dict[str, list[list[Any]]] = {}
    reported = f"SELECT name, attempt, time_ms, step, run, value FROM {curves('run = $1')}"
    for name, _, time_ms, step, _, value, gpu_ms, micro in with_costs(store, reported, run):
        shown = value if math.isfinite(value) else None
        metrics.setdefault(name, []).append([step, time_ms, shown, gpu_ms, micro])
    return metrics


def _spent(store: StoreReader, query: str) -> dict[str, RunCost]:
    reported = runs_without_steps(store)
    return {
        run: RunCost(
            Sum((run,), int(ms), int(ms_price), int(unpriced_ms)), int(train_ms) or (None if run in reported else 0)
        )
        for run, ms, ms_price, unpriced_ms, train_ms in store.connection.execute(query).fetchall()
    }


def _terms(window: TimeRange, price_usd_micro: int | None) -> dict[str, Any]:
    return {"price": price_of(price_usd_micro), "from_ms": window.from_ms, "to_ms": window.to_ms}
