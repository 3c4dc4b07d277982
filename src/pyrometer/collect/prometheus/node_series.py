"""Loads node_exporter metrics of GPU machines from Prometheus, one value per minute."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from pyrometer.collect.nodes.node_exporter import (
    MATCHERS,
    MachinePart,
    Measure,
    NodeExporters,
    machine_part_of,
    measure_of,
)
from pyrometer.collect.prometheus.api import Prometheus, Series
from pyrometer.model.records import NodeSample
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE

MACHINES_PER_QUERY = 200
PIECE_MS = 6 * MS_PER_HOUR
CPU = "node_cpu_seconds_total"
_WHO = "instance, node, kubernetes_node, mode"


async def load(
    api: Prometheus, exporters: NodeExporters, names: Iterable[str], from_ms: int, to_ms: int, interval_ms: int
) -> AsyncIterator[list[NodeSample]]:
    """Yields rows of the machines with these names or addresses."""
    step_ms = max(MS_PER_MINUTE, interval_ms)
    listed = sorted(set(names))
    for group in (listed[at : at + MACHINES_PER_QUERY] for at in range(0, len(listed), MACHINES_PER_QUERY)):
        for label in ("instance", "node"):  # by which Prometheus may know machines
            found = False
            for start_ms in range(from_ms, to_ms, PIECE_MS):
                end_ms = min(start_ms + PIECE_MS, to_ms) - step_ms  # the value at the end is in the next query, too
                if end_ms < start_ms:
                    continue
                series = await _query(api, label, group, start_ms, end_ms, step_ms)
                found = found or bool(series)
                yield exporters.take_series(list(_measured(series)))
            if found:
                break


async def _query(
    api: Prometheus, label: str, names: Sequence[str], from_ms: int, to_ms: int, step_ms: int
) -> list[Series]:
    """Queries the metrics. Of hundreds of CPUs of a machine only the mean is queried, which is a counter, too."""
    who = f'{label}=~"({"|".join(_quoted(name) for name in names)})(:[0-9]+)?"'
    name, mode, device = MATCHERS
    others = f'{{{name},__name__!="{CPU}",{device},{who}}}'
    cpus = f"avg by ({_WHO}) ({CPU}{{{mode},{who}}})"
    found = await api.at_steps(others, from_ms, to_ms, step_ms)
    for series in await api.at_steps(cpus, from_ms, to_ms, step_ms):
        series.labels.update({"__name__": CPU, "cpu": "all"})
        found.append(series)
    return found


def _measured(found: list[Series]) -> Iterator[tuple[Measure, MachinePart, Any, Any]]:
    for series in found:
        measure, part = measure_of(series.labels.pop("__name__", "")), machine_part_of(series.labels)
        if measure is not None and part is not None:
            yield measure, part, series.times_ms, series.values


def _quoted(name: str) -> str:
    return re.escape(name).replace("\\", "\\\\").replace("\\\\-", "-")
