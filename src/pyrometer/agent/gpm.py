"""Reads the profiling counters of Hopper and later GPUs through NVML's GPM, without DCGM or a lock on profiling.

A value is the average between two samples. Counters that are read less often lose no activity and only report it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pynvml


class _Metric(NamedTuple):
    id: int  # of NVML_GPM_METRIC_*
    name: str
    scale: float


_PERCENT, _MIB_PER_S = 0.01, float(1 << 20)
_METRICS = (
    _Metric(1, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _PERCENT),
    _Metric(2, "DCGM_FI_PROF_SM_ACTIVE", _PERCENT),
    _Metric(3, "DCGM_FI_PROF_SM_OCCUPANCY", _PERCENT),
    _Metric(5, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _PERCENT),
    _Metric(10, "DCGM_FI_PROF_DRAM_ACTIVE", _PERCENT),
    _Metric(20, "DCGM_FI_PROF_PCIE_TX_BYTES", _MIB_PER_S),
    _Metric(21, "DCGM_FI_PROF_PCIE_RX_BYTES", _MIB_PER_S),
    _Metric(61, "DCGM_FI_PROF_NVLINK_TX_BYTES", _MIB_PER_S),
    _Metric(60, "DCGM_FI_PROF_NVLINK_RX_BYTES", _MIB_PER_S),
)


class Profiler:
    """Reads the counters of one GPU or MIG instance. `take` fills a sample with their current values."""

    def __init__(self, take: Callable[[Any], object]) -> None:
        self._take = take
        self._before, self._now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._has_before = False

    def read(self) -> dict[str, float]:
        """The metrics since the previous call; empty in the first call."""
        has_before, self._has_before = self._has_before, False
        self._take(self._now)
        values = _between(self._before, self._now) if has_before else {}
        self._before, self._now, self._has_before = self._now, self._before, True
        return values

    def close(self) -> None:
        """Frees the samples."""
        for sample in (self._before, self._now):
            pynvml.nvmlGpmSampleFree(sample)


def _between(before: Any, now: Any) -> dict[str, float]:
    request = _request()
    request.sample1, request.sample2 = before, now
    pynvml.nvmlGpmMetricsGet(request)
    return {
        metric.name: answer.value * metric.scale
        for metric, answer in zip(_METRICS, request.metrics, strict=False)  # its array has room for all metrics
        # NaN after a context was just created
        if answer.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(answer.value)
    }


@cache
def _request() -> Any:
    """The request struct of 19 kB, which is reused because only one thread reads."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(_METRICS)
    for position, metric in enumerate(_METRICS):
        request.metrics[position].metricId = metric.id
    return request
