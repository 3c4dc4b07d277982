"""The profiling counters of Hopper and later, through NVML's GPM: no DCGM, no lock that keeps other profilers out.

A value is an average over the time between two samples. So counters that are read less often lose no activity; they
only tell it later.
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
    """Reads the counters of one GPU or MIG instance; `take` fills a sample with where they stand now."""

    def __init__(self, take: Callable[[Any], object]) -> None:
        self._take = take
        self._before, self._now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._has_before = False

    def read(self) -> dict[str, float]:
        """The metrics since the last time; the first time there is nothing to say yet."""
        has_before, self._has_before = self._has_before, False
        self._take(self._now)
        values = _between(self._before, self._now) if has_before else {}
        self._before, self._now, self._has_before = self._now, self._before, True
        return values

    def close(self) -> None:
        """Gives the samples back."""
        for sample in (self._before, self._now):
            pynvml.nvmlGpmSampleFree(sample)


def _between(before: Any, now: Any) -> dict[str, float]:
    request = _request()
    request.sample1, request.sample2 = before, now
    pynvml.nvmlGpmMetricsGet(request)
    return {
        metric.name: answer.value * metric.scale
        for metric, answer in zip(_METRICS, request.metrics, strict=False)  # it has room for all that there are
        # not a number: a context has just appeared
        if answer.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(answer.value)
    }


@cache
def _request() -> Any:
    """What is asked: 19 kB that need not be made anew for every GPU and second, since one thread reads."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(_METRICS)
    for place, metric in enumerate(_METRICS):
        request.metrics[place].metricId = metric.id
    return request
