"""The evidence that detectors read: the ledger of a time range with names, and the measurements around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import tzinfo
from functools import cached_property
from typing import Any, NamedTuple

from pyrometer.account.build import sql
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import price_of
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.burn_table import bucket_length_ms, open_burn
from pyrometer.account.relations.rank_tables import open_ranks
from pyrometer.findings.episodes import Episode, find_episodes
from pyrometer.model.human import clock
from pyrometer.model.records import OWN_POD
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, usd_micro
from pyrometer.store import StoreReader

MAX_BUCKETS = 96
LATE_MS = 20_000  # the time until a step window has ended and arrived
ACROSS_PODS = ("crash_loop", "out_of_memory", "preempted")  # causes that continue across pods of an owner
UNTIL_POD_ENDS = ("idle_held", "unused_device")  # causes that last until the pod ends, whatever runs in it

# Of the cost of the time range: smaller findings are not reported, however small a dollar is to the cluster. With
# a limit of zero dollars, everything is reported.
MIN_SHARE_OF_COST = 1 / 5000


class RankPlacement(NamedTuple):
    """The pod and the slot of a rank."""

    run: str
    attempt: int
    rank: int
    ranks: int
    pod_uid: str | None
    node_uid: str | None
    slot_index: int | None
    started_ms: int
    ended_ms: int | None


# The time of each owner by state and price.
_OWNER_BURN = """
CREATE OR REPLACE TEMP TABLE owner_burn AS
SELECT coalesce(workload_uid, pod_uid) AS owner_uid, state, usd_micro_per_hour, sum(ms) AS ms
FROM burn JOIN holder_name USING (pod_uid) GROUP BY ALL
"""


class Evidence:
    """The ledger of a time range and the measurements around it. Detectors only read it."""

    def __init__(
        self,
        store: StoreReader,
        window: TimeRange,
        settings: Settings,
        zone: tzinfo,
        *,
        price_usd_micro: int | None = None,
    ) -> None:
        self.store = store
        self.window = window
        self.settings = settings
        self.zone = zone
        open_names(store)
        store.expose_all(["event"])
        store.expose(["ledger_row"], *window)
        self._open_facts()
        store.connection.execute(
            f"CREATE OR REPLACE TEMP VIEW owner_ledger AS SELECT *, coalesce(workload_uid, pod_uid) AS owner_uid "
            f"FROM ledger_row LEFT JOIN holder_name USING (pod_uid) "
            f"WHERE minute_ms >= {window.from_ms} AND minute_ms < {window.to_ms}"
        )
        self.bucket_ms = bucket_length_ms(window, MAX_BUCKETS)
        self.price = price_of(price_usd_micro)
        open_burn(store, window, self.bucket_ms, price_usd_micro)
        self.ask(_OWNER_BURN)
        self.states = frozenset(state for (state,) in self.ask("SELECT DISTINCT state FROM burn"))

    def _open_facts(self) -> None:
        """Open the measurements of the time range and of the hour before it."""
        from_ms, to_ms = self.window
        self.store.expose(["step_window", "gpu_sample", "node_sample"], from_ms - MS_PER_HOUR, to_ms)
        open_ranks(self.store, to_ms)

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.store.connection.execute(sql.parsed(query), list(values)).fetchall()

    def has(self, kind: str) -> bool:
        """Whether any record of a kind exists."""
        return self.store.has(kind)

    def time(self, time_ms: int) -> str:
        """A time as the reader of this answer sees it."""
        length_ms = self.window.to_ms - self.window.from_ms
        # within a day, a time of day is enough
        beside_ms = time_ms if length_ms < MS_PER_DAY and self.window.from_ms <= time_ms else self.window.to_ms
        return clock(time_ms, self.zone, beside_ms=beside_ms, seconds=length_ms <= MS_PER_HOUR)

    def is_ongoing(
        self, cause: str, owner_uid: str | None, from_ms: int, to_ms: int, pods: Iterable[str | None]
    ) -> bool:
        """Whether a finding is ongoing at the end of the time range: it lasted until then and its subject runs."""
        near_ms = min(2 * MS_PER_MINUTE, max(LATE_MS, (self.window.to_ms - self.window.from_ms) // 20))
        return to_ms > self._last_ms - near_ms and not self.has_ended(cause, owner_uid, from_ms, to_ms, pods)

    def has_ended(
        self, cause: str, owner_uid: str | None, from_ms: int, to_ms: int, pods: Iterable[str | None]
    ) -> bool:
        """Whether the subject of a finding has ended: all of its pods, or all ranks that ran in them at that time."""
        about = {pod for pod in pods if pod is not None}
        if cause in ACROSS_PODS or not about:
            about = set(self.pods(owner_uid)) if owner_uid is not None else set()
        left = about - self._ended_pods.keys()
        if cause in ACROSS_PODS:  # a controller restarts failed pods
            left |= {pod for pod in about if self._ended_pods.get(pod) == "Failed" and not pod.startswith(OWN_POD)}
        if left and cause not in (*ACROSS_PODS, *UNTIL_POD_ENDS):
            left -= self._left_by_ranks(left, from_ms, to_ms)
        return bool(about) and not left

    @cached_property
    def _ended_pods(self) -> dict[str, str]:
        """The pods that ended before the end of the time range, with their phase."""
        rows = self.ask(
            """
            SELECT pod_uid, phase FROM (
                FROM pod QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
            )
            WHERE coalesce(ended_ms, CASE WHEN phase IN ('Succeeded', 'Failed') THEN time_ms END) <= $1
            """,
            self.window.to_ms,
        )
        return dict(rows)

    def _left_by_ranks(self, pods: Iterable[str], from_ms: int, to_ms: int) -> set[str]:
        """The pods whose ranks at a given time have all ended."""
        rows = self.ask(
            "SELECT pod_uid FROM the_run WHERE list_contains($1, pod_uid) AND started_ms < $3 "
            "AND coalesce(ended_ms > $2, true) "
            "GROUP BY pod_uid HAVING bool_and(coalesce(ended_ms <= $4, false)) AND max(ended_ms) >= $3 - $5",
            list(pods),
            from_ms,
            to_ms,
            self.window.to_ms,
            MS_PER_MINUTE,
        )
        return {pod for (pod,) in rows}

    @cached_property
    def _last_ms(self) -> int:
        """The time of the last report. The last minute is complete in the ledger but may not have ended."""
        last_seen = [
            last
            for kind, column in (("step_window", "to_ms"), ("gpu_sample", "time_ms"), ("event", "time_ms"))
            if self.has(kind)
            for (last,) in self.ask(f"SELECT max({column}) FROM {kind} WHERE {column} < $1", self.window.to_ms)
            if last is not None and last > self.window.to_ms - MS_PER_MINUTE
        ]
        return max(last_seen, default=self.window.to_ms)

    def node(self, node_uid: str | None) -> str | None:
        """The name of a node."""
        return self._nodes.get(node_uid, node_uid)

    def pods(self, owner_uid: str) -> list[str]:
        """The pods of a workload, or the pod without one."""
        return self._pods.get(owner_uid, [])

    @cached_property
    def _nodes(self) -> dict[str | None, str]:
        return dict(self.ask("SELECT node_uid, node FROM node_name"))

    @cached_property
    def _pods(self) -> dict[str, list[str]]:
        return dict(
            self.ask("SELECT coalesce(workload_uid, pod_uid), list_sort(list(pod_uid)) FROM holder_name GROUP BY 1")
        )

    @cached_property
    def min_usd_micro(self) -> int:
        """The minimum cost of a reported finding."""
        min_value = self.settings.finding_min_usd_micro
        spent = self.ask("SELECT coalesce(sum(ms * usd_micro_per_hour::HUGEINT), 0) FROM burn")[0][0]
        return min_value and max(min_value, round(MIN_SHARE_OF_COST * usd_micro(int(spent))))

    @cached_property
    def reportable(self) -> str:
        """The SQL condition, on rows of `burn` or `owner_burn`, for a reportable finding that claims all of them."""
        if self.price != price_of(None):
            return "true"  # findings are measured at the ledger's own prices
        min_ms_price = self.min_usd_micro * MS_PER_HOUR - MS_PER_HOUR // 2  # amounts that round to the minimum
        return (
            f"sum(ms) >= {self.settings.finding_min_ms} AND (bool_or(usd_micro_per_hour IS NULL) "
            f"OR sum(ms * usd_micro_per_hour::HUGEINT) >= {min_ms_price})"
        )

    def worth(self, *states: str) -> frozenset[str]:
        """The owners whose time in some states is reportable.

        A detector can skip the others, unless a later cause claims these states too.
        """
        rows = self.ask(
            "SELECT owner_uid FROM owner_burn WHERE list_contains($1, state) GROUP BY owner_uid "
            f"HAVING {self.reportable}",
            list(states),
        )
        return frozenset(owner for (owner,) in rows)

    def reportable_runs(self, state: str) -> frozenset[str]:
        """The runs whose time in a state, over all pods, is reportable."""
        rows = self.ask(
            "SELECT run FROM (SELECT DISTINCT run, pod_uid FROM the_run) JOIN burn USING (pod_uid) "
            f"WHERE state = $1 GROUP BY run HAVING {self.reportable}",
            state,
        )
        return frozenset(run for (run,) in rows)

    def is_reportable(self, state: str, gpu_ms: int) -> bool:
        """Whether a finding that claims this much of a state is reportable at the highest price of a GPU."""
        ((is_allowed,),) = self.ask(
            f"SELECT {self.reportable} FROM (SELECT usd_micro_per_hour, $2 AS ms FROM burn WHERE state = $1 "
            "ORDER BY usd_micro_per_hour DESC NULLS FIRST LIMIT 1)",
            state,
            gpu_ms,
        )
        return bool(is_allowed)

    def owners(self, state: str, share: float) -> frozenset[str]:
        """The owners that spent at least this share of their step time in a state, in some part of the time range."""
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
        return frozenset(owner for (owner,) in rows)

    def episodes(self, state: str) -> list[Episode]:
        """The episodes of a state, for workloads whose time in it is reportable."""
        return self._episodes.get(state, [])

    @cached_property
    def _episodes(self) -> dict[str, list[Episode]]:
        found = find_episodes(self)
        self._open_facts()
        return found

    def ranks(self, pods: Sequence[str], from_ms: int, to_ms: int) -> list[RankPlacement]:
        """The ranks that ran in these pods at that time."""
        return [
            RankPlacement(*row)
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
