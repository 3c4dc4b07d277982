"""Runs that no SDK sees, as their controllers tell of them: Kubeflow Trainer says how far a TrainJob is, how long it
will take and what its metrics are. Such a workload is a run: its pods' GPUs are its ranks."""

from __future__ import annotations

from typing import Any

from pyrometer.identify.happenings import PROGRESS, REMAINING
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import StoreReader

FRAMEWORK = "kubeflow-trainer"
LONGEST_MS = 1000 * 24 * MS_PER_HOUR  # an end that is further away is none in sight

# Workloads with a controller's word, and without a rank that speaks for itself.
_RANKS = f"""
INSERT INTO the_run BY NAME
WITH told AS (
    SELECT DISTINCT run AS workload_uid FROM metric WHERE run IN (SELECT workload_uid FROM the_workload)
        AND run NOT IN (SELECT run FROM the_run UNION SELECT workload_uid FROM the_run WHERE workload_uid IS NOT NULL)
),
there AS (
    SELECT * FROM pod WHERE time_ms <= getvariable('newest_ms')
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
),
hold AS (
    SELECT DISTINCT pod_uid, node_uid, slot_index FROM allocation WHERE to_ms IS NULL OR to_ms > from_ms
)
SELECT there.time_ms, workload_uid AS run, there.attempt,
    (row_number() OVER in_order - 1)::INTEGER AS rank, coalesce(started_ms, scheduled_ms, created_ms) AS started_ms,
    (count(*) OVER of_attempt)::INTEGER AS ranks, there.cluster, workload_uid, pod_uid, hold.node_uid,
    hold.slot_index, ended_ms,
    CASE phase WHEN 'Succeeded' THEN 'succeeded' WHEN 'Failed' THEN 'failed' END AS outcome, '{FRAMEWORK}' AS framework
FROM there JOIN told USING (workload_uid) JOIN hold USING (pod_uid)
WHERE coalesce(started_ms, scheduled_ms, created_ms) IS NOT NULL
WINDOW of_attempt AS (PARTITION BY workload_uid, there.attempt),
    in_order AS (of_attempt ORDER BY there.rank NULLS LAST, pod_uid, hold.node_uid, hold.slot_index)
"""

# A program may call a metric of its own so: that has a step, which no controller says.
_TOLD = """
SELECT run, name, arg_max(value, time_ms), max(time_ms) FROM metric
WHERE name IN (SELECT unnest($1)) AND time_ms < $2 AND isfinite(value) AND step IS NULL
    AND run IN (SELECT workload_uid FROM the_workload) GROUP BY ALL
"""


def add_told_runs(store: StoreReader) -> None:
    """Adds a rank for every device of such a workload to `the_run`. Names, ranks and metrics are open."""
    store.expose_all(["allocation"])
    store.connection.execute(_RANKS)


def told_runs(store: StoreReader) -> set[str]:
    """The runs of which only a controller or a tracker tells: nobody saw their steps. Ranks are open."""
    asked = "SELECT DISTINCT run FROM the_run WHERE framework = ? OR source IS NOT NULL"
    return {run for (run,) in store.connection.execute(asked, [FRAMEWORK]).fetchall()}


def progress_of_all(store: StoreReader, to_ms: int) -> dict[str, dict[str, Any]]:
    """How far workloads are, as their controllers last said it before a time, by UID. Names and metrics are open."""
    told: dict[str, dict[str, tuple[float, int]]] = {}
    for uid, name, value, at_ms in store.connection.execute(_TOLD, [[PROGRESS, REMAINING], to_ms]).fetchall():
        told.setdefault(uid, {})[name] = (value, at_ms)
    found = {}
    for uid, values in told.items():
        if PROGRESS not in values:
            continue
        share, at_ms = values[PROGRESS]
        left = values.get(REMAINING)
        eta_ms = None if left is None else max(0, round(min(left[0] * 1000, 2.0**62)) - (to_ms - left[1]))
        found[uid] = {
            "share": min(max(share / 100, 0.0), 1.0),
            "eta_ms": eta_ms if eta_ms is None or eta_ms < LONGEST_MS else None,
            "told_ms": at_ms, "source": "trainjob",
        }  # fmt: skip
    return found
