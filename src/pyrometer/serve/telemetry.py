"""GPU telemetry into a server's store, and what its labels say about who has which device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pyrometer.collect import labelled
from pyrometer.collect.dcgm import DeviceUse
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import Meta
from pyrometer.collect.kubernetes.seen import Seen
from pyrometer.collect.source import Source
from pyrometer.identify.cluster import Cluster
from pyrometer.model.records import GpuSample, NodeSample, Slot
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.serve.collector import Remembered
from pyrometer.serve.disk import OF_DUCKDB, UNSTORED, Disk
from pyrometer.serve.threads import to_its_end
from pyrometer.store import Store, StoreError

LEARN_EVERY_S = 15.0
MOST_UNSTORED = 200_000  # records that wait for a disk: 100 MB; then samples give way
LINGER_MS = 5 * MS_PER_MINUTE  # a label may come and go for a scrape or two
WITHOUT_NAME = "scraped"  # the cluster, where no Kubernetes says what it is called

Records = list[tuple[Any, ...]]


class Telling(Source, Protocol):
    """A source of samples that also knows who uses which device."""

    def uses(self) -> set[DeviceUse]:
        """By the newest labels."""
        ...

    def shortcomings(self) -> list[str]:
        """What does not answer, and why."""
        ...


class Telemetry:
    """One source of samples into one store. The lock is held while the store is used."""

    def __init__(
        self, store: Store, lock: asyncio.Lock, source: Telling, people: People, *,
        covered: Callable[[tuple[int, int]], None] = lambda span: None, disk: Disk | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.lock = lock
        self.source = source
        self.stored = 0
        self._people = people
        self._covered = covered
        self._learn_due_s = 0.0
        self._disk = disk or Disk()
        self._unstored: Records = []  # what the disk did not take
        self._uncovered: list[tuple[int, int]] = []

    async def run(self) -> None:
        """Stores what comes, until it is cancelled."""
        async for delivery in self.source.deliveries():
            records: Records = [*delivery.records, *self._people.machines(delivery.records)]
            if time.monotonic() >= self._learn_due_s:
                self._learn_due_s = time.monotonic() + LEARN_EVERY_S
                records += self._people.learn(self.source.uses(), time.time_ns() // 1_000_000)
            async with self.lock:
                await to_its_end(self._store, records, delivery.covers)

    def _store(self, records: Records, covers: tuple[int, int] | None) -> None:
        """Stores what came, with what could not be stored before: what is said of a machine is said once."""
        self._unstored += records
        self._uncovered += [covers] if covers is not None else []
        try:
            self.store.append(self._unstored)
        except OF_DUCKDB as error:
            self._disk.failed(UNSTORED, error)
            if len(self._unstored) > MOST_UNSTORED:
                self._unstored = [row for row in self._unstored if not isinstance(row, GpuSample | NodeSample)]
                self._uncovered = []
            return
        except StoreError:  # it would be refused for ever
            self._unstored, self._uncovered = [], []
            raise
        self._disk.worked(UNSTORED)
        self.stored += len(self._unstored)
        for span in self._uncovered:
            self._covered(span)
        self._unstored, self._uncovered = [], []


class People(Protocol):
    """Who has devices: what telemetry says about it, beside what others know."""

    def machines(self, records: Iterable[tuple[Any, ...]]) -> Records:
        """Machines that nobody else describes."""
        ...

    def learn(self, uses: set[DeviceUse], now_ms: int) -> Records:
        """What the labels of now say."""
        ...


class OfKubernetes:
    """Kubernetes says who is there, and from when to when; labels say on which device."""

    def __init__(self, cluster: Callable[[], Cluster | None]) -> None:
        self._cluster = cluster

    def machines(self, records: Iterable[tuple[Any, ...]]) -> Records:
        """None: Kubernetes knows them."""
        return []

    def learn(self, uses: set[DeviceUse], now_ms: int) -> Records:
        """Devices of pods that were only counted."""
        cluster = self._cluster()
        return cluster.learn(uses, now_ms) if cluster else []


class OfLabels:
    """Nobody but telemetry says who is there."""

    def __init__(self, settings: Settings) -> None:
        self.cluster = Cluster(settings.cluster or WITHOUT_NAME, settings)
        self._gpus: dict[str, tuple[int, str | None]] = {}  # of each machine: how many, and which
        self._uses: dict[DeviceUse, tuple[int, int]] = {}

    def resume(self, before: Remembered, last_ms: int) -> Records:
        """What was known before this process began: its pods are over, as far as anybody knows since their last sample;
        those that still are come again."""
        self.cluster.resume(before.nodes, before.pods, before.holds, before.workloads, before.owners)
        self._gpus = {node.node_uid: (node.gpu_count, node.gpu_model) for node in before.nodes}
        ended: Records = []
        for pod in before.pods:
            if pod.ended_ms is None:
                meta = Meta(name=pod.name, uid=pod.pod_uid, namespace=pod.namespace)
                ended += self.cluster.take(Seen(objects.Pod(meta), max(last_ms, pod.time_ms + 1), gone=True))
        return ended

    def machines(self, records: Iterable[tuple[Any, ...]]) -> Records:
        """A machine has as many GPUs as the highest index that was seen of it."""
        written: Records = []
        for slot in records:
            if isinstance(slot, Slot):
                gpus, model = self._gpus.get(slot.node_uid, (0, None))
                now = max(gpus, slot.slot_index + 1), slot.gpu_model or model
                if now != (gpus, model):
                    self._gpus[slot.node_uid] = now
                    node = labelled.machine(slot.node_uid.removeprefix("host/"), slot.node_uid, *now)
                    written += self.cluster.take(Seen(node, slot.time_ms))
        return written

    def learn(self, uses: set[DeviceUse], now_ms: int) -> Records:
        """Pods, from when their labels came until those went."""
        for use in uses:
            first_ms, _ = self._uses.get(use, (now_ms, now_ms))
            self._uses[use] = first_ms, now_ms
        still_ms = now_ms - LINGER_MS
        written = self.cluster.learn(self._uses, now_ms)
        for seen in sorted(labelled.pods(self.cluster.name, self._uses, {}, still_ms), key=lambda s: s.seen_ms):
            written += self.cluster.take(seen)
        self._uses = {use: span for use, span in self._uses.items() if span[1] >= still_ms}
        self.cluster.tick(now_ms)
        return written
