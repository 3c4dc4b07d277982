"""KubernetesSource while the store is busy: the watch continues up to a limit, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import pytest

from pyrometer.collect.kubernetes import source as module
from pyrometer.collect.kubernetes.source import KubernetesSource
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import Pod
from pyrometer.model.settings import Settings
from tests.support.recorded_api import RecordedApi, pod


class Busy(RecordedApi):
    """An API server whose pods come one at a time, after the lists."""

    def __init__(self, count: int) -> None:
        super().__init__({}, groups={})
        self.count, self.read = count, 0
        self.begin, self.moved = asyncio.Event(), asyncio.Condition()

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str, silent_s: float
    ) -> AsyncIterator[list[bytes]]:
        await self.begin.wait()
        while path == "/api/v1/pods" and self.read < self.count:
            one = pod(f"pod-{self.read}")
            one["metadata"]["resourceVersion"] = str(self.read + 8)
            self.read += 1
            yield [json.dumps({"type": "ADDED", "object": one}).encode()]
            async with self.moved:
                self.moved.notify_all()
            await asyncio.sleep(0)
        await asyncio.Event().wait()
        yield []

    async def until_read(self, count: int) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: self.read >= count)


async def names_of(api: Busy, meanwhile: int) -> tuple[set[str], int]:
    """The delivered pods if deliveries are taken only after `meanwhile` pods were read, and how many waited then."""
    delivered: set[str] = set()
    source = KubernetesSource(api, Cluster("recorded", Settings()), cluster="recorded", heartbeat_s=0.05)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        deliveries = source.deliveries()
        await anext(deliveries)
        api.begin.set()
        await api.until_read(meanwhile)
        for _ in range(50):  # let it read as far as it can
            await asyncio.sleep(0)
        waited = api.read
        async for delivery in deliveries:
            delivered |= {record.name for record in delivery.records if isinstance(record, Pod)}
            if len(delivered) == api.count:
                break
    return delivered, waited


def test_source_keeps_watching_while_store_is_busy() -> None:
    delivered, waited = asyncio.run(names_of(Busy(1_000), meanwhile=1_000))
    assert (len(delivered), waited) == (1_000, 1_000)


def test_source_limits_waiting_changes_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 20)
    delivered, waited = asyncio.run(names_of(Busy(200), meanwhile=20))
    assert len(delivered) == 200
    assert 20 <= waited <= 21  # and one that was read and finds no room
