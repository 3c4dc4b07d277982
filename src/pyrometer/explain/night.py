"""What detectors look at: the ledger of a window, with names, and the evidence around it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account import sql
from pyrometer.account.sums import Window, open_names
from pyrometer.explain.words import clock
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import Store

EPISODE_GAP_MS = 5 * MS_PER_MINUTE
MOST_BUCKETS = 96


class Episode(NamedTuple):
    """A stretch of time in which an owner's GPUs were in a state, without a longer break."""

    owner_uid: str
    from_ms: int
    to_ms: int
    pods: tuple[str, ...]


class Rank(NamedTuple):
    """Where a rank of a run lives."""

    run: str
    attempt: int
    rank: int
    ranks: int
    pod_uid: str | None
    node_uid: str | None
    slot_index: int | None
    started_ms: int
    ended_ms: int | None


# Stretches of one owner that touch, or nearly do ($4), become one.
_ISLANDS = """,
numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY owner_uid ORDER BY from_ms, to_ms, pod_uid) AS episode
    FROM (
        SELECT *, coalesce(from_ms - max(to_ms) OVER (PARTITION BY owner_uid ORDER BY from_ms, to_ms, pod_uid
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > $4, true)::INTEGER AS begins
        FROM stretch WHERE from_ms < to_ms
    )
)
SELECT owner_uid, min(from_ms), max(to_ms), list_sort(list(DISTINCT pod_uid)) FROM numbered GROUP BY owner_uid, episode
"""


# One pass over the ledger. Sums are taken from it, and detectors see in it where to look closer.
_BURN = """
CREATE OR REPLACE TEMP TABLE burn AS
SELECT minute_ms // {bucket_ms} * {bucket_ms} AS minute_ms, pod_uid, state, evidence, {price} AS usd_micro_per_hour,
    sum(ms) AS ms
FROM ledger_row WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms}
GROUP BY ALL
"""


