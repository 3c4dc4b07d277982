"""Stores GPU telemetry, and the holders of devices that its labels name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pyrometer.collect.gpu import labeled_objects
from pyrometer.collect.gpu.device import DeviceUse
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import Meta, ObservedObject
from pyrometer.collect.source import Source
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import GpuSample, NodeSample, Slot
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.serve.disk import DUCKDB_ERRORS, UNSTORED, Disk
from pyrometer.serve.ingest.kubernetes_collector import StoredCluster
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import Store, StoreError

LEARN_EVERY_S = 15.0
MAX_UNSTORED = 200_000  # records that wait for the disk, 100 MB; beyond that, samples are dropped
LINGER_MS = 5 * MS_PER_MINUTE  # a label may be missing for a scrape or two
WITHOUT_NAME = "scraped"  # the cluster, when Kubernetes does not name it

Records = list[tuple[Any, ...]]


class TelemetrySource(Source, Protocol):
    """A source of samples whose labels name the users of devices."""

    def uses(self) -> set[DeviceUse]:
        """The users of devices, by the newest labels."""
        ...

    def shortcomings(self) -> list[str]:
        """The exporters that do not answer, and why."""
        ...


class TelemetryIngest:
    """Reads one source of samples into one store. The lock is held while the store is used."""

    def __init__(
        self,
        store: Store,
        lock: asyncio.Lock,
        source: TelemetrySource,
        holders: DeviceHolders,
        *,
        covered: Callable[[tuple[int, int]], None] = lambda span: None,
        disk: Disk | None = None,
    ) -> None:
        self.store = store
        self.lock = lock
        self.source = source
        self.stored = 0
        self._holders = holders
        self._covered = covered
        self._learn_due_s = 0.0
        self._disk = disk or Disk()
        self._unstored: Records = []  # what could not be stored
        self._uncovered: list[tuple[int, int]] = []

    async def run(self) -> None:
        """Stores samples until it is cancelled."""
        async for delivery in self.source.deliveries():
            records: Records = [*delivery.records, *self._holders.machines(delivery.records)]
            if time.monotonic() >= self._learn_due_s:
                self._learn_due_s = time.monotonic() + LEARN_EVERY_S
                records += self._holders.learn(self.source.uses(), time.time_ns() // 1_000_000)
            async with self.lock:
                await run_to_end(self._store, records, delivery.covers)

    def _store(self, records: Records, covers: tuple[int, int] | None) -> None:
        """Stores records together with those that could not be stored before: a machine is described only once."""
        self._unstored += records
        self._uncovered += [covers] if covers is not None else []
        try:
            self.store.append(self._unstored)
        except DUCKDB_ERRORS as error:
            self._disk.failed(UNSTORED, error)
            if len(self._unstored) > MAX_UNSTORED:
                self._unstored = [row for row in self._unstored if not isinstance(row, GpuSample | NodeSample)]
                self._uncovered = []
            return
        except StoreError:  # it would be refused again
            self._unstored, self._uncovered = [], []
            raise
        self._disk.worked(UNSTORED)
        self.stored += len(self._unstored)
        for span in self._uncovered:
            self._covered(span)
        self._unstored, self._uncovered = [], []


class DeviceHolders(Protocol):
    """Finds the holders of devices."""

    def machines(self, records: Iterable[tuple[Any, ...]]) -> Records:
        """Records of machines that no other source describes."""
        ...

    def learn(self, uses: set[DeviceUse], now_ms: int) -> Records:
        """Records from the current labels."""
        ...


class HoldersFromKubernetes:
    """Kubernetes reports pods and their times. Labels name their devices."""

    def __init__(self, cluster: Callable[[], Cluster | None]) -> None:
        self._cluster = cluster

    def machines(self, records: Iterable[tuple[Any, ...]]) -> Records:
        """No records: Kubernetes reports machines."""
        return []

    def learn(self, uses: set[DeviceUse], now_ms: int) -> Records:
        """Devices of pods of which Kubernetes reports only the number."""
        cluster = self._cluster()
        return cluster.learn(uses, now_ms) if cluster else []


class HoldersFromLabels:
    """Only labels of telemetry name machines and pods."""

    def __init__(self, settings: Settings) -> None:
        self.cluster = Cluster(settings.cluster or WITHOUT_NAME, settings)
        self._gpus: dict[str, tuple[int, str | None]] = {}  # the number and model of GPUs, by machine
        self._uses: dict[DeviceUse, tuple[int, int]] = {}

    def resume(self, before: StoredCluster, last_ms: int) -> Records:
        """Takes up the state before this process started. Its pods end at the last sample; those that still run appear
        again."""
        self.cluster.resume(before.nodes, before.pods, before.holds, before.workloads, before.owners)
        self._gpus = {node.node_uid: (node.gpu_count, node.gpu_model) for node in before.nodes}
        ended: Records = []
        for pod in before.pods:
            if pod.ended_ms is None:
                meta = Meta(name=pod.name, uid=pod.pod_uid, namespace=pod.namespace)
                ended += self.cluster.take(
                    ObservedObject(objects.PodObject(meta), max(last_ms, pod.time_ms + 1), gone=True)
                )
        return ended

    def machines(self, records: Iterable[tuple[Any, ...]]) -> Records:
        """A machine has as many GPUs as its highest index says."""
        written: Records = []
        for slot in records:
            if isinstance(slot, Slot):
                gpus, model = self._gpus.get(slot.node_uid, (0, None))
                now = max(gpus, slot.slot_index + 1), slot.gpu_model or model
                if now != (gpus, model):
                    self._gpus[slot.node_uid] = now
                    node = labeled_objects.machine(slot.node_uid.removeprefix("host/"), slot.node_uid, *now)
                    written += self.cluster.take(ObservedObject(node, slot.time_ms))
        return written

    def learn(self, uses: set[DeviceUse], now_ms: int) -> Records:
        """Pods, from the first to the last sample with their labels."""
        for use in uses:
            first_ms, _ = self._uses.get(use, (now_ms, now_ms))
            self._uses[use] = first_ms, now_ms
        still_ms = now_ms - LINGER_MS
        written = self.cluster.learn(self._uses, now_ms)
        for seen in sorted(labeled_objects.pods(self.cluster.name, self._uses, {}, still_ms), key=lambda s: s.seen_ms):
            written += self.cluster.take(seen)
        self._uses = {use: span for use, span in self._uses.items() if span[1] >= still_ms}
        self.cluster.tick(now_ms)
        return written
