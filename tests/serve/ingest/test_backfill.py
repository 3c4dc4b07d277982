"""The time ranges that were read from a Prometheus, and what a follower reports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyrometer.collect.source import SourceError
from pyrometer.model.settings import Settings
from pyrometer.serve.ingest.backfill import Backfill, ReadRanges
from pyrometer.store import Store

URL = "http://prometheus:9090"


@pytest.mark.parametrize(
    ("spans", "joined"),
    [
        ([], []),
        ([(10, 20)], [(10, 20)]),
        ([(10, 20), (20, 30)], [(10, 30)]),
        ([(10, 20), (30, 40)], [(10, 20), (30, 40)]),
        ([(30, 40), (10, 20), (15, 35)], [(10, 40)]),
        ([(10, 40), (20, 30)], [(10, 40)]),
        ([(10, 20), (10, 20)], [(10, 20)]),
    ],
)
def test_read_ranges_join_when_they_touch(
    tmp_path: Path, spans: list[tuple[int, int]], joined: list[tuple[int, int]]
) -> None:
    with Store(tmp_path, create=True) as store:
        for span in spans:
            ReadRanges(store, URL).add(span)
        assert ReadRanges(store, URL).read() == joined


def test_read_ranges_are_kept_per_prometheus_and_after_a_restart(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        ReadRanges(store, URL).add((10, 20))
    with Store(tmp_path) as store:
        assert ReadRanges(store, URL).read() == [(10, 20)]
        assert ReadRanges(store, "http://other:9090").read() == []


def test_backfill_needs_a_prometheus_or_a_cluster(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store, pytest.raises(SourceError, match="pass --prometheus or --kube"):
        asyncio.run(Backfill(store, Settings(), 0, 1).read(None, None, lambda done, total: None))
