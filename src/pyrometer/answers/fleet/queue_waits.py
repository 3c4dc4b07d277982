"""Queues, the jobs that waited for GPUs in them, and how long."""

from __future__ import annotations

from typing import Any

from pyrometer.findings.evidence import Evidence
from pyrometer.model import events
from pyrometer.model.units import SHARE_WHOLE

# A Kueue job waits from its creation or its last eviction until it is admitted; any other job until the first of its
# pods is scheduled. Jobs that share a root wait each for itself, in the pods of the first attempt.
_WAITED = f"""
CREATE OR REPLACE TEMP TABLE waited AS
WITH newest AS (
    SELECT * FROM pod WHERE pod_uid NOT LIKE 'queued/%'
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
),
admitted AS (
    SELECT workload_uid, sum(duration_ms) AS waited_ms, max(time_ms) AS until_ms
    FROM event WHERE kind = '{events.ADMITTED}' AND duration_ms IS NOT NULL AND time_ms < $1 GROUP BY workload_uid
),
scheduled AS (
    SELECT workload_uid, min(scheduled_ms) - min(created_ms) AS waited_ms, min(scheduled_ms) AS until_ms
    FROM newest WHERE attempt = 1 AND workload_uid IS NOT NULL AND scheduled_ms < $1 GROUP BY workload_uid
)
SELECT workload_uid, greatest(coalesce(admitted.waited_ms, scheduled.waited_ms, 0), 0) AS waited_ms,
    coalesce(admitted.until_ms, scheduled.until_ms) AS until_ms
FROM scheduled FULL JOIN admitted USING (workload_uid)
"""

# Requested and not granted at the end of the time range. A job in a Kueue queue has pods that wait.
_QUEUES = """
WITH newest AS (
    SELECT * FROM pod WHERE time_ms < $2 QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
),
waits AS (
    SELECT coalesce(queue, namespace) AS queue, coalesce(workload_uid, pod_uid) AS owner_uid,
        sum(coalesce(gpu_share, 0)) AS share, min(created_ms) AS since_ms
    FROM newest WHERE phase = 'Pending' AND scheduled_ms IS NULL AND ended_ms IS NULL GROUP BY ALL
),
past AS (
    SELECT coalesce(w.queue, w.namespace) AS queue, count(*) AS jobs, median(waited_ms)::BIGINT AS median_ms,
        max(waited_ms) AS longest_ms
    FROM waited JOIN the_workload w USING (workload_uid) WHERE until_ms >= $1 AND until_ms < $2 GROUP BY ALL
),
now AS (
    SELECT queue, count(*) AS jobs, sum(share) AS share, min(since_ms) AS since_ms FROM waits GROUP BY queue
)
SELECT queue, coalesce(past.jobs, 0), past.median_ms, past.longest_ms, coalesce(now.jobs, 0), coalesce(now.share, 0),
    now.since_ms
FROM past FULL JOIN now USING (queue) ORDER BY coalesce(now.share, 0) DESC, past.median_ms DESC NULLS LAST, queue
"""


def queues(evidence: Evidence) -> list[dict[str, Any]]:
    """For each queue: how long the started jobs had waited, and what waits at the end of the time range."""
    evidence.ask(_WAITED, evidence.window.to_ms)
    return [
        {
            "queue": queue,
            "started": started,
            "waited_median_ms": median_ms,
            "waited_longest_ms": longest_ms,
            "waiting": waiting,
            "waiting_gpus": round(int(share) / SHARE_WHOLE, 3),
            "waiting_longest_ms": None if since_ms is None else max(evidence.window.to_ms - since_ms, 0),
        }
        for queue, started, median_ms, longest_ms, waiting, share, since_ms in evidence.ask(_QUEUES, *evidence.window)
    ]


def waited_ms(evidence: Evidence) -> dict[str, int]:
    """How long each workload waited before it started. Requires `queues`."""
    return {uid: int(ms) for uid, ms in evidence.ask("SELECT workload_uid, waited_ms FROM waited")}


def progress(evidence: Evidence) -> dict[str, float]:
    """The progress of workloads from 0 to 1, if their controller reports it (Kubeflow Trainer)."""
    evidence.store.expose(["metric"], *evidence.window)
    rows = evidence.ask(
        "SELECT run, arg_max(value, time_ms) FROM metric WHERE name = 'progress' AND step IS NULL AND time_ms < $1 "
        "AND run IN (SELECT workload_uid FROM the_workload) GROUP BY run",
        evidence.window.to_ms,
    )
    return {uid: min(max(value / 100, 0.0), 1.0) for uid, value in rows}
