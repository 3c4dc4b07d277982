"""What `/readyz` and the metrics report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.disk import UNWRITTEN
from pyrometer.serve.http.health import Health
from pyrometer.serve.main import build_services
from pyrometer.store import Store


@pytest.fixture
def health(tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        services = build_services(Core(store, Settings()), open_to_all=True)
        yield services.health


def test_server_without_sources_is_ready_and_well(health: Health) -> None:
    assert health.waiting_for() == []
    assert health.shortcomings() == []


def test_shortcomings_join_disk_and_lake(health: Health) -> None:
    health._disk.failed(UNWRITTEN, OSError(28, "No space left on device"))
    health._lake_copy.trouble = "The lake s3://x cannot be reached."
    assert health.shortcomings() == [
        f"{UNWRITTEN}: No space left on device.",
        "Nothing is copied into the lake: The lake s3://x cannot be reached.",
    ]
