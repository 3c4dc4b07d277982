"""GPUs through the real pynvml and an NVML library whose answers are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from pyrometer.agent.nvml import ACTIVITY, ENERGY, HEALTH, INSTANCE, Nvml, NvmlError
from tests.support.nvml_library import LOST, NOT_SUPPORTED, Answers

EVERYTHING = (*ACTIVITY, *ENERGY, *HEALTH)
READINGS = {
    "DCGM_FI_DEV_GPU_UTIL": 93,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 42,
    "DCGM_FI_DEV_ENC_UTIL": 0,
    "DCGM_FI_DEV_DEC_UTIL": 0,
    "DCGM_FI_DEV_FB_FREE": 100_000,
    "DCGM_FI_DEV_FB_USED": 43_071,
    "DCGM_FI_DEV_FB_RESERVED": 700,
    "DCGM_FI_DEV_POWER_USAGE": 674.312,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5_551_899_580,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 74,
    "DCGM_FI_DEV_SM_CLOCK": 1965,
    "DCGM_FI_DEV_MEM_CLOCK": 3201,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 1,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 7,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 2,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 1,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
}


@contextmanager
def opened() -> Iterator[Nvml]:
    nvml = Nvml()
    yield nvml
    nvml.close()


def test_gpu_read_returns_all_metrics_in_dcgm_units(answers: Answers) -> None:
    with opened() as nvml:
        (gpu,) = nvml.everything
        assert gpu.device == (0, "GPU-00000000", "00000000:00:00.0", 0, "NVIDIA H200", None, "", ())
        assert gpu.device.names == ("GPU-00000000", "nvidia0", "gpu-0")
        assert nvml.driver == "580.105.08"
        assert gpu.read(EVERYTHING) == READINGS


@pytest.mark.parametrize("answer", [NOT_SUPPORTED, "!999", "!4"])
def test_gpu_read_omits_only_unsupported_metrics(answers: Answers, answer: str) -> None:
    for key, missing in {
        "util.gpu": {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"},
        "field.82": {"DCGM_FI_DEV_MEMORY_TEMP"},
        "energy": {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"},
        "ecc.corrected.volatile": {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"},
    }.items():
        before = answers.lines[f"0.{key}"]
        answers.set(**{f"0.{key}": answer})
        with opened() as nvml:
            assert set(READINGS) - set(nvml.gpus[0].read(EVERYTHING)) == missing
            assert not nvml.gpus[0].lost
        answers.set(**{f"0.{key}": before})


@pytest.mark.parametrize(
    ("key", "blank", "name"),
    [
        ("power", 2**32 - 1, "DCGM_FI_DEV_POWER_USAGE"),
        ("temperature", 2**31 - 2, "DCGM_FI_DEV_GPU_TEMP"),
        ("energy", 2**64 - 1, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
        ("energy", 9223372036854775794, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
        ("memory.used", 2**64 - 1, "DCGM_FI_DEV_FB_USED"),
    ],
)
def test_gpu_read_omits_blank_values(answers: Answers, key: str, blank: int, name: str) -> None:
    answers.set(**{f"0.{key}": blank})
    with opened() as nvml:
        assert set(READINGS) - set(nvml.gpus[0].read(EVERYTHING)) == {name}


def test_gpu_without_profiling_support_reads_other_metrics(answers: Answers) -> None:
    answers.set(**{"0.gpm": 0})
    with opened() as nvml:
        assert (nvml.gpus[0].profile(), nvml.gpus[0].profile()) == ({}, {})
        assert nvml.gpus[0].read(EVERYTHING) == READINGS


def test_lost_gpu_does_not_affect_others(answers: Answers) -> None:
    answers.set(count=2)
    answers.add(1)
    with opened() as nvml:
        kept, lost = nvml.gpus
        assert lost.read(ACTIVITY)
        answers.lose(1)
        assert (lost.read(ACTIVITY), lost.read(HEALTH), lost.profile(), lost.pids()) == ({}, {}, {}, [])
        assert (lost.lost, kept.lost) == (True, False)
        assert lost.device.uuid == "GPU-00000001"
        assert kept.read(EVERYTHING) == READINGS
        answers.add(1)
        assert lost.read(EVERYTHING) == READINGS
        assert not lost.lost


def test_gpu_lost_at_start_is_listed(answers: Answers) -> None:
    answers.set(count=2, **{"1.handle": LOST})
    with opened() as nvml:
        kept, lost = nvml.gpus
        assert (lost.device.gpu, lost.device.uuid, lost.device.names, lost.lost) == (1, "", (), True)
        assert (lost.read(ACTIVITY), lost.pids()) == ({}, [])
        assert kept.read(EVERYTHING) == READINGS


def test_gpu_without_permission_is_not_listed(answers: Answers) -> None:
    answers.set(count=2, **{"1.handle": "!4"})
    with opened() as nvml:
        assert [gpu.device.gpu for gpu in nvml.gpus] == [0]


MIG = {
    "0.mig.max": 7,
    "0/0.uuid": "MIG-a",
    "0/0.name": "NVIDIA H200 MIG 3g.71gb",
    "0/0.instance": 2,
    "0/0.memory.reserved": 0,
    "0/0.memory.free": 60 << 30,
    "0/0.memory.used": 11 << 30,
    "0/0.pids": "31 32",
    "0/3.uuid": "MIG-b",
    "0/3.name": "NVIDIA H200 MIG 1c.2g.35gb",
    "0/3.instance": 5,
    "0/4.uuid": "MIG-c",
    "0/4.name": "NVIDIA H200 MIG 1c.2g.35gb",
    "0/4.instance": 5,
    "0.gpm.2.2": 50.0,
}


def test_nvml_lists_mig_instances_separately(answers: Answers) -> None:
    answers.set(**MIG, **{"0.util.gpu": NOT_SUPPORTED, "0.pids": "31 32"})
    with opened() as nvml:
        (gpu,), (three, two) = nvml.gpus, nvml.instances
        assert (three.device.uuid, three.device.instance, three.device.profile) == ("GPU-00000000", 2, "3g.71gb")
        assert three.device.names == ("MIG-a", "nvidia0/gi2")
        assert (two.device.instance, two.device.profile) == (5, "2g.35gb")  # two compute instances share it
        assert two.device.names == ("MIG-b", "MIG-c", "nvidia0/gi5")
        assert three.read(INSTANCE)["DCGM_FI_DEV_FB_USED"] == 11 << 10
        assert "DCGM_FI_DEV_POWER_USAGE" in gpu.read(ACTIVITY)
        three.profile()
        assert three.profile() == {"DCGM_FI_PROF_SM_ACTIVE": 0.5}
        assert (gpu.pids(), three.pids(), two.pids()) == ([], [31, 32], [])  # no process twice
        answers.lose(0)
        assert gpu.read(ACTIVITY) == {}
        assert three.lost


def test_list_instances_tracks_changes(answers: Answers) -> None:
    with opened() as nvml:
        assert nvml.instances == []
        answers.set(**MIG)
        nvml.list_instances()
        three, two = nvml.instances
        answers.set(**{"0/3.uuid": None, "0/4.uuid": None})
        nvml.list_instances()
        assert nvml.instances == [three]  # the same one, with its counters
        assert two.profile() == {}


@pytest.mark.parametrize(
    ("answer", "message"), [("!9", "Driver Not Loaded"), ("!18", "version mismatch"), ("!999", "Unknown Error")]
)
def test_nvml_error_names_driver_problem(answers: Answers, answer: str, message: str) -> None:
    answers.set(init=answer)
    with pytest.raises(NvmlError, match=message) as error:
        Nvml()
    assert "runtimeClassName: nvidia" in str(error.value)


def test_nvml_error_names_conflicting_package(answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "pynvml").mkdir()  # as the deprecated package is made
    (tmp_path / "pynvml" / "nvml.py").write_text(Path(pynvml.__file__).read_text())
    (tmp_path / "pynvml" / "__init__.py").write_text("from .nvml import *\n")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pyrometer", "agent"],
        env={**answers.environment, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: The deprecated package `pynvml` hides `nvidia-ml-py`: pip uninstall pynvml")
    assert result.stderr.count("\n") == 1
