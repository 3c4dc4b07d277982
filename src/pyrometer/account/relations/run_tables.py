"""Runs with their owners and their slots.

The time of a pod belongs to the run that started last in it; before its first run, to that one. So the cost of a run
includes its startup, and the runs of a notebook share its time.
"""

from __future__ import annotations

from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import WEIGHED, add_controller_runs, open_ranks
from pyrometer.store import StoreReader

_LISTED = f"""
CREATE OR REPLACE TEMP TABLE listed_run AS
SELECT the_run.run, any_value(coalesce(the_run.experiment, holder_name.experiment)) AS experiment,
    any_value(holder_name.team) AS team, any_value(holder_name.workload_uid) AS workload_uid,
    any_value(holder_name.workload_kind) AS kind, any_value(holder_name.workload_namespace) AS namespace,
    any_value(holder_name.workload_name) AS name, count(DISTINCT the_run.attempt) AS attempts,
    max(the_run.ranks) AS ranks, min(the_run.started_ms) AS started_ms,
    arg_max_null(the_run.ended_ms, weight) AS ended_ms, arg_max_null(the_run.outcome, weight) AS outcome,
    max(the_run.time_ms) AS reported_ms, any_value(holder_name.pipeline_run_id) AS pipeline_run_id,
    any_value(holder_name.pipeline_run) AS pipeline_run, any_value(holder_name.pipeline) AS pipeline,
    any_value(holder_name.pipeline_step) AS pipeline_step, any_value(holder_name.sweep) AS sweep,
    any_value(holder_name.trial) AS trial
FROM {WEIGHED} the_run
LEFT JOIN holder_name USING (pod_uid)
WHERE the_run.started_ms < $2 AND coalesce(the_run.ended_ms > $1, true)
GROUP BY the_run.run
"""

_PLACED = """
CREATE OR REPLACE TEMP TABLE placed_run AS
SELECT run, pod_uid, node_uid, slot_index, started_ms AS at_ms,
    lag(started_ms) OVER in_turn IS NULL AS is_first, lead(started_ms) OVER in_turn AS next_ms,
    min(run) OVER on_slot = max(run) OVER on_slot AS is_alone
FROM the_run WHERE slot_index IS NOT NULL
WINDOW on_slot AS (PARTITION BY pod_uid, node_uid, slot_index), in_turn AS (on_slot ORDER BY started_ms, attempt)
"""


def open_runs(store: StoreReader, window: TimeRange, only: str | None = None) -> None:
    """Create `listed_run` (runs with their owners) and `placed_run` (runs with their slots).

    With `only`, the ledger is opened for the time of that run alone.
    """
    open_names(store)
    store.expose_all(["event", "metric"])
    store.expose(["step_window"], *window)
    open_ranks(store, window.to_ms, tracked=True)
    add_controller_runs(store)
    open_placed_runs(store, window)
    store.connection.execute(_LISTED, list(window))
    if only is not None:
        store.expose(["ledger_row"], *_held_within(store, only, window))


def open_placed_runs(store: StoreReader, window: TimeRange) -> None:
    """Create `placed_run`, the slots of each run, and open the ledger of a time range. Requires `the_run`."""
    store.expose(["ledger_row"], *window)
    store.connection.execute(_PLACED)


def _held_within(store: StoreReader, run: str, window: TimeRange) -> TimeRange:
    """The part of a time range in which the pods of a run may have held GPUs."""
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
