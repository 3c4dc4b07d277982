"""Finding damaged parts of a store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.tasks import scrub
from pyrometer.serve.tasks.scrub import Scrub
from pyrometer.store import Store
from tests.support import clusters


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scrub, "REST_FACTOR", 0)
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
        store.seal()
        yield store


def test_undamaged_store_has_no_shortcomings(store: Store) -> None:
    task = Scrub(Core(store, Settings()))
    asyncio.run(task.look())
    assert store.parts()
    assert task.shortcomings() == []


def test_damaged_part_is_reported_and_logged_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    part = store.parts()[0]
    path = store.folder / part.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    task = Scrub(Core(store, Settings()))
    for _ in range(2):
        asyncio.run(task.look())
    (sentence,) = task.shortcomings()
    assert sentence.startswith(f"{part.path} is damaged")
    assert "pyrometer check DIR --repair" in sentence
    assert caplog.text.count(part.path) == 1


def test_missing_part_cannot_be_read(store: Store) -> None:
    part = store.parts()[0]
    (store.folder / part.path).unlink()
    task = Scrub(Core(store, Settings()))
    asyncio.run(task.look())
    assert task.shortcomings()[0].startswith(f"{part.path} cannot be read: No such file")
