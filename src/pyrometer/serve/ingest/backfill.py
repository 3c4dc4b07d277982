"""Reads the past into a store: from a Prometheus, from the current state of the cluster, or from both."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyrometer.collect.kubernetes import objects, snapshot
from pyrometer.collect.kubernetes.api import Api
from pyrometer.collect.kubernetes.objects import ObservedObject, ms
from pyrometer.collect.kubernetes.source import KubernetesSource
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.prometheus.follow import BEHIND_MS
from pyrometer.collect.prometheus.source import KnownObjects, PrometheusSource
from pyrometer.collect.source import Delivery, SourceError
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model import events
from pyrometer.model.records import Event
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.ingest.kubernetes_collector import cluster_name, stored_cluster
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import Store

WITHOUT_NAME = "prometheus"  # the cluster, when neither settings nor Kubernetes name it
LIST_S = 120.0  # for the lists of everything that exists now
READ_EVERY_S = 60.0
OVERLAP_MS = 10 * MS_PER_MINUTE

Progress = Callable[[int, int], None]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Backfill:
    """Reads the time from `from_ms` to `to_ms` of one cluster into a store."""

    def __init__(
        self, store: Store, settings: Settings, from_ms: int, to_ms: int, lock: asyncio.Lock | None = None
    ) -> None:
        self.store = store
        self.settings = settings
        self.from_ms, self.to_ms = from_ms, to_ms
        self.lock = lock or asyncio.Lock()  # held while the store is used

    async def read(self, prometheus: Prometheus | None, api: Api | None, progress: Progress) -> None:
        """First reads the past from Prometheus, then the current state from the cluster, which is more exact."""
        if prometheus is None and api is None:
            raise SourceError("Nothing to read: pass --prometheus or --kube.")
        name = self.settings.cluster or (await cluster_name(api) if api else WITHOUT_NAME)
        cluster = Cluster(name, self.settings, since_ms=self.from_ms, settled_ms=self.from_ms)
        nodes = await snapshot.nodes(api) if api else []
        if prometheus is not None:
            await self._past(prometheus, cluster, name, nodes, snapshot.Owners(api) if api else None, progress)
        if api is not None:
            await self._present(api, cluster, name, nodes, blind=prometheus is None)

    async def _write(self, records: Sequence[tuple[Any, ...]]) -> None:
        async with self.lock:
            await run_to_end(self.store.append, records)

    async def _past(
        self,
        prometheus: Prometheus,
        cluster: Cluster,
        name: str,
        nodes: list[objects.NodeObject],
        owners: snapshot.Owners | None,
        progress: Progress,
    ) -> None:
        ranges = ReadRanges(self.store, prometheus.url)

        async def owner_of(kind: str, namespace: str, of_name: str) -> objects.OwnerObject | None:
            return await owners.find(cluster.group_of(kind), kind, namespace, of_name) if owners else None

        source = PrometheusSource(
            prometheus,
            cluster,
            cluster=name,
            from_ms=self.from_ms,
            to_ms=self.to_ms,
            near_idle_power_w=near_idle_power_w,
            read=ranges.read(),
            known=KnownObjects(nodes, owner_of),
        )
        async for delivery in source.deliveries():
            await self._write(delivery.records)
            if delivery.covers is not None:  # the next run continues here
                async with self.lock:
                    await run_to_end(ranges.add, delivery.covers)
            progress(round(1000 * delivery.progress), 1000)

    async def _present(
        self, api: Api, cluster: Cluster, name: str, nodes: list[objects.NodeObject], *, blind: bool
    ) -> None:
        records: list[tuple[Any, ...]] = []
        if blind:  # pods that are gone are unknown, so no slot is known to be free; nodes existed before
            records.append(Event(self.from_ms, events.WATCH_GAP, self.to_ms - self.from_ms, name))
            for node in nodes:
                records += cluster.take(
                    ObservedObject(node, max(self.from_ms, ms(node.metadata.creation_timestamp) or 0))
                )
        await self._write(records)
        source = KubernetesSource(
            api,
            cluster,
            cluster=name,
            always=cluster.followed_kinds(),
            last_live_ms=self.to_ms,
            known=cluster.known(),
            heartbeat_s=1.0,
        )
        async with asyncio.timeout(LIST_S):
            async for delivery in source.deliveries():
                await self._write([record for record in delivery.records if not _is_gap(record)])
                if source.ready.is_set():
                    break


def _is_gap(record: tuple[Any, ...]) -> bool:
    """Whether a record is the gap between the last scrape and the first list, in which nothing was missed."""
    return isinstance(record, Event) and record.kind == events.WATCH_GAP


class PrometheusFollower:
    """Reads a cluster that only a Prometheus observes, again and again."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        lock: asyncio.Lock,
        prometheus: Prometheus,
        *,
        every_s: float = READ_EVERY_S,
        clock: Callable[[], int] = _now_ms,
    ) -> None:
        self.store = store
        self.settings = settings
        self.lock = lock
        self.prometheus = prometheus
        self.every_s = every_s
        self._clock = clock  # milliseconds
        self.rounds = 0
        self.stored = 0
        self.trouble: str | None = None

    @property
    def source(self) -> PrometheusFollower:
        """Reports shortcomings, like the source of other readers."""
        return self

    def shortcomings(self) -> list[str]:
        """Why nothing is read, if so."""
        return [self.trouble] if self.trouble else []

    async def run(self) -> None:
        """Stores what was scraped until it is cancelled. A Prometheus that does not answer is tried again."""
        name = self.settings.cluster or WITHOUT_NAME
        ranges = ReadRanges(self.store, self.prometheus.url)
        now_ms = self._clock()
        async with self.lock:
            before = await run_to_end(stored_cluster, self.store, name, now_ms)
            first_ms = min((span[0] for span in ranges.read()), default=now_ms - self._history_ms())
        cluster = Cluster(name, self.settings, since_ms=first_ms, settled_ms=first_ms)
        cluster.resume(before.nodes, before.pods, before.holds, before.workloads, before.owners)
        source = PrometheusSource(
            self.prometheus,
            cluster,
            cluster=name,
            from_ms=first_ms,
            to_ms=now_ms,
            near_idle_power_w=near_idle_power_w,
            by_labels=False,
        )
        while True:
            read = ranges.read()
            to_ms = self._clock() - BEHIND_MS
            # the last samples may be followed by the end of their series, so the end is read twice
            source.go_on(read[-1][1] - OVERLAP_MS if read else first_ms, to_ms, read)
            try:
                async for delivery in source.deliveries():
                    async with self.lock:
                        await run_to_end(self._store, delivery, ranges)
                cluster.tick(to_ms)
                self.rounds += 1
                self.trouble = None
            except SourceError as error:
                self.trouble = str(error)
            await asyncio.sleep(self.every_s)

    def _history_ms(self) -> int:
        return self.settings.prometheus_history_hours * MS_PER_HOUR

    def _store(self, delivery: Delivery, ranges: ReadRanges) -> None:
        self.store.append(delivery.records)
        self.stored += len(delivery.records)
        if delivery.covers is not None:
            ranges.add(delivery.covers)


class ReadRanges:
    """The time ranges that were read from a Prometheus, kept in the store, so that they are not read again."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._name = f"read_from {url}"

    def read(self) -> list[tuple[int, int]]:
        """Start and end of each range, the earliest first."""
        return [(from_ms, to_ms) for from_ms, to_ms in json.loads(self._store.meta(self._name) or "[]")]

    def add(self, span: tuple[int, int]) -> None:
        """Adds a range that was read."""
        joined: list[tuple[int, int]] = []
        for from_ms, to_ms in sorted([*self.read(), span]):
            if joined and from_ms <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], to_ms))
            else:
                joined.append((from_ms, to_ms))
        self._store.set_meta(self._name, json.dumps(joined))
