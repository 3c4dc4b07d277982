"""Discovery of kinds through the API."""

from __future__ import annotations

import asyncio

from pyrometer.collect.kubernetes.discovery import ApiResource, Discovery
from tests.support.recorded_api import RecordedApi


def test_discovery_finds_kind_in_core_and_group():
    discovery = Discovery(RecordedApi({}))
    assert asyncio.run(discovery.find("", "Pod")) == ApiResource("v1", "pods")
    assert asyncio.run(discovery.find("argoproj.io", "Workflow")) == ApiResource("v1alpha1", "workflows")


def test_discovery_of_missing_kind_or_group_is_none():
    discovery = Discovery(RecordedApi({}))
    assert asyncio.run(discovery.find("", "Unicorn")) is None
    assert asyncio.run(discovery.find("example.com", "Unicorn")) is None


def test_discovery_requests_a_group_once():
    api = RecordedApi({})
    discovery = Discovery(api)
    for _ in range(3):
        asyncio.run(discovery.find("", "Pod"))
        asyncio.run(discovery.find("", "Unicorn"))
    assert [path for path, _, _ in api.requests] == ["/api/v1"]
