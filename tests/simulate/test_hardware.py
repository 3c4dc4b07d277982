"""Signatures of simulated GPUs resemble a recorded H200."""

from __future__ import annotations

import csv
import json
from statistics import median

import pytest

from pyrometer.simulate.hardware import H200, SIGNATURES


@pytest.mark.parametrize(
    ("state", "looks"),
    [("free", "free"), ("train", "train"), ("idle_held", "idle"), ("evaluate", "evaluate"), ("diverged", "nan")],
)
def test_simulated_telemetry_resembles_the_recorded_gpu(h200, state: str, looks: str) -> None:
    """Signatures match an H200 that was recorded in each of these states."""
    intervals = json.loads((h200 / "a-truth.json").read_text())["intervals"]
    spans = [(i["start"] + 4, i["end"] - 1) for i in intervals if i["state"] == state]
    with (h200 / "a-gpu.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if any(a <= float(row["time"]) <= b for a, b in spans)]
    assert len(rows) > 5
    signature = SIGNATURES[looks]
    power_w = H200.idle_w + signature.power / 1000 * (H200.busy_w - H200.idle_w)
    for recorded, simulated, tolerance in (
        (median(float(row["gpu_util"]) for row in rows), signature.util / 10, 6),
        (median(float(row["sm_active"]) for row in rows), signature.sm / 10, 6),
        (median(float(row["tensor_active"]) for row in rows), signature.tensor / 10, 4),
        (median(float(row["dram_active"]) for row in rows), signature.dram / 10, 5),
        (median(float(row["power_w"]) for row in rows), power_w, max(18, 0.08 * power_w)),
    ):
        scaled = recorded * 100 if recorded <= 1 and simulated > 1.5 else recorded
        assert scaled == pytest.approx(simulated, abs=tolerance)
