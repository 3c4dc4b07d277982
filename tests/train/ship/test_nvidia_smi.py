"""The host's GPUs, from lines that `nvidia-smi` 580.159 wrote on an H200: idle, at work, idle again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyrometer.train.ship import nvidia_smi as gpus
from pyrometer.train.ship.nvidia_smi import COMMAND, GpuWatch, parse_line
from pyrometer.train.ship.spool import Spool

RECORDED = Path(__file__).parents[2] / "data" / "h200-smi" / "lines.csv"

# Ends as the real one does: killed by SIGTERM, or by its pipe.
FAKE = """#!{python}
import signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
assert "--format=csv,noheader,nounits" in sys.argv
for line in open({recorded!r}):
    sys.stdout.write(line)
    sys.stdout.flush()
time.sleep(60)
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch) -> Path:
    """One that says what was recorded, in front of the PATH."""
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(FAKE.format(python=sys.executable, recorded=str(RECORDED)))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    return fake


def test_recorded_lines_become_samples_with_dcgm_names():
    messages = [parse_line(line, 1000) for line in RECORDED.read_text().splitlines()]
    assert len(messages) == 25
    assert all(messages)
    idle, busy = messages[0][1], messages[9][1]
    assert idle == {
        "time_ms": 1000,
        "gpu_index": 0,
        "gpu_uuid": "GPU-28fdb62d-b5d8-8450-2c15-87803f8778a6",
        "gpu_model": "NVIDIA H200",
        "DCGM_FI_DEV_GPU_UTIL": 0.0,
        "DCGM_FI_DEV_FB_USED": 0.0,
        "DCGM_FI_DEV_POWER_USAGE": 81.39,
        "DCGM_FI_DEV_GPU_TEMP": 39.0,
        "DCGM_FI_DEV_SM_CLOCK": 345.0,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 1.0,
    }
    assert (busy["DCGM_FI_DEV_GPU_UTIL"], busy["DCGM_FI_DEV_POWER_USAGE"]) == (100.0, 690.08)
    assert busy["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] == 4.0  # the power cap


@pytest.mark.parametrize(
    "line",
    [
        "",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "a,b,c",
    ],
)
def test_malformed_lines_are_not_samples(line):
    assert parse_line(line, 1) is None


def test_unsupported_fields_are_absent():
    line = "1, GPU-2, Tesla K80, [N/A], 12, [Not Supported], 40, [Unknown Error], N/A"
    assert parse_line(line, 1)[1] == {
        "time_ms": 1,
        "gpu_index": 1,
        "gpu_uuid": "GPU-2",
        "gpu_model": "Tesla K80",
        "DCGM_FI_DEV_FB_USED": 12.0,
        "DCGM_FI_DEV_GPU_TEMP": 40.0,
    }


def test_sample_names_are_known_to_the_server():
    from pyrometer.collect.gpu.dcgm import measure_of

    assert all(measure_of(name) is not None for name in gpus._FIELDS.values())


def test_lines_become_parts_and_the_child_is_stopped_on_close(nvidia_smi, tmp_path):
    spool = Spool(tmp_path / "spool").make()
    watch = GpuWatch(spool, COMMAND)
    watch.start()
    end = time.monotonic() + 10
    while watch._child is None and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        watch._child.wait(0.5)  # it has printed all lines, and waits
    watch.close()
    ((identity, messages),) = [spool.read(part) for part in spool.parts()]
    assert list(identity) == ["host"]
    assert [sample["DCGM_FI_DEV_POWER_USAGE"] for _, sample in messages][:2] == [81.39, 81.33]
    assert len(messages) == 25
    assert watch._child.returncode is not None


def test_machine_without_nvidia_smi_has_no_samples(tmp_path):
    spool = Spool(tmp_path / "spool").make()
    watch = GpuWatch(spool, ("no-such-command",))
    watch.start()
    watch.close()
    assert spool.parts() == []
