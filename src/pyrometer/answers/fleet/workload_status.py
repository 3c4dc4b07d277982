"""The current state of every workload of any kind: queued, waiting for nodes, starting, running, ended; how long each
phase took, how often it restarted, and when it last made progress.

It is updated once per minute: it reads only new events and keeps the rest in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyrometer.account.query.names import open_names
from pyrometer.account.relations.rank_tables import open_ranks
from pyrometer.answers.runs.controller_runs import progress_of_all
from pyrometer.answers.runs.progress import RunActivity
from pyrometer.identify.kubernetes.queues import QUEUED_POD
from pyrometer.model import events
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader

ENDED_MS = MS_PER_HOUR  # how long a workload is listed after its end
FIRST_LOOK_MS = 7 * MS_PER_DAY  # the history that is read when the process starts
MAX_REPORT_DELAY_MS = 10 * MS_PER_MINUTE  # how late the report of a controller may arrive
PHASES = ("queued", "pending", "starting", "running", "succeeded", "failed")

# The newest attempt determines the phase of a workload, the first one how long its start took.
_STANDING = f"""
WITH newest AS MATERIALIZED (
    SELECT * FROM pod WHERE workload_uid IS NOT NULL AND time_ms <= $1
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
),
queued AS (
    SELECT DISTINCT workload_uid FROM newest WHERE pod_uid LIKE '{QUEUED_POD}%' AND ended_ms IS NULL
),
there AS MATERIALIZED (SELECT * FROM newest WHERE pod_uid NOT LIKE '{QUEUED_POD}%'),
alive AS (
    SELECT workload_uid, max(attempt) AS attempt FROM there GROUP BY workload_uid
    HAVING bool_or(ended_ms IS NULL) OR max(ended_ms) > $2
),
latest AS (
    SELECT workload_uid, attempt, count(*) AS pods, count(*) FILTER (WHERE ended_ms IS NULL) AS open,
        count(*) FILTER (WHERE ended_ms IS NULL AND scheduled_ms IS NULL) AS unscheduled,
        count(*) FILTER (WHERE ended_ms IS NULL AND started_ms IS NULL) AS unstarted,
        count(*) FILTER (WHERE phase = 'Failed') AS failed, max(ended_ms) AS ended_ms,
        sum(coalesce(gpu_share, 0)) AS share
    FROM there JOIN alive USING (workload_uid, attempt) GROUP BY ALL
),
first AS (
    SELECT workload_uid, count(*) AS pods, min(created_ms) AS created_ms,
        CASE WHEN count(scheduled_ms) = count(*) THEN max(scheduled_ms) END AS scheduled_ms,
        CASE WHEN count(started_ms) = count(*) THEN max(started_ms) END AS started_ms
    FROM (
        SELECT * FROM there SEMI JOIN alive USING (workload_uid)
        QUALIFY attempt = min(attempt) OVER (PARTITION BY workload_uid)
    ) GROUP BY workload_uid
),
stepped AS (
    SELECT workload_uid, min(first_ms) AS first_step_ms FROM (
        SELECT workload_uid, attempt, max(first_step_ms) AS first_ms FROM the_run GROUP BY ALL
    ) GROUP BY workload_uid
),
lost AS (
    SELECT there.workload_uid, sum(restated_before.to_ms - restated_before.from_ms) AS lost_ms
    FROM restated_before JOIN there USING (pod_uid)
    WHERE restated_before.state = 'lost_work' AND restated_before.to_ms > restated_before.from_ms
    GROUP BY there.workload_uid
),
named AS (SELECT workload_uid, min(team) AS team FROM holder_name GROUP BY workload_uid)
SELECT w.workload_uid, w.kind, w.namespace, w.name, coalesce(named.team, w.team, w.queue, w.namespace),
    coalesce(w.created_ms, first.created_ms, w.time_ms), latest.attempt, coalesce(latest.pods, 0), latest.open,
    latest.unscheduled, latest.unstarted, latest.failed, latest.ended_ms, coalesce(latest.share, 0)::DOUBLE,
    first.scheduled_ms, CASE WHEN first.pods >= coalesce(w.gang_pods, 1) THEN first.started_ms END,
    stepped.first_step_ms, coalesce(lost.lost_ms, 0), queued.workload_uid IS NOT NULL
