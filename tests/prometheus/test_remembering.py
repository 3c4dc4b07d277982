"""A server with only a Prometheus, without Kubernetes: its history and its new samples."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.model.settings import Settings
from pyrometer.serve.ingest.backfill import PrometheusFollower
from pyrometer.store import Store
from tests.prometheus.test_history import EVERY_MS, Night, held, night  # noqa: F401 - a fixture
from tests.support.exposed_night import Line, NightScrapes
from tests.support.prometheus_servers import prometheus

pytestmark = pytest.mark.heavy


def later(line: Line, by_ms: int) -> Line:
    """The same line at another time. Values that are times are shifted as well."""
    is_time = line.name.endswith(("_created", "_time", "_started"))
    return line._replace(time_ms=line.time_ms + by_ms, value=line.value + by_ms / 1000 if is_time else line.value)


def test_past_allocations_are_read_and_reading_again_changes_nothing(night: Night, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    now_ms = time.time_ns() // 1_000_000 // 60_000 * 60_000
    by_ms = now_ms - 60_000 - night.window.to_ms
    with Store(night.folder) as store:
        lines = NightScrapes(store, *night.window, every_ms=EVERY_MS, honor_labels=True).lines()
        server = prometheus(tmp_path / "prometheus", (later(line, by_ms) for line in lines))

    async def scenario(store: Store) -> None:
        api = Prometheus(server.url)
        remembering = PrometheusFollower(store, Settings(prometheus_history_hours=4), asyncio.Lock(), api, every_s=0.01)
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
            window = TimeRange(*(ms + by_ms for ms in night.window))
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


def test_prometheus_outage_is_reported_and_loses_nothing(night: Night, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    with Store(night.folder) as store:
        past = NightScrapes(store, *night.window, every_ms=EVERY_MS, honor_labels=True).lines()
        server = prometheus(tmp_path / "prometheus", past)
    hour_ms, end_ms = 3_600_000, night.window.to_ms + 60_000
    clock_ms = [0]

    async def until(condition: Callable[[], bool], running: asyncio.Task[None]) -> None:
        while not condition():
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)

    async def watched(store: Store, times_ms: list[int], *, gone: bool) -> list[str]:
        """Reads at each of these times. Between the first and the last, Prometheus can be down."""

        def has_gone_on(before: int) -> bool:  # the round after this one, which may have begun before
            return remembering.rounds > before + 1

        api, problems = Prometheus(server.url), []
        clock_ms[0] = times_ms[0]
        settings = Settings(prometheus_history_hours=4)
        remembering = PrometheusFollower(store, settings, asyncio.Lock(), api, every_s=0.01, clock=lambda: clock_ms[0])
        running = asyncio.create_task(remembering.run())
        await until(lambda: remembering.rounds > 0, running)
        if gone:
            server.process.kill()
            server.process.wait()
        for time_ms in times_ms[1:-1]:
            clock_ms[0] = time_ms
            goes_on = partial(has_gone_on, remembering.rounds)
            await until((lambda: remembering.trouble is not None) if gone else goes_on, running)
            problems += remembering.shortcomings()
        if gone:
            server.start()
        clock_ms[0] = times_ms[-1]
        await until(partial(has_gone_on, remembering.rounds), running)
        assert remembering.shortcomings() == []
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await api.close()
        return problems

    def ledger(folder: Path, *, gone: bool) -> tuple[list[str], list[tuple[Any, ...]]]:
        times_ms = [end_ms - hour_ms - 600_000 + minutes * 60_000 for minutes in (0, 10, 25, 40, 55, 70)]
        with Store(folder, create=True) as store:
            problems = asyncio.run(watched(store, times_ms, gone=gone))
            build(store, Settings(), now_ms=end_ms)
            store.expose_all(["ledger_row"])
            return problems, store.connection.execute("FROM ledger_row ORDER BY ALL").fetchall()

    try:
        nothing, undisturbed = ledger(tmp_path / "twin", gone=False)
        problems, found = ledger(tmp_path / "data", gone=True)
    finally:
        server.close()
    assert nothing == []
    assert len(problems) == 4
    assert all(one.startswith(f"{server.url} does not answer") for one in problems)
    assert len(found) > 1_000
    assert found == undisturbed
