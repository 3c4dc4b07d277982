"""What training runs cost: each as a whole, and minute by minute beside what it reported.

A pod's time belongs to the run that started last in it; before its first run, to that one. So a run's cost has its
startup in it, and the runs of a notebook share its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyrometer.account import sql
from pyrometer.account.names import open_names
from pyrometer.account.sums import Sum, price_of
from pyrometer.account.time_range import TimeRange
from pyrometer.explain.metrics import curves
from pyrometer.explain.trainer import add_told_runs, told_runs
from pyrometer.model.units import usd_micro
from pyrometer.store import StoreReader

# Of the last attempt, the rank that failed says how it ended; else one that goes on; of equals, what ended last.
WEIGHED = """(
    SELECT *, 100_000_000_000_000::HUGEINT * (4 * attempt::INTEGER
        + CASE outcome WHEN 'failed' THEN 3 WHEN 'killed' THEN 1 WHEN 'succeeded' THEN 0 ELSE 2 END)
        + coalesce(ended_ms, 0) AS weight
    FROM the_run
)"""

_LISTED = f"""
CREATE OR REPLACE TEMP TABLE listed_run AS
SELECT the_run.run, any_value(coalesce(the_run.experiment, holder_name.experiment)) AS experiment,
    any_value(holder_name.team) AS team, any_value(holder_name.workload_uid) AS workload_uid,
    any_value(holder_name.workload_kind) AS kind, any_value(holder_name.workload_namespace) AS namespace,
    any_value(holder_name.workload_name) AS name, count(DISTINCT the_run.attempt) AS attempts,
    max(the_run.ranks) AS ranks, min(the_run.started_ms) AS started_ms,
    arg_max_null(the_run.ended_ms, weight) AS ended_ms, arg_max_null(the_run.outcome, weight) AS outcome,
    max(the_run.time_ms) AS said_ms, any_value(holder_name.pipeline_run_id) AS pipeline_run_id,
    any_value(holder_name.pipeline_run) AS pipeline_run, any_value(holder_name.pipeline) AS pipeline,
    any_value(holder_name.pipeline_step) AS pipeline_step, any_value(holder_name.sweep) AS sweep,
    any_value(holder_name.trial) AS trial
FROM {WEIGHED} the_run
LEFT JOIN holder_name USING (pod_uid)
WHERE the_run.started_ms < $2 AND coalesce(the_run.ended_ms > $1, true)
GROUP BY the_run.run
"""

_TRACKED = """
INSERT INTO the_run SELECT * FROM run WHERE time_ms <= getvariable('newest_ms') AND source IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1
"""

_PLACED = """
CREATE OR REPLACE TEMP TABLE placed_run AS
SELECT run, pod_uid, node_uid, slot_index, started_ms AS at_ms,
    lag(started_ms) OVER in_turn IS NULL AS is_first, lead(started_ms) OVER in_turn AS next_ms,
    min(run) OVER on_slot = max(run) OVER on_slot AS is_alone
