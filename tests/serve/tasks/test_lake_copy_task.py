"""Copies of a server into its lake: sealed parts arrive, and an unreachable lake is logged once."""

from __future__ import annotations

import asyncio
import logging

from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.serve.core import Core
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store
from pyrometer.store.lake import LakeStorage, manifest_of
from tests.support.hand_ledgers import job_records, node_records

START_MS = 1_794_600_000_000 // MS_PER_HOUR * MS_PER_HOUR


def figures(server: Services) -> dict[str, float]:
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for metric in server.collectors[-1].collect()
        for sample in metric.samples
        if "lake" in sample.name
    }


def test_unreachable_lake_is_logged_once_and_catches_up(tmp_path, caplog) -> None:
    lake = tmp_path / "mount" / "lake"
    (tmp_path / "mount").write_text("not there yet")
    with Store(tmp_path / "data", create=True) as store:
        store.append(node_records(START_MS, START_MS + 3 * MS_PER_HOUR))
        store.append(job_records("nlp", "pod-0", START_MS, START_MS + MS_PER_HOUR))
        server = build_services(Core(store, Settings(lake=str(lake))), open_to_all=True)
        with caplog.at_level(logging.INFO, "pyrometer"):
            for _ in range(2):
                asyncio.run(server.lake_copy.copy())
            (message,) = [record.getMessage() for record in caplog.records]
            assert message.startswith(f"The lake {lake} cannot be ")
            assert server.health.shortcomings() == [f"Nothing is copied into the lake: {server.lake_copy.trouble}"]
            assert figures(server)["pyrometer_lake_copies_total failed"] == 2
            (tmp_path / "mount").unlink()
            asyncio.run(server.lake_copy.copy())
            assert caplog.records[-1].getMessage() == f"The lake {lake} works again."
        assert server.health.shortcomings() == []
        values = figures(server)
        assert values["pyrometer_lake_copies_total copied"] == 1
        assert values["pyrometer_lake_copied_bytes_total"] > 0
        assert values["pyrometer_lake_copied_timestamp_seconds"] > 0
        manifest = manifest_of(LakeStorage(str(lake)), "here")
        assert {part.path for part in store.parts()} <= set(manifest.named)
        assert manifest.end_ms == server.accounting.end_ms


def test_no_lake_means_no_copies(tmp_path) -> None:
    with Store(tmp_path / "data", create=True) as store:
        server = build_services(Core(store, Settings()), open_to_all=True)
        assert not server.lake_copy.is_on
        asyncio.run(server.lake_copy.copy())
        assert [path.name for path in (tmp_path / "data").iterdir() if path.name == "lake"] == []
