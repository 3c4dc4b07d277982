"""The metrics of a server about itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pyrometer.act.notifier import Notifier
from pyrometer.act.summary_writers import SummaryWriter
from pyrometer.serve.disk import Disk
from pyrometer.serve.http.health import Health
from pyrometer.serve.ingest.otlp_receiver import OtlpReceiver
from pyrometer.serve.ingest.remote_write_receiver import RemoteWriteReceiver
from pyrometer.serve.ingest.source_readers import Sources
from pyrometer.serve.tasks.accounting import Accounting
from pyrometer.serve.tasks.lake_copy_task import LakeCopyTask
from pyrometer.serve.tasks.otlp_push_task import OtlpPushTask

Counts = Mapping[tuple[str], int] | Mapping[tuple[str, str], int]  # by the values of the labels


class MeasuredParts(NamedTuple):
    """The parts of a server that have metrics."""

    accounting: Accounting
    health: Health
    disk: Disk
    sources: Sources
    remote_write: RemoteWriteReceiver
    otlp: OtlpReceiver
    push: OtlpPushTask
    lake_copy: LakeCopyTask
    notifier: Notifier
    summary_writers: Sequence[SummaryWriter]


class Vitals:
    """A collector for a registry of `prometheus_client`."""

    def __init__(self, parts: MeasuredParts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """The metrics as of now."""
        yield from self._ledger()
        yield from self._intake()
        yield from self._outgoing()
        yield from ProcessCollector(registry=None).collect()  # memory, CPU, files

    def _ledger(self) -> Iterator[Metric]:
        accounting, health = self._parts.accounting, self._parts.health
        yield _gauge(
            "pyrometer_ready", "Everything that existed at the start has been read", float(not health.waiting_for())
        )
        yield _gauge("pyrometer_ledger_end_timestamp_seconds", "The newest accounted minute", accounting.end_ms / 1000)
        yield _gauge(
            "pyrometer_accounted_timestamp_seconds",
            "When the ledger was last brought up to date",
            accounting.accounted_at_s,
        )
        yield _gauge(
            "pyrometer_accounting_seconds",
            "How long it took to bring the ledger up to date, last time",
            accounting.accounting_s,
        )
        yield _gauge(
            "pyrometer_shortcomings", "Sources that cannot be read; /readyz names them", len(health.shortcomings())
        )

    def _intake(self) -> Iterator[Metric]:
        parts = self._parts
        yield _counter(
            "pyrometer_disk_failures", "Failures to read or write the disk; /readyz names them", parts.disk.failures
        )
        yield _counter("pyrometer_records_stored", "Records that were stored", parts.sources.stored + parts.otlp.stored)
        synced = GaugeMetricFamily("pyrometer_watch_synced", "Kinds of objects that are followed", labels=["resource"])
        collector = parts.sources.collector
        for watch in list(collector.source.watches.values()) if collector and collector.source else ():
            synced.add_metric([watch.resource.name], float(watch.synced.is_set() and not watch.denied))
        yield synced
        yield _counters(
            "pyrometer_remote_write_samples",
            "Samples received by remote write, by outcome",
            ["outcome"],
            _by_outcome(parts.remote_write.counts),
        )
        yield _counters(
            "pyrometer_otlp_records", "Records received over OTLP, by outcome", ["signal", "outcome"], parts.otlp.counts
        )

    def _outgoing(self) -> Iterator[Metric]:
        parts = self._parts
        yield _counters(
            "pyrometer_otlp_pushes", "Bodies pushed over OTLP, by outcome", ["signal", "outcome"], parts.push.counts
        )
        yield _counters(
            "pyrometer_messages",
            "Notifications of findings, by receiver and outcome",
            ["receiver", "outcome"],
            parts.notifier.counts,
        )
        stamps = {
            (writer.tracker, outcome): count
            for writer in parts.summary_writers
            for outcome, count in writer.counts.items()
        }
        yield _counters(
            "pyrometer_tracker_stamps",
            "Costs written into runs of trackers, by outcome",
            ["tracker", "outcome"],
            stamps,
        )
        lake = parts.lake_copy
        yield _counters(
            "pyrometer_lake_copies", "Copies into the lake, by outcome", ["outcome"], _by_outcome(lake.counts)
        )
        yield _counter("pyrometer_lake_copied_bytes", "Bytes copied into the lake", lake.bytes)
        yield _gauge(
            "pyrometer_lake_copied_timestamp_seconds",
            "When the lake was last brought up to date",
            lake.copied_at_s or None,
        )


def _gauge(name: str, help_text: str, value: float | None) -> Metric:
    gauge = GaugeMetricFamily(name, help_text)
    if value is not None:
        gauge.add_metric([], value)
    return gauge


def _counter(name: str, help_text: str, value: float) -> Metric:
    counter = CounterMetricFamily(name, help_text)
    counter.add_metric([], value)
    return counter


def _counters(name: str, help_text: str, labels: Sequence[str], counts: Counts) -> Metric:
    counter = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in sorted(counts.items()):
        counter.add_metric(values, count)
    return counter


def _by_outcome(counts: Mapping[str, int]) -> dict[tuple[str], int]:
    return {(outcome,): count for outcome, count in counts.items()}
