"""The ranks of runs: as the SDK, a tracker or a controller reported them."""

from __future__ import annotations

from pyrometer.account.build import sql
from pyrometer.store import StoreReader

TRAINER = "kubeflow-trainer"  # the framework of runs that Kubeflow Trainer reports

# Which rank decides how a run ended: in the last attempt, a rank that failed; else one that is running; else the one
# that ended last.
WEIGHED = """(
    SELECT *, 100_000_000_000_000::HUGEINT * (4 * attempt::INTEGER
        + CASE outcome WHEN 'failed' THEN 3 WHEN 'killed' THEN 1 WHEN 'succeeded' THEN 0 ELSE 2 END)
        + coalesce(ended_ms, 0) AS weight
    FROM the_run
)"""

_TRACKED = """
INSERT INTO the_run SELECT * FROM run WHERE time_ms <= getvariable('newest_ms') AND source IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1
"""

# Workloads whose controller reports metrics, and none of whose ranks reports anything.
_RANKS = f"""
INSERT INTO the_run BY NAME
WITH reporting AS (
    SELECT DISTINCT run AS workload_uid FROM metric WHERE run IN (SELECT workload_uid FROM the_workload)
        AND run NOT IN (SELECT run FROM the_run UNION SELECT workload_uid FROM the_run WHERE workload_uid IS NOT NULL)
),
newest AS (
    SELECT * FROM pod WHERE time_ms <= getvariable('newest_ms')
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
),
hold AS (
    SELECT DISTINCT pod_uid, node_uid, slot_index FROM allocation WHERE to_ms IS NULL OR to_ms > from_ms
)
SELECT newest.time_ms, workload_uid AS run, newest.attempt,
    (row_number() OVER in_order - 1)::INTEGER AS rank, coalesce(started_ms, scheduled_ms, created_ms) AS started_ms,
    (count(*) OVER of_attempt)::INTEGER AS ranks, newest.cluster, workload_uid, pod_uid, hold.node_uid,
    hold.slot_index, ended_ms,
    CASE phase WHEN 'Succeeded' THEN 'succeeded' WHEN 'Failed' THEN 'failed' END AS outcome, '{TRAINER}' AS framework
FROM newest JOIN reporting USING (workload_uid) JOIN hold USING (pod_uid)
WHERE coalesce(started_ms, scheduled_ms, created_ms) IS NOT NULL
WINDOW of_attempt AS (PARTITION BY workload_uid, newest.attempt),
    in_order AS (of_attempt ORDER BY newest.rank NULLS LAST, pod_uid, hold.node_uid, hold.slot_index)
"""


def open_ranks(store: StoreReader, newest_ms: int, *, tracked: bool = False) -> None:
    """Create `the_run`: the newest record of every rank. `tracked` adds runs that only a tracker reported."""
    store.expose_all(["run", "restatement"])
    store.connection.execute(f"SET VARIABLE newest_ms = {newest_ms}::BIGINT")
    sql.run(store.connection, sql.RUNS)
    if tracked:
        store.connection.execute(_TRACKED)


def add_controller_runs(store: StoreReader) -> None:
    """Add to `the_run` one rank per GPU of each such workload. Requires names, `the_run` and `metric`."""
    store.expose_all(["allocation"])
    store.connection.execute(_RANKS)


def runs_without_steps(store: StoreReader) -> set[str]:
    """The runs that only a controller or a tracker reports: their steps are not known. Requires `the_run`."""
    query = "SELECT DISTINCT run FROM the_run WHERE framework = ? OR source IS NOT NULL"
    return {run for (run,) in store.connection.execute(query, [TRAINER]).fetchall()}
