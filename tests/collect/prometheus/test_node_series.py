"""node_exporter series in Prometheus."""

from __future__ import annotations

import asyncio

from pyrometer.collect.nodes.node_exporter import NodeExporters
from pyrometer.collect.prometheus.node_series import _quoted, load
from pyrometer.model.units import MS_PER_MINUTE


class EmptyPrometheus:
    def __init__(self):
        self.queries = []

    async def at_steps(self, query, from_ms, to_ms, step_ms):
        self.queries.append((query, from_ms, to_ms))
        return []


def test_load_queries_by_instance_and_node():
    async def run(api):
        exporters = NodeExporters(lambda host: None)
        return [rows async for rows in load(api, exporters, ["a", "a"], 0, 10 * MS_PER_MINUTE, MS_PER_MINUTE)]

    api = EmptyPrometheus()
    assert asyncio.run(run(api)) == [[], []]
    assert ['instance=~"(a)' in query for query, _, _ in api.queries] == [True, True, False, False]
    assert {(begin, end) for _, begin, end in api.queries} == {(0, 9 * MS_PER_MINUTE)}


def test_quoted_escapes_for_promql():
    assert _quoted("node-a.example") == r"node-a\\.example"
