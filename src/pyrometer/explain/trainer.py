"""Runs that no SDK sees, as their controllers tell of them: Kubeflow Trainer says how far a TrainJob is, how long it
will take and what its metrics are. Such a workload is a run: its pods' GPUs are its ranks."""

from __future__ import annotations

from typing import Any

from pyrometer.identify.happenings import PROGRESS, REMAINING
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import StoreReader

LONGEST_MS = 1000 * 24 * MS_PER_HOUR  # an end that is further away is none in sight

# A program may call a metric of its own so: that has a step, which no controller says.
_TOLD = """
SELECT run, name, arg_max(value, time_ms), max(time_ms) FROM metric
WHERE name IN (SELECT unnest($1)) AND time_ms < $2 AND isfinite(value) AND step IS NULL
    AND run IN (SELECT workload_uid FROM the_workload) GROUP BY ALL
"""


def progress_of_all(store: Reading, to_ms: int) -> dict[str, dict[str, Any]]:
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
