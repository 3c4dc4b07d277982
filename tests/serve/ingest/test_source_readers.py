"""The sources of a server: which readers they get, and what they report."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyrometer.collect.gpu.scrape import ScrapeTarget
from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.ingest.source_readers import Sources
from pyrometer.serve.ingest.telemetry_ingest import HoldersFromLabels, TelemetryIngest
from pyrometer.store import Store

EXPORTERS = ("http://10.0.0.1:9400/metrics", "http://10.0.0.2:9400/metrics")


def test_sources_without_any_are_ready_and_have_no_readers(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        sources = Sources(Core(store, Settings()))
        asyncio.run(sources.run())
        assert sources.readers == []
        assert (sources.stored, sources.waiting_for()) == (0, [])
        assert (sources.cluster_shortcomings(), sources.reader_shortcomings()) == ([], [])


def test_named_exporters_get_one_reader_with_holders_from_labels(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        sources = Sources(Core(store, Settings()), exporter_urls=EXPORTERS)
        (reader,) = sources._telemetry_readers(has_pods=False)
        assert isinstance(reader, TelemetryIngest)
        assert isinstance(reader._holders, HoldersFromLabels)
        assert sources._gpu_exporters(find=True) == [ScrapeTarget(url) for url in EXPORTERS]
        assert sources._node_exporters() == []
