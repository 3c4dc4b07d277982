"""Following a Prometheus."""

from __future__ import annotations

import numpy as np

from pyrometer.collect.prometheus import follow
from pyrometer.collect.prometheus.api import Series
from pyrometer.collect.prometheus.follow import SlotAddresses


def series(name, **labels):
    return Series({"__name__": name, **labels}, np.array([1]), np.array([2.0]))


def test_slot_addresses_yield_gpu_series_only():
    gpu = {"Hostname": "a", "gpu": "0"}
    found = list(SlotAddresses().measured([series("DCGM_FI_DEV_GPU_TEMP", **gpu), series("up", **gpu)]))
    assert [(address.hosts, address.slot_index) for _, address, _, _ in found] == [(("a",), 0)]


def test_slot_addresses_are_shared_by_metrics_of_a_device():
    gpu = {"Hostname": "a", "gpu": "0"}
    both = [series("DCGM_FI_DEV_GPU_TEMP", **gpu), series("DCGM_FI_DEV_POWER_USAGE", **gpu)]
    (_, first, _, _), (_, second, _, _) = SlotAddresses().measured(both)
    assert first is second


def test_slot_addresses_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(follow, "MAX_LABEL_SETS", 2)
    addresses = SlotAddresses()
    for number in range(10):
        list(addresses.measured([series("DCGM_FI_DEV_GPU_TEMP", Hostname="a", gpu=str(number))]))
    assert len(addresses._known) <= 3
