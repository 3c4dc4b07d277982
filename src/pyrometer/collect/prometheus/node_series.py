"""node_exporter's metrics of the machines that have GPUs, from a Prometheus: one value a minute is enough."""

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

AT_ONCE = 200  # machines in one question
PIECE_MS = 6 * MS_PER_HOUR
CPU = "node_cpu_seconds_total"
_WHO = "instance, node, kubernetes_node, mode"


async def load(
    api: Prometheus, exporters: NodeExporters, names: Iterable[str], from_ms: int, to_ms: int, interval_ms: int
) -> AsyncIterator[list[NodeSample]]:
    """What the machines of these names and addresses did, by the minute."""
    step_ms = max(MS_PER_MINUTE, interval_ms)
    listed = sorted(set(names))
    for group in (listed[at : at + AT_ONCE] for at in range(0, len(listed), AT_ONCE)):
        for label in ("instance", "node"):  # whichever this Prometheus knows machines by
            found = False
            for start_ms in range(from_ms, to_ms, PIECE_MS):
                end_ms = min(start_ms + PIECE_MS, to_ms) - step_ms  # at the end itself the last value would stand twice
                if end_ms < start_ms:
                    continue
                series = await _asked(api, label, group, start_ms, end_ms, step_ms)
                found = found or bool(series)
                yield exporters.take_series(list(_measured(series)))
            if found:
                break


async def _asked(
    api: Prometheus, label: str, names: Sequence[str], from_ms: int, to_ms: int, step_ms: int
) -> list[Series]:
    """A large machine has hundreds of CPUs: their mean is asked for, which is a counter as each of them is."""
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
        measure, place = measure_of(series.labels.pop("__name__", "")), machine_part_of(series.labels)
        if measure is not None and place is not None:
            yield measure, place, series.times_ms, series.values


def _quoted(name: str) -> str:
    return re.escape(name).replace("\\", "\\\\").replace("\\\\-", "-")
