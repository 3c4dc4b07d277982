"""The sources that a server follows: a cluster, GPU exporters, a Prometheus, an MLflow server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.scrape import Scrapes, ScrapeTarget, gpu_exporters, node_exporters
from pyrometer.collect.kubernetes.api import Api
from pyrometer.collect.nodes.node_exporter import NodeExporters
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.prometheus.follow import PrometheusPoller
from pyrometer.collect.prometheus.kube_state import GPU_REQUESTS
from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers.mlflow import Mlflow
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.core import Core
from pyrometer.serve.ingest.backfill import Backfill, PrometheusFollower, ReadRanges
from pyrometer.serve.ingest.kubernetes_collector import KubernetesCollector, cluster_name, stored_cluster
from pyrometer.serve.ingest.telemetry_ingest import (
    DeviceHolders,
    HoldersFromKubernetes,
    HoldersFromLabels,
    TelemetryIngest,
)
from pyrometer.serve.ingest.tracker_sync import MlflowFollower
from pyrometer.serve.runtime import RESTART_S, restart_on_error, run_to_end
from pyrometer.store.reader import newest_slots

NODE_EXPORTERS_EVERY_S = 60.0  # one row per minute is stored

SourceReader = TelemetryIngest | PrometheusFollower | MlflowFollower

_log = logging.getLogger("pyrometer")


class Sources:
    """Reads the sources of a server into its store. Without any, it waits for senders."""

    def __init__(
        self,
        core: Core,
        *,
        collector: KubernetesCollector | None = None,
        exporter_urls: Sequence[str] = (),
        prometheus: Prometheus | None = None,
        mlflow: Mlflow | None = None,
    ) -> None:
        self.collector = collector
        self.readers: list[SourceReader] = []  # all but the collector, once the past has been read
        self._core = core
        self._exporter_urls = exporter_urls
        self._prometheus = prometheus
        self._mlflow = mlflow
        self._backfilling: str | None = None  # the past that is being read

    @property
    def stored(self) -> int:
        """How many records of these sources were stored."""
        return (self.collector.stored if self.collector else 0) + sum(one.stored for one in self.readers)

    def waiting_for(self) -> list[str]:
        """What has to be read before the server is ready."""
        if self._backfilling is not None:
            return [self._backfilling]
        return self.collector.waiting_for() if self.collector else []

    def cluster_shortcomings(self) -> list[str]:
        """What cannot be read from the Kubernetes API."""
        source = self.collector.source if self.collector else None
        return source.shortcomings() if source else []

    def reader_shortcomings(self) -> list[str]:
        """What cannot be read from the other sources."""
        return [text for one in self.readers for text in one.source.shortcomings()]

    async def run(self) -> None:
        """First reads the past, if a Prometheus has it and the cluster was not watched. Then follows all
        sources until it is cancelled."""
        api = self.collector.api if self.collector else None
        if self._prometheus is not None and api is not None:
            self._backfilling = f"the past from {self._prometheus.url}"
            try:
                await self._backfill(self._prometheus, api)
            except (SourceError, TimeoutError) as error:
                _log.warning("The past could not be read and is left out: %s", error)
            self._backfilling = None
        has_pods = self._prometheus is not None and api is None and await _has_pods(self._prometheus)
        async with self._core.lock:
            self.readers = await run_to_end(self._telemetry_readers, has_pods)
        core = self._core
        if self._prometheus is not None and has_pods:
            self.readers.append(PrometheusFollower(core.store, core.settings, core.lock, self._prometheus))
        if self._mlflow is not None:
            self.readers.append(MlflowFollower(core.store, core.lock, self._mlflow))
        running = [one.run for one in self.readers]
        if self.collector is not None:
            running.append(self.collector.run)
        await asyncio.gather(*(restart_on_error(run, core.disk) for run in running))

    async def _backfill(self, prometheus: Prometheus, api: Api) -> None:
        """Reads the past once, into a folder that has not watched this cluster: what was watched is more exact."""
        store, settings, lock = self._core.store, self._core.settings, self._core.lock
        done = f"past_read_from {prometheus.url}"
        now_ms = time.time_ns() // 1_000_000 // MS_PER_MINUTE * MS_PER_MINUTE
        name = settings.cluster or await cluster_name(api)
        async with lock:
            before = await run_to_end(stored_cluster, store, name, now_ms)
            begun = bool(ReadRanges(store, prometheus.url).read())
            if store.meta(done) or (before.last_live_ms is not None and not begun):
                return
        from_ms = now_ms - settings.prometheus_history_hours * MS_PER_HOUR
        _log.info("Reading the last %s hours from %s", settings.prometheus_history_hours, prometheus.url)
        backfill = Backfill(store, settings, from_ms, now_ms, lock)
        await backfill.read(prometheus, api, lambda done, total: None)
        async with lock:
            await run_to_end(store.set_meta, done, str(now_ms))

    def _telemetry_readers(self, has_pods: bool) -> list[SourceReader]:
        """Readers of exporters that are named or found, or of a Prometheus that scrapes them. The caller holds the
        lock."""
        core, prometheus = self._core, None if has_pods else self._prometheus
        holders = self._holders(prometheus)
        found: list[SourceReader] = []
        if prometheus is not None:
            ranges = ReadRanges(core.store, prometheus.url)
            since_ms = max((to_ms for _, to_ms in ranges.read()), default=time.time_ns() // 1_000_000)
            following = PrometheusPoller(prometheus, self._dcgm(), since_ms)
            found.append(TelemetryIngest(core.store, core.lock, following, holders, covered=ranges.add, disk=core.disk))
        finds = self.collector is not None and self._prometheus is None and core.settings.find_exporters == "yes"
        if self._exporter_urls or finds:
            scrapes = Scrapes(
                lambda: self._gpu_exporters(find=finds),
                gpu_exporters(self._dcgm()),
                interval_s=core.settings.scrape_interval_s,
            )
            found.append(TelemetryIngest(core.store, core.lock, scrapes, holders, disk=core.disk))
        if finds:
            machines = node_exporters(NodeExporters(core.nodes.uid_of))
            scrapes = Scrapes(self._node_exporters, machines, interval_s=NODE_EXPORTERS_EVERY_S)
            found.append(TelemetryIngest(core.store, core.lock, scrapes, holders, disk=core.disk))
        return found

    def _holders(self, prometheus: Prometheus | None) -> DeviceHolders:
        """Kubernetes if it is followed, otherwise the labels of telemetry."""
        collector = self.collector
        if collector is not None:
            return HoldersFromKubernetes(lambda: collector.cluster)
        store, labels = self._core.store, HoldersFromLabels(self._core.settings)
        if self._exporter_urls or prometheus is not None:
            now_ms = time.time_ns() // 1_000_000
            last_ms = store.newest_ms(["gpu_sample"], now_ms) or now_ms
            store.append(labels.resume(stored_cluster(store, labels.cluster.name, now_ms), last_ms))
        return labels

    def _gpu_exporters(self, *, find: bool) -> list[ScrapeTarget]:
        source = self.collector.source if find and self.collector else None
        return [*map(ScrapeTarget, self._exporter_urls), *(source.exporters.values() if source else ())]

    def _node_exporters(self) -> list[ScrapeTarget]:
        """The node_exporters of nodes that have GPUs."""
        source = self.collector.source if self.collector else None
        found = source.machine_exporters.values() if source else ()
        return [target for target in found if target.node and self._core.nodes.uid_of(target.node)]

    def _dcgm(self) -> Dcgm:
        return Dcgm(self._core.nodes.uid_of, near_idle_power_w, newest_slots(self._core.store))


async def _has_pods(prometheus: Prometheus) -> bool:
    """Whether a Prometheus has kube-state-metrics. Otherwise labels of telemetry name the pods."""
    now_ms = time.time_ns() // 1_000_000
    while True:
        try:
            return bool(await prometheus.labels(GPU_REQUESTS, now_ms - MS_PER_HOUR, now_ms))
        except SourceError as error:
            _log.warning("%s", error)
            await asyncio.sleep(RESTART_S)
