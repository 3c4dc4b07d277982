"""What a Prometheus has of what Pyrometer reads, and what is not known without the rest."""

from __future__ import annotations

import time
from typing import NamedTuple

from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.prometheus.kube_state import GPU_CAPACITY, GPU_REQUESTS
from pyrometer.model.units import MS_PER_HOUR

# What is looked for, in which words, and what is not known without it.
NEEDS = (
    (
        "GPUs (dcgm-exporter)",
        'count({__name__=~"DCGM_FI_DEV_(GPU_TEMP|GPU_TEMP_CELSIUS)"})',
        "what GPUs do: only that they are held is known",
    ),
    (
        "profiling counters",
        'count({__name__=~"DCGM_FI_PROF_(GR_ENGINE_ACTIVE|GR_ENGINE_UTIL_RATIO|SM_ACTIVE)"})',
        "a hang that spins looks busy: utilisation is all there is",
    ),
    (
        "GPU pods (kube-state-metrics)",
        f"count({GPU_REQUESTS})",
        "who held GPUs, of pods that are gone; labels of telemetry stand in, late by minutes",
    ),
    (
        "GPU nodes (kube-state-metrics)",
        f"count({GPU_CAPACITY})",
        "which GPUs were free: only those that telemetry shows are known",
    ),
    (
        "labels of pods",
        "count(kube_pod_labels)",
        "teams and experiments that labels name: start kube-state-metrics with --metric-labels-allowlist=pods=[*]",
    ),
    ("machines (node_exporter)", "count(node_uname_info)", "whether a disk, the CPU or the network held a job up"),
)


class SeriesCount(NamedTuple):
    """One thing that is read, and how much of it there is."""

    what: str
    series: int
    costs: str


async def examine(api: Prometheus) -> list[SeriesCount]:
    """Each of the needs, now."""
    now_ms = time.time_ns() // 1_000_000
    found = []
    for what, query, costs in NEEDS:
        series = await api.at_steps(f"max_over_time(({query})[1h:5m])", now_ms - 1_000, now_ms, MS_PER_HOUR)
        count = max((int(one.values.max()) for one in series if len(one.values)), default=0)
        found.append(SeriesCount(what, count, costs))
    return found