FROM the_run WHERE slot_index IS NOT NULL
WINDOW on_slot AS (PARTITION BY pod_uid, node_uid, slot_index), in_turn AS (on_slot ORDER BY started_ms, attempt)
"""

# A slot that a pod used for one run needs no minutes: they are many, and what they add up to is the same.
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


class Spent(NamedTuple):
    """What a run cost, and how much of its time it trained."""

    held: Sum
    train_ms: int | None  # None: nobody saw its steps

    @property
    def goodput(self) -> float | None:
        """The trained part of the held time."""
        return None if self.train_ms is None or not self.held.gpu_ms else round(self.train_ms / self.held.gpu_ms, 4)


NOTHING = Spent(Sum((), 0, 0, 0), 0)


def open_runs(store: StoreReader, window: TimeRange, only: str | None = None) -> None:
    """Makes runs readable, by who they belong to (`listed_run`) and where they were (`placed_run`); with `only`, the
    ledger for no longer than that one needs."""
    open_names(store)
    store.expose_all(["event", "metric"])
    store.expose(["step_window"], *window)
    open_ranks(store, window.to_ms, tracked=True)
    add_told_runs(store)
    open_places(store, window)
    store.connection.execute(_LISTED, list(window))
    if only is not None:
        store.expose(["ledger_row"], *_held_within(store, only, window))


def open_ranks(store: StoreReader, newest_ms: int, *, tracked: bool = False) -> None:
    """Makes the newest word on every rank readable, as `the_run`; `tracked`: of runs that only trackers know, too."""
    store.expose_all(["run", "restatement"])
    store.connection.execute(f"SET VARIABLE newest_ms = {newest_ms}::BIGINT")
    sql.run(store.connection, sql.RUNS)
    if tracked:
        store.connection.execute(_TRACKED)


def open_places(store: StoreReader, window: TimeRange) -> None:
    """Makes readable where runs were, as `placed_run`, and the ledger of a window. Ranks are open."""
    store.expose(["ledger_row"], *window)
    store.connection.execute(_PLACED)


def _held_within(store: StoreReader, run: str, window: TimeRange) -> TimeRange:
    """When the pods of a run may have held anything, within a window."""
    ((from_ms, to_ms),) = store.connection.execute(
        """
        SELECT min(least(coalesce(pod.scheduled_ms, pod.created_ms, $2), the_run.started_ms)),
            max(coalesce(pod.ended_ms, $3))
        FROM the_run LEFT JOIN (
            SELECT pod_uid, min(scheduled_ms) AS scheduled_ms, min(created_ms) AS created_ms,
                arg_max_null(ended_ms, time_ms) AS ended_ms
            FROM pod GROUP BY pod_uid
        ) pod USING (pod_uid)
        WHERE run = $1
        """,
        [run, *window],
    ).fetchall()
    return window if from_ms is None else TimeRange(max(window.from_ms, from_ms), min(window.to_ms, to_ms))


def costs(store: StoreReader, window: TimeRange, price_usd_micro: int | None) -> dict[str, Spent]:
    """What every run cost. Their places are open."""
    terms = _terms(window, price_usd_micro)
    store.connection.execute(_MINUTES.format(table="shared_minute", which="NOT is_alone", **terms))
    return _spent(store, _WHOLE.format(**terms))


def open_minutes(store: StoreReader, window: TimeRange, price_usd_micro: int | None, runs: Sequence[str]) -> None:
    """Makes the minutes of some runs readable (`run_minute`), and which they are (`wanted_run`). Runs are open."""
    store.connection.execute(
        "CREATE OR REPLACE TEMP TABLE wanted_run AS SELECT unnest(?::VARCHAR[]) AS run", [list(runs)]
    )
    which = "run IN (FROM wanted_run)"
    store.connection.execute(_MINUTES.format(table="run_minute", which=which, **_terms(window, price_usd_micro)))


def costs_of_minutes(store: StoreReader) -> dict[str, Spent]:
    """What the runs whose minutes are open cost."""
    return _spent(
        store,
        "SELECT run, sum(ms), coalesce(sum(ms_price), 0), sum(unpriced_ms), "
        "coalesce(sum(ms) FILTER (WHERE state = 'train'), 0) FROM run_minute GROUP BY run",
    )


def states_of_minutes(store: StoreReader) -> list[Sum]:
    """What the runs whose minutes are open cost, by state."""
    rows = store.connection.execute(
        "SELECT state, sum(ms), coalesce(sum(ms_price), 0), sum(unpriced_ms) FROM run_minute "
        "GROUP BY state ORDER BY 2 DESC, 1"
    ).fetchall()
    return [Sum((state,), int(ms), int(ms_price), int(unpriced_ms)) for state, ms, ms_price, unpriced_ms in rows]


# What a run had cost at a moment of a minute: it paid evenly while it held its GPUs. Of the first of several minutes
# that is the end, of the last the beginning: as much of it as of a minute in which it held all its GPUs. Of a minute
# alone it is not known, and all of it counts.
_BESIDE = """
WITH told AS MATERIALIZED ({told}),  -- first: DuckDB 2.0 stumbles over a view of hot rows in an ASOF join
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
SELECT told.*,
    CASE WHEN is_first AND is_last THEN length_ms ELSE greatest(least(time_ms + 1 - from_ms, length_ms), 0) END
        AS part_ms,
    ms_before + ms * part_ms // length_ms, price_before + coalesce(ms_price, 0) * part_ms // length_ms
FROM told ASOF LEFT JOIN spent ON told.run = spent.run AND time_ms >= spent.minute_ms
ORDER BY ALL
"""


def beside_costs(store: StoreReader, told: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a query with `run` and `time_ms`, each followed by the GPU-milliseconds and micro-dollars that its run
    had cost by then; None where there is no price. Minutes are open."""
    rows = store.connection.execute(_BESIDE.format(told=told), list(values)).fetchall()
    return [
        (*row, int(gpu_ms or 0), None if ms_price is None else usd_micro(int(ms_price)))
        for *row, _, gpu_ms, ms_price in rows
    ]


def metrics_of(store: StoreReader, run: str) -> dict[str, list[list[Any]]]:
    """Each value beside what the run had cost by then. A value that is not finite is null."""
    metrics: dict[str, list[list[Any]]] = {}
    told = f"SELECT name, attempt, time_ms, step, run, value FROM {curves('run = $1')}"
    for name, _, time_ms, step, _, value, gpu_ms, micro in beside_costs(store, told, run):
        shown = value if math.isfinite(value) else None
        metrics.setdefault(name, []).append([step, time_ms, shown, gpu_ms, micro])
    return metrics


def _spent(store: StoreReader, query: str) -> dict[str, Spent]:
    told = told_runs(store)
    return {
        run: Spent(Sum((run,), int(ms), int(ms_price), int(unpriced_ms)), int(train_ms) or (None if run in told else 0))
        for run, ms, ms_price, unpriced_ms, train_ms in store.connection.execute(query).fetchall()
    }


def _terms(window: TimeRange, price_usd_micro: int | None) -> dict[str, Any]:
    return {"price": price_of(price_usd_micro), "from_ms": window.from_ms, "to_ms": window.to_ms}
