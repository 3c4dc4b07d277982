"""A server and its lake: what it seals is there, one that is away is said once and harms nobody."""

from __future__ import annotations

import asyncio
import logging

from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.serve.core import Core
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store
from pyrometer.store.lake import LakeStorage, manifest_of
from tests.support.hand_ledgers import held, machine

START_MS = 1_794_600_000_000 // MS_PER_HOUR * MS_PER_HOUR


def figures(server: Services) -> dict[str, float]:
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for metric in server.collectors[-1].collect()
        for sample in metric.samples
        if "lake" in sample.name
    }


def test_a_lake_that_is_away_is_said_once_and_later_has_everything(tmp_path, caplog) -> None:
    lake = tmp_path / "mount" / "lake"
    (tmp_path / "mount").write_text("not there yet")
    with Store(tmp_path / "data", create=True) as store:
        store.append(machine(START_MS, START_MS + 3 * MS_PER_HOUR))
        store.append(held("nlp", "pod-0", START_MS, START_MS + MS_PER_HOUR))
        server = build_services(Core(store, Settings(lake=str(lake))), open_to_all=True)
        with caplog.at_level(logging.INFO, "pyrometer"):
            for _ in range(2):
                asyncio.run(server.lake_copy.copy())
            (said,) = [record.getMessage() for record in caplog.records]
            assert said.startswith(f"The lake {lake} cannot be ")
            assert server.health.shortcomings() == [f"Nothing is copied into the lake: {server.lake_copy.trouble}"]
            assert figures(server)["pyrometer_lake_copies_total failed"] == 2
            (tmp_path / "mount").unlink()
            asyncio.run(server.lake_copy.copy())
            assert caplog.records[-1].getMessage() == f"The lake {lake} works again."
        assert server.health.shortcomings() == []
        told = figures(server)
        assert told["pyrometer_lake_copies_total copied"] == 1
        assert told["pyrometer_lake_copied_bytes_total"] > 0
        assert told["pyrometer_lake_copied_timestamp_seconds"] > 0
        manifest = manifest_of(LakeStorage(str(lake)), "here")
        assert {part.path for part in store.parts()} <= set(manifest.named)
        assert manifest.end_ms == server.accounting.end_ms


def test_without_a_lake_nothing_is_copied(tmp_path) -> None:
    with Store(tmp_path / "data", create=True) as store:
        server = build_services(Core(store, Settings()), open_to_all=True)
        assert not server.lake_copy.is_on
        asyncio.run(server.lake_copy.copy())
        assert [path.name for path in (tmp_path / "data").iterdir() if path.name == "lake"] == []
