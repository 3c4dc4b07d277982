"""The ledger as Prometheus metrics.

Counters add a minute once, after it has settled, and never fall; what is corrected afterwards shows only in
`pyrometer_restated_gpu_seconds_total`. Exact figures come from the API.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from pyrometer import __version__
from pyrometer.account.sums import Window, open_names, sums
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import Store

SETTLED_MS = 10 * MS_PER_MINUTE  # late samples and events are in by then
WATCHED_MS = 48 * MS_PER_HOUR  # how far back corrections are noticed
MOST_SERIES_OF = 1_000  # workloads with series of their own
RETIRED_MS = MS_PER_HOUR  # a workload without GPUs for so long has no series any more
THROUGH = "exported_through_ms"  # in the store: a restart goes on with the next minute
MOST_FINDINGS = 200

_USD = 1e6 * MS_PER_HOUR  # of ms × micro-dollars per hour


class Owner(NamedTuple):
    """Whose time it is, as labels say it."""

    team: str
    experiment: str
    workload: str  # namespace/name


OTHERS = Owner("other", "other", "other")


class Amount(NamedTuple):
    """What a counter has counted."""

    gpu_ms: int = 0
    ms_price: int = 0


class Ledger:
    """What has been counted since this process began."""

    def __init__(self, *, most: int = MOST_SERIES_OF) -> None:
        self.since_ms = self.through_ms = 0  # minutes between them are counted
        self.most = most
        self.amounts: dict[tuple[Owner, str], Amount] = {}
        self.restated: Counter[tuple[str, str]] = Counter()
        self.findings: dict[tuple[str, Owner], int] = {}
        self._seen_ms: dict[Owner, int] = {}  # owners with series of their own: when they last had GPUs
        self._kinds: dict[Owner, str] = {}
        self._announced: dict[tuple[Owner, str], Amount] = {}  # shown as zero first: a first value is no increase
        self._hours: dict[int, Counter[str]] = {}  # what was counted, by hour and state
        self._parts: set[str] = set()

    def count(self, store: Store, end_ms: int) -> None:
        """Counts the minutes that have settled; the ledger is up to date until `end_ms`."""
        settled_ms = (end_ms - SETTLED_MS) // MS_PER_MINUTE * MS_PER_MINUTE
        if not self.through_ms:
            self.since_ms = self.through_ms = min(int(store.meta(THROUGH) or settled_ms), settled_ms)
        self._notice_corrections(store)
        for key, amount in self._announced.items():
            self.amounts[key] = _added(self.amounts[key], amount)
        self._announced = {}
        if settled_ms > self.through_ms:
            window = Window(self.through_ms, settled_ms)
            self._count(store, window)
            for hour, states in _by_hour(store, window).items():
                self._hours.setdefault(hour, Counter()).update(states)
            self.through_ms = settled_ms
        store.set_meta(THROUGH, str(self.through_ms))
        self._retire()

    def found(self, findings: Iterable[Mapping[str, Any]]) -> None:
        """What `why` found: the dollars of each cause and workload, as they are now."""
        totals: Counter[tuple[str, Owner]] = Counter()
        for finding in findings:
            owner = _owner(finding["team"], finding["experiment"], finding["workload"])
            totals[finding["cause"], owner] += finding["usd_micro"] or 0
        self.findings = dict(totals.most_common(MOST_FINDINGS))

    def _count(self, store: Store, window: Window) -> None:
        open_names(store)
        for group in sums(store, window, ("state", "team", "experiment", "workload"), zone=UTC):
            state, team, experiment, workload = group.key
            owner = self._admitted(_owner(team, experiment, workload), window.to_ms)
            if workload:
                self._kinds[owner] = workload["kind"]
            key = (owner, state)
            if key not in self.amounts:
                self.amounts[key] = Amount()
                self._announced[key] = Amount(group.gpu_ms, group.ms_price)
            elif key in self._announced:
                self._announced[key] = _added(self._announced[key], Amount(group.gpu_ms, group.ms_price))
            else:
                self.amounts[key] = _added(self.amounts[key], Amount(group.gpu_ms, group.ms_price))

    def _admitted(self, owner: Owner, at_ms: int) -> Owner:
        """The owner, or `other` when there are too many: whoever has a series keeps it."""
        if owner not in self._seen_ms and len(self._seen_ms) >= self.most:
            return OTHERS
        self._seen_ms[owner] = at_ms
        return owner

    def _retire(self) -> None:
        over = {owner for owner, at_ms in self._seen_ms.items() if at_ms < self.through_ms - RETIRED_MS}
        for owner in over:
            del self._seen_ms[owner]
            self._kinds.pop(owner, None)
        self.amounts = {key: amount for key, amount in self.amounts.items() if key[0] not in over}

    def _notice_corrections(self, store: Store) -> None:
        """Hours that were built anew: what was counted in one state and turned out to be in another."""
        parts = {part.path: (part.from_ms, part.to_ms) for part in store.parts("ledger_row")}
        for path in set(parts) - self._parts:
            from_ms, to_ms = parts[path]
            window = Window(max(from_ms, self.since_ms), min(to_ms, self.through_ms))
            counted = {hour for hour in self._hours if from_ms <= hour < to_ms}
            now = _by_hour(store, window) if counted and window.from_ms < window.to_ms else {}
            for hour in counted & set(now):
                self.restated += _moved(self._hours[hour], now[hour])
                self._hours[hour] = now[hour]
        self._parts = set(parts)
        self._hours = {hour: states for hour, states in self._hours.items() if hour > self.through_ms - WATCHED_MS}

    def collect(self) -> Iterator[Metric]:
        """The metrics, for a registry of `prometheus_client`."""
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
            "pyrometer_restated_gpu_seconds", "GPU-seconds that later evidence moved to another state",
            labels=["from_state", "to_state"],
        )  # fmt: skip
        for (before, after), ms in sorted(self.restated.items()):
            restated.add_metric([before, after], ms / 1000)
        found = GaugeMetricFamily(
            "pyrometer_finding_usd", "Dollars of what was found in the last twelve hours",
            labels=["cause", "team", "experiment", "workload"],
        )  # fmt: skip
        for (cause, owner), usd_micro in sorted(self.findings.items()):
            found.add_metric([cause, owner.team, owner.experiment, owner.workload], usd_micro / 1e6)
        through = GaugeMetricFamily(
            "pyrometer_exported_through_timestamp_seconds", "Minutes before it are in the counters"
        )
        through.add_metric([], self.through_ms / 1000)
        build = GaugeMetricFamily("pyrometer_build_info", "Which Pyrometer this is", labels=["version"])
        build.add_metric([__version__], 1)
        yield from (seconds, dollars, restated, found, info, through, build)


def exposition(collectors: Iterable[Any], accept: str) -> tuple[bytes, str]:
    """The text of what collectors have, in the form that the scraper asks for, and the name of that form."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _owner(team: str | None, experiment: str | None, workload: Mapping[str, str] | None) -> Owner:
    named = f"{workload['namespace']}/{workload['name']}" if workload else ""
    return Owner(team or "", experiment or "", named)


def _added(one: Amount, other: Amount) -> Amount:
    return Amount(one.gpu_ms + other.gpu_ms, one.ms_price + other.ms_price)


def _by_hour(store: Store, window: Window) -> dict[int, Counter[str]]:
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