class Night:
    """A window of the ledger and what was seen in it. Detectors read it and change nothing."""

    def __init__(
        self, store: Store, window: Window, settings: Settings, zone: tzinfo, *, price_usd_micro: int | None = None
    ) -> None:
        self.store = store
        self.window = window
        self.settings = settings
        self.zone = zone
        open_names(store)
        store.expose_all(["run", "event", "restatement"])
        store.expose(["ledger_row"], *window)
        store.expose(["step_window", "gpu_sample", "node_sample"], window.from_ms - MS_PER_HOUR, window.to_ms)
        store.connection.execute(f"SET VARIABLE newest_ms = {window.to_ms}::BIGINT")
        sql.run(store.connection, sql.RUNS)
        store.connection.execute(
            f"CREATE OR REPLACE TEMP VIEW night_ledger AS SELECT *, coalesce(workload_uid, pod_uid) AS owner_uid "
            f"FROM ledger_row LEFT JOIN holder_name USING (pod_uid) "
            f"WHERE minute_ms >= {window.from_ms} AND minute_ms < {window.to_ms}"
        )
        self.bucket_ms = _bucket_ms(window)
        # one price for everything, when that was asked for
        self.price = "usd_micro_per_hour" if price_usd_micro is None else f"{int(price_usd_micro)}::BIGINT"
        store.connection.execute(
            _BURN.format(bucket_ms=self.bucket_ms, price=self.price, from_ms=window.from_ms, to_ms=window.to_ms)
        )
        self.states = frozenset(state for (state,) in self.ask("SELECT DISTINCT state FROM burn"))

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.store.connection.execute(sql.parsed(query), list(values)).fetchall()

    def has(self, kind: str) -> bool:
        """Whether there is any record of a kind to look at."""
        return self.store.has(kind)

    def time(self, time_ms: int) -> str:
        """A time of day, as the reader of this night's report calls it."""
        length_ms = self.window.to_ms - self.window.from_ms
        # within a day, a time of day is enough
        beside_ms = time_ms if length_ms < MS_PER_DAY and self.window.from_ms <= time_ms else self.window.to_ms
        return clock(time_ms, self.zone, beside_ms=beside_ms, seconds=length_ms <= MS_PER_HOUR)

    def goes_on(self, to_ms: int) -> bool:
        """Whether what lasted until then is still there when the window ends."""
        return to_ms > self.window.to_ms - 2 * MS_PER_MINUTE

    def node(self, node_uid: str | None) -> str | None:
        """The name of a node."""
        rows = self.ask("SELECT node FROM node_name WHERE node_uid = ?", node_uid)
        return rows[0][0] if rows else node_uid

    def owners(self, state: str, share: float) -> list[str]:
        """Who spent at least this share of their stepping time, over some part of the window, in a state."""
        rows = self.ask(
            """
            SELECT DISTINCT owner_uid FROM (
                SELECT coalesce(workload_uid, pod_uid) AS owner_uid FROM burn JOIN holder_name USING (pod_uid)
                WHERE state IN ('train', 'evaluate', 'checkpoint', 'data_stall', 'straggler_wait', 'comm_stall')
                GROUP BY owner_uid, minute_ms
                HAVING coalesce(sum(ms) FILTER (WHERE state = $1), 0) >= $2 * sum(ms)
            )
            """,
            state,
            share,
        )
        return [owner for (owner,) in rows]

    def episodes(self, state: str) -> list[Episode]:
        """When each workload's GPUs were in a state: exact where it was restated, to the minute where it was not."""
        if state not in self.states:
            return []
        restated = self.ask(
            f"""
            WITH stretch AS (
                SELECT coalesce(workload_uid, pod_uid) AS owner_uid, pod_uid, greatest(from_ms, $2) AS from_ms,
                    least(coalesce(restated_before.to_ms, $3), $3, held.until_ms) AS to_ms
                FROM restated_before
                JOIN holder_name USING (pod_uid)
                -- an open one ends with what its pod is known to have held
                JOIN (
                    SELECT pod_uid, node_uid, slot_index, max(minute_ms) + 60000 AS until_ms FROM night_ledger
                    WHERE state = $1 GROUP BY pod_uid, node_uid, slot_index
                ) held USING (pod_uid, node_uid, slot_index)
                WHERE restated_before.state = $1
            )
            {_ISLANDS}
            """,
            state, *self.window, self.settings.hang_limit_ms,
        )  # fmt: skip
        to_the_minute = self.ask(
            f"""
            WITH stretch AS (
                -- a minute that is not full is at the edge of what it belongs to
                SELECT owner_uid, pod_uid,
                    CASE WHEN before THEN minute_ms ELSE minute_ms + 60000 - most_ms END AS from_ms,
                    CASE WHEN before AND NOT after THEN minute_ms + most_ms ELSE minute_ms + 60000 END AS to_ms
                FROM (
                    SELECT owner_uid, pod_uid, minute_ms, max(ms) AS most_ms,
                        coalesce(lag(minute_ms) OVER in_time = minute_ms - 60000, false) AS before,
                        coalesce(lead(minute_ms) OVER in_time = minute_ms + 60000, false) AS after
                    FROM night_ledger
                    WHERE state = $1 AND pod_uid IS NOT NULL AND minute_ms >= $2 AND minute_ms < $3 AND NOT EXISTS (
                        FROM restated_before
                        WHERE restated_before.state = night_ledger.state
                            AND restated_before.pod_uid = night_ledger.pod_uid
                            AND restated_before.from_ms < minute_ms + 60000
                            AND coalesce(restated_before.to_ms > minute_ms, true)
                    )
                    GROUP BY owner_uid, pod_uid, minute_ms
                    WINDOW in_time AS (PARTITION BY owner_uid, pod_uid ORDER BY minute_ms)
                )
            )
            {_ISLANDS}
            """,
            state, *self.window, EPISODE_GAP_MS,
        )  # fmt: skip
        return sorted(
            Episode(owner, from_ms, to_ms, tuple(pods)) for owner, from_ms, to_ms, pods in restated + to_the_minute
        )

    def ranks(self, pods: Sequence[str], from_ms: int, to_ms: int) -> list[Rank]:
        """The ranks that ran in these pods at that time."""
        return [
            Rank(*row)
            for row in self.ask(
                "SELECT run, attempt, rank, ranks, pod_uid, node_uid, slot_index, started_ms, ended_ms FROM the_run "
                "WHERE list_contains($1, pod_uid) AND started_ms < $3 AND coalesce(ended_ms > $2, true) "
                "ORDER BY run, attempt, rank",
                list(pods),
                from_ms,
                to_ms,
            )
        ]

    def pod_names(self, pods: Sequence[str]) -> list[str]:
        """The names of pods."""
        return [
            name
            for (name,) in self.ask(
                "SELECT pod FROM holder_name WHERE list_contains($1, pod_uid) ORDER BY pod", list(pods)
            )
        ]


def _bucket_ms(window: Window) -> int:
    """The length of the timeline's buckets: the shortest round one that gives few enough of them."""
    minutes = (window.to_ms - window.from_ms) // MS_PER_MINUTE
    for length in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080):
        if minutes <= length * MOST_BUCKETS:
            return length * MS_PER_MINUTE
    return 40320 * MS_PER_MINUTE
