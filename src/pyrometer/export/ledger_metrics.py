"""The ledger as Prometheus metrics.

Counters add each minute once, after it has settled, and never fall. Later corrections show only in
`pyrometer_restated_gpu_seconds_total`. The API returns exact values.

A workload keeps its series while it holds GPUs, and for one hour after that. If it returns, its counters continue where
they were. Prometheus treats a missing series as stale, so `sum(increase(…))` stays correct.
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
from pyrometer.export.metrics_text import PreparedCollector, label_value
from pyrometer.model.states import STATES
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import Store

SETTLED_MS = 10 * MS_PER_MINUTE  # late samples and events have arrived by then
CORRECTIONS_MS = 48 * MS_PER_HOUR  # how far back corrections are detected
MAX_WORKLOADS = 1_000  # with their own series
MAX_TEAMS = 100  # with a series `other` for the workloads beyond the limit
MAX_RETIRED = 10_000  # workloads whose counters are remembered
RETIRED_MS = MS_PER_HOUR  # a workload without GPUs loses its series after this time
EXPORTED_THROUGH_KEY = "exported_through_ms"  # in the store: a restart continues with the next minute
ANNOUNCED_KEY = "exported_announced"  # in the store: values that wait for the second scrape
MAX_FINDINGS = 200

_MS_PRICE_PER_USD = 1e6 * MS_PER_HOUR


class SeriesOwner(NamedTuple):
    """The labels of a series that name the owner of GPU time."""

    team: str
    experiment: str
    workload: str  # namespace/name


OTHER = "other"
OTHER_TEAMS = SeriesOwner(OTHER, OTHER, OTHER)


class CounterValue(NamedTuple):
    """The value of a counter for one owner and state."""

    gpu_ms: int = 0
    ms_price: int = 0  # milliseconds × micro-dollars per hour


class LedgerCollector(PreparedCollector):
    """Collects the metrics of the ledger since the start of this process."""

    def __init__(self, *, max_workloads: int = MAX_WORKLOADS, max_teams: int = MAX_TEAMS) -> None:
        super().__init__()
        self.since_ms = self.through_ms = 0  # minutes between them are counted
        self.max_workloads, self.max_teams = max_workloads, max_teams
        self.amounts: dict[tuple[SeriesOwner, str], CounterValue] = {}
        self.announced: dict[
            tuple[SeriesOwner, str], CounterValue
        ] = {}  # added after the series was scraped once at zero
        self.retired: dict[SeriesOwner, dict[str, CounterValue]] = {}  # owners without series now, oldest first
        self.restated: Counter[tuple[str, str]] = Counter()
        self.findings: dict[tuple[str, SeriesOwner], int] = {}
        self._held_ms: dict[SeriesOwner, int] = {}  # when each owner with its own series last held GPUs
        self._other_teams: set[str] = set()  # teams with their own `other`
        self._kinds: dict[SeriesOwner, str] = {}
        self._workloads_left_out = self._findings_left_out = 0
        self._counted: dict[int, Counter[str]] = {}  # counted milliseconds by hour and state
        self._parts: set[str] = set()
        self.prepare(self._metrics())

    def count(self, store: Store, end_ms: int) -> None:
        """Counts the settled minutes of a ledger that is complete up to `end_ms`."""
        settled_ms = (end_ms - SETTLED_MS) // MS_PER_MINUTE * MS_PER_MINUTE
        if not self.through_ms:
            self.since_ms = self.through_ms = min(int(store.meta(EXPORTED_THROUGH_KEY) or settled_ms), settled_ms)
            if self.resume(store.meta(ANNOUNCED_KEY) or "[0, []]"):
                return  # these series must be scraped once before they grow; the rest follows a minute later
        self._count_corrections(store)
        groups: list[Sum] = []
        if settled_ms > self.through_ms:
            window = TimeRange(self.through_ms, settled_ms)
            open_names(store)
            groups = sums(store, window, ("state", "team", "experiment", "workload"), zone=UTC)
            for hour, states in _by_hour(store, window).items():
                self._counted.setdefault(hour, Counter()).update(states)
        self.advance(groups, max(settled_ms, self.through_ms))
        store.set_meta(ANNOUNCED_KEY, self.pending())  # first, because it is used only together with the other key
        store.set_meta(EXPORTED_THROUGH_KEY, str(self.through_ms))

    def pending(self) -> str:
        """The values that wait for the second scrape, for the next process."""
        return json.dumps(
            [self.through_ms, [[*owner, state, *rest] for (owner, state), rest in self.announced.items()]]
        )

    def resume(self, pending: str) -> bool:
        """Announces pending values of the previous process if it ended at this minute. Returns whether any exist."""
        through_ms, rows = json.loads(pending)
        for *names, state, gpu_ms, ms_price in rows if through_ms == self.through_ms else ():
            owner = SeriesOwner(*names)
            if owner.workload != OTHER:
                self._held_ms[owner] = through_ms
            elif owner != OTHER_TEAMS:
                self._other_teams.add(owner.team)
            self.amounts[owner, state] = CounterValue()
            self.announced[owner, state] = CounterValue(gpu_ms, ms_price)
        self.prepare(self._metrics())
        return bool(self.announced)

    def advance(self, groups: Iterable[Sum], through_ms: int) -> None:
        """Adds the minutes up to a time and updates the metrics."""
        grown = {owner for owner, _ in self.announced}  # they must be scraped once with these values
        for key, amount in self.announced.items():
            self.amounts[key] = _add(self.amounts[key], amount)
        self.announced = {}
        if through_ms > self.through_ms:
            self._add(groups, through_ms)
            self.through_ms = through_ms
        self._retire(grown)
        self.prepare(self._metrics())

    def set_findings(self, findings: Iterable[Mapping[str, Any]]) -> None:
        """Replaces the findings: the current dollars of each cause and workload."""
        totals: Counter[tuple[str, SeriesOwner]] = Counter()
        for finding in findings:
            owner = _owner(finding["team"], finding["experiment"], finding["workload"])
            totals[finding["cause"], owner] += finding["usd_micro"] or 0
        self.findings = dict(totals.most_common(MAX_FINDINGS))
        self._findings_left_out = max(0, len(totals) - MAX_FINDINGS)
        self.prepare(self._metrics())

    def _add(self, groups: Iterable[Sum], at_ms: int) -> None:
        """Adds minutes. A new series starts at zero and gets its first minutes with the next update.

        The reason is that Prometheus does not count a first value as an increase.
        """
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
            self.amounts.setdefault(key, CounterValue())
            into = self.amounts if key in shown else self.announced
            into[key] = _add(into.get(key, CounterValue()), CounterValue(group.gpu_ms, group.ms_price))
        self._workloads_left_out = len(left_out)

    def _admitted(self, owner: SeriesOwner, at_ms: int) -> SeriesOwner:
        """The owner, or its team's `other` if the limit is reached. An owner with a series keeps it."""
        if owner not in self._held_ms and len(self._held_ms) >= self.max_workloads:
            if owner.team not in self._other_teams and len(self._other_teams) >= self.max_teams:
                return OTHER_TEAMS
            self._other_teams.add(owner.team)
            return SeriesOwner(owner.team, OTHER, OTHER)
        self._held_ms[owner] = at_ms
        for state, amount in self.retired.pop(owner, {}).items():
            self.amounts[owner, state] = amount
        return owner

    def _retire(self, grown: set[SeriesOwner]) -> None:
        expired = {owner for owner, at_ms in self._held_ms.items() if at_ms < self.through_ms - RETIRED_MS} - grown
        for owner in expired:
            del self._held_ms[owner]
            self._kinds.pop(owner, None)
        for owner, state in [key for key in self.amounts if key[0] in expired]:
            self.retired.setdefault(owner, {})[state] = self.amounts.pop((owner, state))
        while len(self.retired) > MAX_RETIRED:
            del self.retired[next(iter(self.retired))]

    def _count_corrections(self, store: Store) -> None:
        """Counts the time that moved to another state in hours whose ledger was rebuilt."""
        parts = {part.path: (part.from_ms, part.to_ms) for part in store.parts("ledger_row")}
        for path in set(parts) - self._parts:
            from_ms, to_ms = parts[path]
            window = TimeRange(max(from_ms, self.since_ms), min(to_ms, self.through_ms))
            counted = {hour for hour in self._counted if from_ms <= hour < to_ms}
            now = _by_hour(store, window) if counted and window.from_ms < window.to_ms else {}
            for hour in counted & set(now):
                self.restated += _restated(self._counted[hour], now[hour])
                self._counted[hour] = now[hour]
        self._parts = set(parts)
        self._counted = {
            hour: states for hour, states in self._counted.items() if hour > self.through_ms - CORRECTIONS_MS
        }

    def _metrics(self) -> Iterator[Metric]:
        labels = ["state", "team", "experiment", "workload"]
        seconds = CounterMetricFamily("pyrometer_gpu_seconds", "Settled GPU-seconds by state and owner", labels=labels)
        dollars = CounterMetricFamily("pyrometer_cost_usd", "Cost of the settled GPU-seconds in dollars", labels=labels)
        info = GaugeMetricFamily(
            "pyrometer_workload_info", "Workloads that hold GPUs", labels=["team", "experiment", "workload", "kind"]
        )
        for (owner, state), amount in sorted(self.amounts.items()):
            values = [state, owner.team, owner.experiment, owner.workload]
            seconds.add_metric(values, amount.gpu_ms / 1000)
            dollars.add_metric(values, amount.ms_price / _MS_PRICE_PER_USD)
        for owner in sorted(self._held_ms):
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
            "Cost of the findings of the last twelve hours in dollars",
            labels=["cause", "team", "experiment", "workload"],
        )
        for (cause, owner), usd_micro in sorted(self.findings.items()):
            found.add_metric([cause, owner.team, owner.experiment, owner.workload], usd_micro / 1e6)
        through = GaugeMetricFamily(
            "pyrometer_exported_through_timestamp_seconds", "End of the last minute that the counters include"
        )
        through.add_metric([], self.through_ms / 1000)
        left_out = GaugeMetricFamily("pyrometer_workloads_left_out", "Workloads that are currently counted as `other`")
        left_out.add_metric([], self._workloads_left_out)
        not_shown = GaugeMetricFamily("pyrometer_findings_left_out", "Findings without series, because of the limit")
        not_shown.add_metric([], self._findings_left_out)
        families = GaugeMetricFamily(
            "pyrometer_state_info",
            "The family of each state: useful, overhead, waste, platform or unknown",
            labels=["state", "family"],
        )
        for one in STATES:
            families.add_metric([one.name, one.family], 1)
        build = GaugeMetricFamily("pyrometer_build_info", "The version of Pyrometer", labels=["version"])
        build.add_metric([__version__], 1)
        yield from (seconds, dollars, restated, found, info, left_out, not_shown, families, through, build)


def _owner(team: str | None, experiment: str | None, workload: Mapping[str, str] | None) -> SeriesOwner:
    name = f"{workload['namespace']}/{workload['name']}" if workload else ""
    return SeriesOwner(label_value(team), label_value(experiment), label_value(name))


def _add(one: CounterValue, other: CounterValue) -> CounterValue:
    return CounterValue(one.gpu_ms + other.gpu_ms, one.ms_price + other.ms_price)


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


def _restated(before: Counter[str], after: Counter[str]) -> Counter[tuple[str, str]]:
    """The time that moved between states. The largest losses are matched with the largest gains first."""
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