FROM the_workload w LEFT JOIN latest USING (workload_uid) LEFT JOIN queued USING (workload_uid)
LEFT JOIN first USING (workload_uid) LEFT JOIN stepped USING (workload_uid) LEFT JOIN lost USING (workload_uid)
LEFT JOIN named USING (workload_uid)
WHERE latest.workload_uid IS NOT NULL OR queued.workload_uid IS NOT NULL
"""

_HAPPENED = """
SELECT coalesce(event.workload_uid, holder_name.workload_uid), kind, count(*), coalesce(sum(duration_ms), 0)
FROM event LEFT JOIN holder_name USING (pod_uid)
WHERE kind IN (SELECT unnest($1)) AND time_ms > $2 AND time_ms <= $3 GROUP BY ALL
"""


@dataclass
class WorkloadStatus:
    """A workload and its current phase."""

    uid: str
    kind: str
    workload: str  # namespace/name
    team: str
    phase: str
    created_ms: int
    attempt: int
    pods: int
    share: float  # of GPUs that its pods request, in parts (SHARE_WHOLE is one GPU)
    ended_ms: int | None
    queued_ms: int | None  # from its creation, or being sent back, until it was admitted; total
    scheduled_ms: int | None  # when the last pod of its first attempt had a node
    started_ms: int | None  # when all of them ran
    first_step_ms: int | None  # when its first step was done, by all its ranks
    restarts: int  # of containers inside of pods
    lost_ms: int  # of GPU time whose steps were repeated
    last_progress_ms: int | None
    progress: dict[str, Any] | None  # as reported by its controller


class WorkloadStatuses:
    """Every workload that exists or ended recently."""

    def __init__(self) -> None:
        self.workloads: list[WorkloadStatus] = []
        self._queued_ms: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()
        self._progress: dict[str, dict[str, Any]] = {}
        self._last_report_ms: dict[str, int] = {}  # when an event of a workload was last read
        self._read_ms: int | None = None

    def read(self, store: StoreReader, end_ms: int, runs: Iterable[RunActivity] = ()) -> None:
        """Read the state at `end_ms`. `runs` are the runs with reports of their own."""
        open_names(store)
        open_ranks(store, end_ms)
        self._happened(store, end_ms)
        stepped: dict[str, int] = {}
        for doing in runs:
            if doing.workload is not None and doing.stepped_ms is not None:
                stepped[doing.workload] = max(stepped.get(doing.workload, 0), doing.stepped_ms)
        rows = store.connection.execute(_STANDING, [end_ms, end_ms - ENDED_MS]).fetchall()
        self.workloads = [self._standing(row, stepped) for row in rows]
        self._forget({one.uid for one in self.workloads}, end_ms)

    def _forget(self, there: set[str], end_ms: int) -> None:
        """Workloads that no longer exist. One that was just admitted may have no pod yet."""
        gone = [uid for uid, at_ms in self._last_report_ms.items() if uid not in there and at_ms < end_ms - ENDED_MS]
        for uid in gone:
            for memory in (self._queued_ms, self._restarts, self._progress, self._last_report_ms):
                memory.pop(uid, None)

    def _happened(self, store: StoreReader, end_ms: int) -> None:
        """The events since the last update."""
        since_ms = end_ms - FIRST_LOOK_MS if self._read_ms is None else self._read_ms
        store.expose(["event"], since_ms, end_ms + 1)
        kinds = [events.ADMITTED, events.CONTAINER_RESTARTED]
        for uid, kind, count, took_ms in store.connection.execute(_HAPPENED, [kinds, since_ms, end_ms]).fetchall():
            if uid is None:
                continue
            self._last_report_ms[uid] = end_ms
            if kind == events.ADMITTED:
                self._queued_ms[uid] += int(took_ms)
            else:
                self._restarts[uid] += count
        store.expose(["metric"], since_ms - MAX_REPORT_DELAY_MS, end_ms + 1)
        reported = progress_of_all(store, end_ms + 1)
        self._progress |= reported
        self._last_report_ms |= dict.fromkeys(reported, end_ms)
        self._read_ms = end_ms

    def _standing(self, row: tuple[Any, ...], stepped: dict[str, int]) -> WorkloadStatus:
        (
            uid,
            kind,
            namespace,
            name,
            team,
            created_ms,
            attempt,
            pods,
            open_pods,
            unscheduled,
            unstarted,
            failed,
            ended_ms,
            share,
            scheduled_ms,
            started_ms,
            first_step_ms,
            lost_ms,
            queued,
        ) = row
        if open_pods:
            phase = "pending" if unscheduled else "starting" if unstarted else "running"
        else:
            phase = "queued" if queued else "failed" if failed else "succeeded"
        workload = f"{namespace}/{name}"
        reported = self._progress.get(uid)
        got_on = [at_ms for at_ms in (stepped.get(workload), reported and reported["told_ms"]) if at_ms]
        return WorkloadStatus(
            uid,
            kind,
            workload,
            team or "",
            phase,
            created_ms,
            attempt or 0,
            pods,
            share,
            ended_ms if phase in ("succeeded", "failed") else None,
            self._queued_ms.get(uid),
            scheduled_ms,
            started_ms,
            first_step_ms,
            self._restarts.get(uid, 0),
            int(lost_ms),
            max(got_on, default=None),
            reported,
        )
