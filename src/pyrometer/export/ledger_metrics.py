"""The ledger as Prometheus metrics.

Counters add a minute once, after it has settled, and never fall; what is corrected afterwards shows only in
`pyrometer_restated_gpu_seconds_total`. Exact figures come from the API.

Whoever has series keeps them while they hold GPUs. An hour after that they go, and come back where they were: a series
that is gone is stale for Prometheus, and `sum(increase(…))` is right, whoever comes, goes and returns.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pyrometer import __version__
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import Sum, sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.export.metrics_text import Prepared, label
from pyrometer.model.states import STATES
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import Store

SETTLED_MS = 10 * MS_PER_MINUTE  # late samples and events are in by then
WATCHED_MS = 48 * MS_PER_HOUR  # how far back corrections are noticed
MOST_SERIES_OF = 1_000  # workloads with series of their own
MOST_TEAMS = 100  # whose workloads beyond that are counted as the team's `other`
MOST_RETIRED = 10_000  # workloads that would go on where they were
RETIRED_MS = MS_PER_HOUR  # a workload without GPUs for so long has no series any more
THROUGH = "exported_through_ms"  # in the store: a restart goes on with the next minute
ANNOUNCED = "exported_announced"  # and with what had been announced, but not shown
MOST_FINDINGS = 200

_USD = 1e6 * MS_PER_HOUR  # of ms × micro-dollars per hour


class Owner(NamedTuple):
    """Whose time it is, as labels say it."""

    team: str
    experiment: str
    workload: str  # namespace/name


OTHER = "other"
OTHERS = Owner(OTHER, OTHER, OTHER)


class Amount(NamedTuple):
    """What a counter has counted."""

    gpu_ms: int = 0
    ms_price: int = 0


class Ledger(Prepared):
    """What has been counted since this process began."""

    def __init__(self, *, most: int = MOST_SERIES_OF, most_teams: int = MOST_TEAMS) -> None:
        super().__init__()
        self.since_ms = self.through_ms = 0  # minutes between them are counted
        self.most, self.most_teams = most, most_teams
        self.amounts: dict[tuple[Owner, str], Amount] = {}
        self.announced: dict[tuple[Owner, str], Amount] = {}  # to be added when the series has been seen without
        self.retired: dict[Owner, dict[str, Amount]] = {}  # without series now, the longest first
        self.restated: Counter[tuple[str, str]] = Counter()
        self.findings: dict[tuple[str, Owner], int] = {}
        self._seen_ms: dict[Owner, int] = {}  # owners with series of their own: when they last had GPUs
        self._teams: set[str] = set()  # those with an `other` of their own
        self._kinds: dict[Owner, str] = {}
        self._workloads_left_out = self._findings_left_out = 0
        self._hours: dict[int, Counter[str]] = {}  # what was counted, by hour and state
        self._parts: set[str] = set()
        self.prepare(self._metrics())

    def count(self, store: Store, end_ms: int) -> None:
        """Counts the minutes that have settled; the ledger is up to date until `end_ms`."""
        settled_ms = (end_ms - SETTLED_MS) // MS_PER_MINUTE * MS_PER_MINUTE
        if not self.through_ms:
            self.since_ms = self.through_ms = min(int(store.meta(THROUGH) or settled_ms), settled_ms)
            if self.resume(store.meta(ANNOUNCED) or "[0, []]"):
                return  # they are to be seen as they were first: the rest has a minute's time
        self._notice_corrections(store)
        groups: list[Sum] = []
        if settled_ms > self.through_ms:
            window = TimeRange(self.through_ms, settled_ms)
            open_names(store)
            groups = sums(store, window, ("state", "team", "experiment", "workload"), zone=UTC)
            for hour, states in _by_hour(store, window).items():
                self._hours.setdefault(hour, Counter()).update(states)
        self.advance(groups, max(settled_ms, self.through_ms))
        store.set_meta(ANNOUNCED, self.pending())  # first: it counts only together with the other
        store.set_meta(THROUGH, str(self.through_ms))

    def pending(self) -> str:
        """What has been shown without its first minutes, for the process after this one."""
        return json.dumps(
            [self.through_ms, [[*owner, state, *rest] for (owner, state), rest in self.announced.items()]]
        )

    def resume(self, pending: str) -> bool:
        """Announces what the process before did not come to show, if it ended here; says whether there is any."""
        through_ms, rows = json.loads(pending)
        for *names, state, gpu_ms, ms_price in rows if through_ms == self.through_ms else ():
            owner = Owner(*names)
            if owner.workload != OTHER:
                self._seen_ms[owner] = through_ms
            elif owner != OTHERS:
                self._teams.add(owner.team)
            self.amounts[owner, state] = Amount()
            self.announced[owner, state] = Amount(gpu_ms, ms_price)
        self.prepare(self._metrics())
        return bool(self.announced)

    def advance(self, groups: Iterable[Sum], through_ms: int) -> None:
        """Adds the minutes up to a time, and shows what there is then."""
        grown = {owner for owner, _ in self.announced}  # they have to be seen so once, however long it took
        for key, amount in self.announced.items():
            self.amounts[key] = _added(self.amounts[key], amount)
        self.announced = {}
        if through_ms > self.through_ms:
            self._add(groups, through_ms)
            self.through_ms = through_ms
        self._retire(grown)
        self.prepare(self._metrics())

    def found(self, findings: Iterable[Mapping[str, Any]]) -> None:
        """What `why` found: the dollars of each cause and workload, as they are now."""
        totals: Counter[tuple[str, Owner]] = Counter()
        for finding in findings:
            owner = _owner(finding["team"], finding["experiment"], finding["workload"])
            totals[finding["cause"], owner] += finding["usd_micro"] or 0
        self.findings = dict(totals.most_common(MOST_FINDINGS))
        self._findings_left_out = max(0, len(totals) - MOST_FINDINGS)
        self.prepare(self._metrics())

    def _add(self, groups: Iterable[Sum], at_ms: int) -> None:
        """A first value is no increase: what is new is shown without its first minutes, and they come with the next."""
        shown = set(self.amounts)
        left_out = set()
        for group in groups:
            state, team, experiment, workload = group.key
            named = _owner(team, experiment, workload)
            owner = self._admitted(named, at_ms)
            if owner != named:
                left_out.add(named)
            elif workload:
                self._kinds[owner] = workload["kind"]
            key = (owner, state)
            self.amounts.setdefault(key, Amount())
            into = self.amounts if key in shown else self.announced
            into[key] = _added(into.get(key, Amount()), Amount(group.gpu_ms, group.ms_price))
        self._workloads_left_out = len(left_out)

    def _admitted(self, owner: Owner, at_ms: int) -> Owner:
        """The owner, or its team's `other` when there are too many: whoever has a series keeps it."""
        if owner not in self._seen_ms and len(self._seen_ms) >= self.most:
            if owner.team not in self._teams and len(self._teams) >= self.most_teams:
                return OTHERS
            self._teams.add(owner.team)
            return Owner(owner.team, OTHER, OTHER)
        self._seen_ms[owner] = at_ms
        for state, amount in self.retired.pop(owner, {}).items():
            self.amounts[owner, state] = amount
        return owner

    def _retire(self, grown: set[Owner]) -> None:
        over = {owner for owner, at_ms in self._seen_ms.items() if at_ms < self.through_ms - RETIRED_MS} - grown
        for owner in over:
            del self._seen_ms[owner]
            self._kinds.pop(owner, None)
        for owner, state in [key for key in self.amounts if key[0] in over]:
            self.retired.setdefault(owner, {})[state] = self.amounts.pop((owner, state))
        while len(self.retired) > MOST_RETIRED:
            del self.retired[next(iter(self.retired))]

    def _notice_corrections(self, store: Store) -> None:
        """Hours that were built anew: what was counted in one state and turned out to be in another."""
        parts = {part.path: (part.from_ms, part.to_ms) for part in store.parts("ledger_row")}
        for path in set(parts) - self._parts:
            from_ms, to_ms = parts[path]
            window = TimeRange(max(from_ms, self.since_ms), min(to_ms, self.through_ms))
            counted = {hour for hour in self._hours if from_ms <= hour < to_ms}
            now = _by_hour(store, window) if counted and window.from_ms < window.to_ms else {}
            for hour in counted & set(now):
                self.restated += _moved(self._hours[hour], now[hour])
                self._hours[hour] = now[hour]
        self._parts = set(parts)
        self._hours = {hour: states for hour, states in self._hours.items() if hour > self.through_ms - WATCHED_MS}

    def _metrics(self) -> Iterator[Metric]:
        labels = ["state", "team", "experiment", "workload"]
        seconds = CounterMetricFamily("pyrometer_gpu_seconds", "GPU-seconds by state and owner, settled", labels=labels)
        dollars = CounterMetricFamily("pyrometer_cost_usd", "What they cost, in dollars", labels=labels)
        info = GaugeMetricFamily(
            "pyrometer_workload_info", "Workloads that hold GPUs", labels=["team", "experiment", "workload", "kind"]
        )
        for (owner, state), amount in sorted(self.amounts.items()):
            values = [state, owner.team, owner.experiment, owner.workload]
            seconds.add_metric(values, amount.gpu_ms / 1000)
            dollars.add_metric(values, amount.ms_price / _USD)
        for owner in sorted(self._seen_ms):
            if owner in self._kinds:
                info.add_metric([owner.team, owner.experiment, owner.workload, self._kinds[owner]], 1)
        restated = CounterMetricFamily(
            "pyrometer_restated_gpu_seconds",
            "GPU-seconds that later evidence moved to another state",
            labels=["from_state", "to_state"],
        )
        for (before, after), ms in sorted(self.restated.items()):
            restated.add_metric([before, after], ms / 1000)
        found = GaugeMetricFamily(
            "pyrometer_finding_usd",
            "Dollars of what was found in the last twelve hours",
            labels=["cause", "team", "experiment", "workload"],
        )
        for (cause, owner), usd_micro in sorted(self.findings.items()):
            found.add_metric([cause, owner.team, owner.experiment, owner.workload], usd_micro / 1e6)
        through = GaugeMetricFamily(
            "pyrometer_exported_through_timestamp_seconds", "Minutes before it are in the counters"
        )
        through.add_metric([], self.through_ms / 1000)
        left_out = GaugeMetricFamily("pyrometer_workloads_left_out", "Workloads that count as `other` now")
        left_out.add_metric([], self._workloads_left_out)
        not_shown = GaugeMetricFamily("pyrometer_findings_left_out", "Findings beyond those that have series")
        not_shown.add_metric([], self._findings_left_out)
        families = GaugeMetricFamily(
            "pyrometer_state_info",
            "The family of each state: useful, overhead, waste, platform or unknown",
            labels=["state", "family"],
        )
        for one in STATES:
            families.add_metric([one.name, one.family], 1)
        build = GaugeMetricFamily("pyrometer_build_info", "Which Pyrometer this is", labels=["version"])
        build.add_metric([__version__], 1)
        yield from (seconds, dollars, restated, found, info, left_out, not_shown, families, through, build)


