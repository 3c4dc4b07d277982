"""How the server itself is doing, as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from pyrometer.serve.app import Server


class Vitals:
    """What a server knows of itself, as a collector."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """The metrics, for a registry of `prometheus_client`."""
        server = self._server
        ready = GaugeMetricFamily("pyrometer_ready", "Everything that was there at the start has been seen")
        ready.add_metric([], float(not server.not_ready()))
        yield ready
        end = GaugeMetricFamily("pyrometer_ledger_end_timestamp_seconds", "The newest accounted minute")
        end.add_metric([], server.end_ms / 1000)
        yield end
        accounted = GaugeMetricFamily(
            "pyrometer_accounted_timestamp_seconds", "When the ledger was last brought up to date"
        )
        accounted.add_metric([], server.accounted_at_s)
        yield accounted
        took = GaugeMetricFamily(
            "pyrometer_accounting_seconds", "How long the ledger took to bring up to date, last time"
        )
        took.add_metric([], server.accounting_s)
        yield took
        short = GaugeMetricFamily("pyrometer_shortcomings", "Sources that cannot be read; /readyz names them")
        short.add_metric([], len(server.shortcomings()))
        yield short
        failed = CounterMetricFamily(
            "pyrometer_disk_failures", "How often the disk did not take something; /readyz says what"
        )
        failed.add_metric([], server.disk.failures)
        yield failed
        collector = server.collector
        stored = CounterMetricFamily("pyrometer_records_stored", "Records that were stored")
        telemetry = sum(one.stored for one in server.telemetry)
        stored.add_metric([], (collector.stored if collector else 0) + telemetry + server.otlp.stored)
        yield stored
        synced = GaugeMetricFamily("pyrometer_watch_synced", "Kinds of objects that are followed", labels=["resource"])
        for watch in list(collector.source.watches.values()) if collector and collector.source else ():
            synced.add_metric([watch.resource.name], float(watch.synced.is_set() and not watch.denied))
        yield synced
        written = CounterMetricFamily(
            "pyrometer_remote_write_samples", "Samples that were sent, by what became of them", labels=["outcome"]
        )
        for outcome, count in sorted(server.remote_write.counts.items()):
            written.add_metric([outcome], count)
        yield written
        sent = CounterMetricFamily(
            "pyrometer_otlp_records",
            "Records that were sent over OTLP, by what became of them",
            labels=["signal", "outcome"],
        )
        for (signal, outcome), count in sorted(server.otlp.counts.items()):
            sent.add_metric([signal, outcome], count)
        yield sent
        pushed = CounterMetricFamily(
            "pyrometer_otlp_pushes",
            "Bodies that were pushed over OTLP, by what became of them",
            labels=["signal", "outcome"],
        )
        for (signal, outcome), count in sorted(server.pushing.counts.items()):
            pushed.add_metric([signal, outcome], count)
        yield pushed
        told = CounterMetricFamily(
            "pyrometer_messages", "What was told of findings, by receiver and what became of it",
            labels=["receiver", "outcome"],
        )  # fmt: skip
        for (receiver, outcome), count in sorted(server.notifier.counts.items()):
            told.add_metric([receiver, outcome], count)
        yield told
        stamped = CounterMetricFamily(
            "pyrometer_tracker_stamps", "Runs of trackers that were told what they cost, by what became of it",
            labels=["tracker", "outcome"],
        )  # fmt: skip
        for writer in server.summary_writers:
            for outcome, count in sorted(writer.counts.items()):
                stamped.add_metric([writer.tracker, outcome], count)
        yield stamped
        yield from self._lake()
        yield from ProcessCollector(registry=None).collect()  # memory, CPU, files

    def _lake(self) -> Iterator[Metric]:
        copying = self._server.copying
        copies = CounterMetricFamily(
            "pyrometer_lake_copies", "Copies into the lake, by what became of them", labels=["outcome"]
        )
        for outcome, count in sorted(copying.counts.items()):
            copies.add_metric([outcome], count)
        yield copies
        yield CounterMetricFamily("pyrometer_lake_copied_bytes", "Bytes that were copied into the lake", copying.bytes)
        copied = GaugeMetricFamily(
            "pyrometer_lake_copied_timestamp_seconds", "When the lake was last brought up to date"
        )
        if copying.copied_at_s:
            copied.add_metric([], copying.copied_at_s)
        yield copied
