"""Progress of runs as their controllers report it: Kubeflow Trainer reports the progress of a TrainJob, its remaining
time and its metrics."""

from __future__ import annotations

from typing import Any

from pyrometer.identify.kubernetes.translated_events import PROGRESS, REMAINING
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import StoreReader

MAX_REMAINING_MS = 1000 * 24 * MS_PER_HOUR  # a later end is not shown

# A program may use the same metric names. Its values have a step, a controller's do not.
_REPORTED_PROGRESS = """
SELECT run, name, arg_max(value, time_ms), max(time_ms) FROM metric
WHERE name IN (SELECT unnest($1)) AND time_ms < $2 AND isfinite(value) AND step IS NULL
    AND run IN (SELECT workload_uid FROM the_workload) GROUP BY ALL
"""


def progress_of_all(store: StoreReader, to_ms: int) -> dict[str, dict[str, Any]]:
    """The progress of workloads by UID, as last reported by their controllers before a time.

    Requires names and metrics.
    """
    reported: dict[str, dict[str, tuple[float, int]]] = {}
    for uid, name, value, at_ms in store.connection.execute(
        _REPORTED_PROGRESS, [[PROGRESS, REMAINING], to_ms]
    ).fetchall():
        reported.setdefault(uid, {})[name] = (value, at_ms)
    found = {}
    for uid, values in reported.items():
        if PROGRESS not in values:
            continue
        share, at_ms = values[PROGRESS]
        left = values.get(REMAINING)
        eta_ms = None if left is None else max(0, round(min(left[0] * 1000, 2.0**62)) - (to_ms - left[1]))
        found[uid] = {
            "share": min(max(share / 100, 0.0), 1.0),
            "eta_ms": eta_ms if eta_ms is None or eta_ms < MAX_REMAINING_MS else None,
            "told_ms": at_ms,
            "source": "trainjob",
        }
    return found
