"""What detectors look at: the ledger of a window, with names, and the evidence around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import tzinfo
from functools import cached_property
from typing import Any, NamedTuple

from pyrometer.account import sql
from pyrometer.account.names import open_names
from pyrometer.account.sums import price_of
from pyrometer.account.time_range import TimeRange
from pyrometer.explain.burn import bucket_of
from pyrometer.explain.burn import open_burn
from pyrometer.account.relations.burn import bucket_length_ms
from pyrometer.account.relations.burn import open_burn
from pyrometer.account.relations.ranks import open_ranks
from pyrometer.explain.episodes import Episode, find_episodes
from pyrometer.model.human import clock
from pyrometer.model.records import OWN_POD
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, usd_micro
from pyrometer.store import StoreReader

MOST_BUCKETS = 96
LATE_MS = 20_000  # a window of steps takes so long to be over and to arrive
RETRIED = ("crash_loop", "out_of_memory", "preempted")  # causes that last from one pod of an owner to the next
OF_HOLDERS = ("idle_held", "unused_device")  # causes that last until the pod ends, whatever ran in it

# Of what the window cost: less is not worth a reader's time, however small a dollar is to the cluster. Who sets the
# limit in dollars to nothing wants to see everything.
WORTH_TELLING = 1 / 5000


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


# Who spent how long in which state, at which price.
_OWNER_BURN = """
CREATE OR REPLACE TEMP TABLE owner_burn AS
SELECT coalesce(workload_uid, pod_uid) AS owner_uid, state, usd_micro_per_hour, sum(ms) AS ms
FROM burn JOIN holder_name USING (pod_uid) GROUP BY ALL
"""


class Night:
    """A window of the ledger and what was seen in it. Detectors read it and change nothing."""

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
            f"CREATE OR REPLACE TEMP VIEW night_ledger AS SELECT *, coalesce(workload_uid, pod_uid) AS owner_uid "
            f"FROM ledger_row LEFT JOIN holder_name USING (pod_uid) "
            f"WHERE minute_ms >= {window.from_ms} AND minute_ms < {window.to_ms}"
        )
        self.bucket_ms = bucket_length_ms(window, MOST_BUCKETS)
        self.price = price_of(price_usd_micro)
        open_burn(store, window, self.bucket_ms, price_usd_micro)
        self.ask(_OWNER_BURN)
        self.states = frozenset(state for (state,) in self.ask("SELECT DISTINCT state FROM burn"))

    def _open_facts(self) -> None:
        """Makes readable what was measured in the time range and in the hour before it."""
        from_ms, to_ms = self.window
        self.store.expose(["step_window", "gpu_sample", "node_sample"], from_ms - MS_PER_HOUR, to_ms)
        open_ranks(self.store, to_ms)

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

    def goes_on(self, cause: str, owner_uid: str | None, from_ms: int, to_ms: int, pods: Iterable[str | None]) -> bool:
        """Whether a finding still applies when the window ends: it lasted until then, and what it is about runs."""
        near_ms = min(2 * MS_PER_MINUTE, max(LATE_MS, (self.window.to_ms - self.window.from_ms) // 20))
        return to_ms > self._last_ms - near_ms and not self.has_ended(cause, owner_uid, from_ms, to_ms, pods)

    def has_ended(
        self, cause: str, owner_uid: str | None, from_ms: int, to_ms: int, pods: Iterable[str | None]
    ) -> bool:
        """Whether what a finding is about has ended: all of its pods, or all ranks that ran in them at that time."""
        about = {pod for pod in pods if pod is not None}
        if cause in RETRIED or not about:
            about = set(self.pods(owner_uid)) if owner_uid is not None else set()
        left = about - self._ended_pods.keys()
        if cause in RETRIED:  # a controller starts pods that failed again
            left |= {pod for pod in about if self._ended_pods.get(pod) == "Failed" and not pod.startswith(OWN_POD)}
        if left and cause not in (*RETRIED, *OF_HOLDERS):
            left -= self._left_by_ranks(left, from_ms, to_ms)
        return bool(about) and not left

    @cached_property
    def _ended_pods(self) -> dict[str, str]:
        """The pods that have ended before the window does, with their phase."""
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
        """The pods of which all ranks that ran at a time have ended, and with them what lasted until then."""
        rows = self.ask(
            "SELECT pod_uid FROM the_run WHERE list_contains($1, pod_uid) AND started_ms < $3 "
            "AND coalesce(ended_ms > $2, true) "
            "GROUP BY pod_uid HAVING bool_and(coalesce(ended_ms <= $4, false)) AND max(ended_ms) >= $3 - $5",
            list(pods), from_ms, to_ms, self.window.to_ms, MS_PER_MINUTE,
        )  # fmt: skip
        return {pod for (pod,) in rows}

    @cached_property
    def _last_ms(self) -> int:
        """When something was last heard of anybody. The last minute is whole in the ledger, and may not be over."""
        heard = [
            last
            for kind, column in (("step_window", "to_ms"), ("gpu_sample", "time_ms"), ("event", "time_ms"))
            if self.has(kind)
            for (last,) in self.ask(f"SELECT max({column}) FROM {kind} WHERE {column} < $1", self.window.to_ms)
            if last is not None and last > self.window.to_ms - MS_PER_MINUTE
        ]
        return max(heard, default=self.window.to_ms)

    def node(self, node_uid: str | None) -> str | None:
        """The name of a node."""
        return self._nodes.get(node_uid, node_uid)

    def pods(self, owner_uid: str) -> list[str]:
        """The pods of a workload, or the one that belongs to none."""
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
    def least_usd_micro(self) -> int:
        """What a finding must cost to be told."""
        least = self.settings.finding_min_usd_micro
        spent = self.ask("SELECT coalesce(sum(ms * usd_micro_per_hour::HUGEINT), 0) FROM burn")[0][0]
        return least and max(least, round(WORTH_TELLING * usd_micro(int(spent))))

    @cached_property
    def worth_a_look(self) -> str:
        """The condition, on rows of `burn` or `owner_burn`, that a finding may be told if it claims all of them."""
        if self.price != price_of(None):
            return "true"  # findings are weighed at the ledger's own prices
        least_ms_price = self.least_usd_micro * MS_PER_HOUR - MS_PER_HOUR // 2  # what rounds to the least
        return (
            f"sum(ms) >= {self.settings.finding_min_ms} AND (bool_or(usd_micro_per_hour IS NULL) "
            f"OR sum(ms * usd_micro_per_hour::HUGEINT) >= {least_ms_price})"
        )

    def worth(self, *states: str) -> frozenset[str]:
        """Whose time in some states is worth a look. Of the others no finding would be told that claims only these
        states; so where no later cause claims them, a detector need not look at the others."""
        rows = self.ask(
            "SELECT owner_uid FROM owner_burn WHERE list_contains($1, state) GROUP BY owner_uid "
            f"HAVING {self.worth_a_look}",
            list(states),
        )
        return frozenset(owner for (owner,) in rows)

    def worth_runs(self, state: str) -> frozenset[str]:
        """The runs whose time in a state, in whatever pods, is worth a look."""
        rows = self.ask(
            "SELECT run FROM (SELECT DISTINCT run, pod_uid FROM the_run) JOIN burn USING (pod_uid) "
            f"WHERE state = $1 GROUP BY run HAVING {self.worth_a_look}",
            state,
        )
        return frozenset(run for (run,) in rows)

    def may_tell(self, state: str, gpu_ms: int) -> bool:
        """Whether a finding that claims so much of a state may be told, where a GPU costs most."""
        ((may,),) = self.ask(
            f"SELECT {self.worth_a_look} FROM (SELECT usd_micro_per_hour, $2 AS ms FROM burn WHERE state = $1 "
            "ORDER BY usd_micro_per_hour DESC NULLS FIRST LIMIT 1)",
            state, gpu_ms,
        )  # fmt: skip
        return bool(may)

    def owners(self, state: str, share: float) -> frozenset[str]:
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
        return frozenset(owner for (owner,) in rows)

    def episodes(self, state: str) -> list[Episode]:
        """When GPUs were in a state, of each workload of which that is worth a look."""
        return self._episodes.get(state, [])

    @cached_property
    def _episodes(self) -> dict[str, list[Episode]]:
        found = find_episodes(self)
        self._open_facts()
        return found

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
