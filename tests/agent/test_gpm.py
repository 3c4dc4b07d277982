"""Profiling counters from the NVML replacement library."""

from __future__ import annotations

from contextlib import closing

import pytest

from pyrometer.agent.nvml import Nvml
from tests.support.nvml_library import Answers


def test_profiler_averages_since_previous_reading(answers: Answers) -> None:
    with closing(Nvml()) as nvml:
        (gpu,) = nvml.gpus
        assert gpu.profile() == {}  # nothing to compare with
        assert gpu.profile() == pytest.approx(
            {
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.93,
                "DCGM_FI_PROF_SM_ACTIVE": 0.82,
                "DCGM_FI_PROF_SM_OCCUPANCY": 0.315,
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25,
                "DCGM_FI_PROF_DRAM_ACTIVE": 0.42,
                "DCGM_FI_PROF_PCIE_TX_BYTES": 12 * 2**20,
                "DCGM_FI_PROF_PCIE_RX_BYTES": 3.5 * 2**20,
                "DCGM_FI_PROF_NVLINK_TX_BYTES": 2**31,
                "DCGM_FI_PROF_NVLINK_RX_BYTES": 2**30,
            }
        )
        answers.set(**{"0.gpm.2": "nan", "0.gpm.60": None, "0.gpm.10": 3})
        changed = gpu.profile()
        assert changed["DCGM_FI_PROF_DRAM_ACTIVE"] == pytest.approx(0.03)
        assert not {"DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_NVLINK_RX_BYTES"} & set(changed)


def test_profiler_restarts_average_after_failed_sample(answers: Answers) -> None:
    with closing(Nvml()) as nvml:
        (gpu,) = nvml.gpus
        gpu.profile()
        answers.set(**{"0.gpm.sample": "!999"})
        assert gpu.profile() == {}
        answers.set(**{"0.gpm.sample": None})
        assert gpu.profile() == {}
        assert gpu.profile()