def _owner(team: str | None, experiment: str | None, workload: Mapping[str, str] | None) -> Owner:
    named = f"{workload['namespace']}/{workload['name']}" if workload else ""
    return Owner(label(team), label(experiment), label(named))


def _added(one: Amount, other: Amount) -> Amount:
    return Amount(one.gpu_ms + other.gpu_ms, one.ms_price + other.ms_price)


def _by_hour(store: Store, window: TimeRange) -> dict[int, Counter[str]]:
    store.expose(["ledger_row"], *window)
    rows = store.connection.execute(
        f"SELECT minute_ms // {MS_PER_HOUR} * {MS_PER_HOUR}, state, sum(ms) FROM ledger_row "
        "WHERE minute_ms >= ? AND minute_ms < ? GROUP BY ALL",
        list(window),
    ).fetchall()
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for hour, state, ms in rows:
        found[hour][state] = int(ms)
    return dict(found)


def _moved(before: Counter[str], after: Counter[str]) -> Counter[tuple[str, str]]:
    """From which states to which: what some lost is what others gained, the largest first."""
    moved: Counter[tuple[str, str]] = Counter()
    lost, gained = before - after, after - before
    for from_state, ms in lost.most_common():
        for to_state, room in gained.most_common():
            part = min(ms, room)
            if part <= 0:
                break
            moved[from_state, to_state] += part
            gained[to_state] -= part
            ms -= part
    return moved
