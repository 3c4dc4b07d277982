"""Storing batches: bad records do not lose good ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrometer.model.records import Metric
from pyrometer.serve.ingest.spooled_bodies import append_what_fits
from pyrometer.store import Store
from pyrometer.store.store import MAX_PARTITIONS_PER_BATCH

NOW_MS = 1_794_700_000_000
HOUR_MS = 3_600_000


def metric(number: int, name: Any = "loss", time_ms: int = NOW_MS) -> Metric:
    return Metric(time_ms, f"run-{number}", 1, 0, name, 0.5)


@pytest.mark.parametrize("bad", [metric(0, "\ud800"), metric(0, 7), metric(2**70, time_ms=2**70)])
def test_bad_record_does_not_lose_other_records(tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: Any):
    good = [metric(number) for number in range(1, 101)]
    with Store(tmp_path / "data", create=True) as store:
        append_what_fits(store, [*good[:40], bad, *good[40:], bad])
        assert _stored(store) == 100
    assert caplog.text.count("2 of 102 records are left out") == 1


def _stored(store: Store) -> int:
    store.expose_all(["metric"])
    found = store.connection.execute("SELECT count(*) FROM metric").fetchone()
    assert found is not None
    return int(found[0])


def test_jumping_clock_does_not_lose_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert MAX_PARTITIONS_PER_BATCH > 100
    monkeypatch.setattr("pyrometer.store.store.MAX_PARTITIONS_PER_BATCH", 100)
    with Store(tmp_path / "data", create=True) as store:
        append_what_fits(store, [metric(n, time_ms=NOW_MS - n * HOUR_MS) for n in range(250)])
        assert _stored(store) == 250
