"""Metrics as text: labels, formats and rendering ahead of requests."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily

from pyrometer.account.query.sums import Sum
from pyrometer.export.ledger_metrics import LedgerCollector
from pyrometer.export.metrics_text import (
    MAX_CACHED_FORMATS,
    MAX_LABEL_CHARS,
    PreparedCollector,
    label_value,
    render_metrics,
)
from tests.support.clusters import MINUTE, at


def test_long_names_are_cut_and_stay_distinct() -> None:
    ledger = LedgerCollector()
    workload = {"kind": "Job", "namespace": "ml", "name": "x" * 5_000}
    ledger.advance([Sum(("train", "t" * 2_000 + end, None, workload), MINUTE, 0, 0) for end in "ab"], at(1))
    owners = {owner for owner, _ in ledger.amounts}
    assert len(owners) == 2
    assert max(len(value) for owner in owners for value in owner) == MAX_LABEL_CHARS


class Plain:
    """A collector that is not prepared."""

    def collect(self):
        yield GaugeMetricFamily("plain", "A gauge", value=2)


def prepared(value: float) -> PreparedCollector:
    collector = PreparedCollector()
    collector.prepare([GaugeMetricFamily("ready", "A gauge", value=value)])
    return collector


def test_render_metrics_joins_collectors():
    body, content_type = render_metrics([prepared(1), Plain()], "")
    assert content_type.startswith("text/plain")
    assert b"ready 1.0\n" in body
    assert b"plain 2.0\n" in body


def test_render_metrics_in_openmetrics_ends_once():
    body, content_type = render_metrics([prepared(1), Plain()], "application/openmetrics-text; version=1.0.0")
    assert "openmetrics" in content_type
    assert body.count(b"# EOF\n") == 1
    assert body.endswith(b"# EOF\n")


def test_prepared_collector_renders_known_formats_when_its_metrics_change():
    collector, calls = prepared(1), []

    def encode(registry) -> bytes:
        calls.append(registry)
        return str([family.samples[0].value for family in registry.collect()]).encode()

    assert collector.text("test", encode) == collector.text("test", encode) == b"[1]"
    assert len(calls) == 1
    collector.prepare([GaugeMetricFamily("ready", "A gauge", value=3)])
    assert len(calls) == 2
    assert collector.text("test", encode) == b"[3]"
    assert len(calls) == 2


def test_prepared_collector_keeps_a_limited_number_of_formats():
    collector, calls = prepared(1), []

    def encode(_) -> bytes:
        calls.append(1)
        return b""

    for number in range(MAX_CACHED_FORMATS + 2):
        collector.text(str(number), encode)
    calls.clear()
    collector.prepare([])
    assert len(calls) == MAX_CACHED_FORMATS


def test_label_value_keeps_short_text():
    assert label_value(None) == ""
    assert label_value("x" * MAX_LABEL_CHARS) == "x" * MAX_LABEL_CHARS
    assert len(label_value("x" * (MAX_LABEL_CHARS + 1))) == MAX_LABEL_CHARS
