"""One-time reads of a cluster."""

from __future__ import annotations

import asyncio

from pyrometer.collect.kubernetes import snapshot
from tests.support.recorded_api import RecordedApi, pod

EXPORTER = pod("exporter", labels={"app": "dcgm-exporter"}) | {"status": {"phase": "Running", "podIP": "10.0.0.1"}}


def test_nodes_returns_all_nodes():
    api = RecordedApi({"/api/v1/nodes": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]})
    assert [node.metadata.name for node in asyncio.run(snapshot.nodes(api))] == ["a", "b"]


def test_pods_skips_undecodable_pods():
    async def names():
        api = RecordedApi({"/api/v1/pods": [pod("a"), {"metadata": 1}, pod("b")]})
        return [one.metadata.name async for page in snapshot.pods(api) for one in page]

    assert asyncio.run(names()) == ["a", "b"]


def test_exporters_counts_each_running_exporter_once():
    assert asyncio.run(snapshot.exporters(RecordedApi({"/api/v1/pods": [EXPORTER, pod("other")]}))) == 1


def test_owners_find_of_missing_kind_is_none():
    assert asyncio.run(snapshot.Owners(RecordedApi({})).find("example.com", "Unicorn", "ml", "x")) is None
