"""Readers of OTLP metrics."""

from __future__ import annotations

from pyrometer.collect.otlp.metric_readers import _hardware


def test_hardware_attributes_become_exporter_labels():
    assert _hardware({"hw.id": "GPU-9", "hw.name": "NVIDIA GPU 3", "hw.model": "H100"}) == {
        "UUID": "GPU-9",
        "gpu": "3",
        "modelName": "H100",
    }
    assert _hardware({"hw.id": "5"}) == {"gpu": "5"}
    assert _hardware({"hw.id": 5, "hw.name": None}) == {}
