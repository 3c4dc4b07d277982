"""A server that has nothing but a Prometheus: its past, and what it adds, without Kubernetes."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from prometheus.exposed import Exposed, Line
from prometheus.servers import prometheus
from prometheus.test_history import EVERY_MS, Night, held, night  # noqa: F401 - a fixture
from pyrometer.account.ledger import build
from pyrometer.account.sums import Window
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.model.settings import Settings
from pyrometer.serve.history import Remembering
from pyrometer.store import Store

pytestmark = pytest.mark.heavy


def later(line: Line, by_ms: int) -> Line:
    """The same, at another time; values that are times are as much later."""
    is_time = line.name.endswith(("_created", "_time", "_started"))
    return line._replace(time_ms=line.time_ms + by_ms, value=line.value + by_ms / 1000 if is_time else line.value)


def test_who_had_gpus_is_known_and_looking_twice_changes_nothing(
    night: Night, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    now_ms = time.time_ns() // 1_000_000 // 60_000 * 60_000
    by_ms = now_ms - 60_000 - night.window.to_ms
    with Store(night.folder) as store:
        lines = Exposed(store, *night.window, every_ms=EVERY_MS, honor_labels=True).lines()
        server = prometheus(tmp_path / "prometheus", (later(line, by_ms) for line in lines))

    async def scenario(store: Store) -> None:
        api = Prometheus(server.url)
        remembering = Remembering(store, Settings(prometheus_history_hours=4), asyncio.Lock(), api, every_s=0.01)
        running = asyncio.create_task(remembering.run())
        while remembering.rounds < 3:
            assert not running.done(), running.result()
            assert remembering.shortcomings() == []
            await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await api.close()

    try:
        with Store(tmp_path / "data", create=True) as store:
            asyncio.run(scenario(store))
            window = Window(*(ms + by_ms for ms in night.window))
            build(store, Settings(), now_ms=now_ms)
            pods = held(store, window, "pod")
            store.expose_all(["pod", "slot"])
            counts = store.connection.execute(
                "SELECT max(n) FROM (SELECT count(*) AS n FROM pod GROUP BY pod_uid)"
            ).fetchall()
    finally:
        server.close()
    assert set(pods) == set(night.pods)
    for name, true_ms in night.pods.items():
        assert abs(pods[name] - true_ms) <= 8 * 3 * EVERY_MS, name
    assert counts[0][0] <= 4  # it came, was placed, ended: and is not written down again and again
