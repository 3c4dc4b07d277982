"""Checks which of the metrics that Pyrometer reads a Prometheus has, and reports the effect of missing ones."""

from __future__ import annotations

import time
from typing import NamedTuple

from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.prometheus.kube_state import GPU_CAPACITY, GPU_REQUESTS
from pyrometer.model.units import MS_PER_HOUR

# Metrics, the query that counts them, and the effect if they are missing.
NEEDS = (
    (
        "GPUs (dcgm-exporter)",
        'count({__name__=~"DCGM_FI_DEV_(GPU_TEMP|GPU_TEMP_CELSIUS)"})',
        "GPU activity: only allocations are known",
    ),
    (
        "profiling counters",
        'count({__name__=~"DCGM_FI_PROF_(GR_ENGINE_ACTIVE|GR_ENGINE_UTIL_RATIO|SM_ACTIVE)"})',
        "a spinning hang looks busy: only utilization is known",
    ),
    (
        "GPU pods (kube-state-metrics)",
        f"count({GPU_REQUESTS})",
        "allocations of past pods: labels of telemetry replace them, late by minutes",
    ),
    ("GPU nodes (kube-state-metrics)", f"count({GPU_CAPACITY})", "free GPUs: only those in telemetry are known"),
    (
        "labels of pods",
        "count(kube_pod_labels)",
        "teams and experiments in labels: start kube-state-metrics with --metric-labels-allowlist=pods=[*]",
    ),
    ("machines (node_exporter)", "count(node_uname_info)", "whether a disk, the CPU or the network held a job up"),
)


class SeriesCount(NamedTuple):
    """The number of series of one need."""

    what: str
    series: int
    costs: str


async def examine(api: Prometheus) -> list[SeriesCount]:
    """Counts the series of each need."""
    now_ms = time.time_ns() // 1_000_000
    found = []
    for what, query, costs in NEEDS:
        series = await api.at_steps(f"max_over_time(({query})[1h:5m])", now_ms - 1_000, now_ms, MS_PER_HOUR)
        count = max((int(one.values.max()) for one in series if len(one.values)), default=0)
        found.append(SeriesCount(what, count, costs))
    return found
