"""A real `libnvidia-ml.so.1` for tests: built from C, loaded by the real pynvml, with answers from a file."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_FOLDER = TemporaryDirectory(prefix="nvml-")  # gone when the tests end
SOURCE = Path(__file__).with_suffix(".c")
LOST = "!15"
NOT_SUPPORTED = "!3"

# One H200 that trains, as it was measured.
TRAINING = {
    "name": "NVIDIA H200",
    "gpm": 1,
    "events": 1,
    "util.gpu": 93,
    "util.memory": 42,
    "util.encoder": 0,
    "util.decoder": 0,
    "memory.reserved": 700 << 20,
    "memory.free": 100_000 << 20,
    "memory.used": 43_071 << 20,
    "power": 674_312,
    "energy": 5_551_899_580,
    "temperature": 61,
    "field.82": 74,
    "clock.sm": 1965,
    "clock.memory": 3201,
    "reasons": 4,
    "replays": 0,
    "ecc.corrected.volatile": 1,
    "ecc.uncorrected.volatile": 0,
    "ecc.corrected.aggregate": 7,
    "ecc.uncorrected.aggregate": 2,
    "rows.correctable": 1,
    "rows.uncorrectable": 0,
    "rows.pending": 0,
    "rows.failed": 0,
    "pids": "",
    "gpm.1": 93.0,
    "gpm.2": 82.0,
    "gpm.3": 31.5,
    "gpm.5": 25.0,
    "gpm.10": 42.0,
    "gpm.20": 12.0,
    "gpm.21": 3.5,
    "gpm.60": 1024.0,
    "gpm.61": 2048.0,
}


@cache
def library() -> Path:
    """The built library; its folder can be an LD_LIBRARY_PATH."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for the NVML library of the tests: apt-get install gcc")
    built = Path(_FOLDER.name) / "libnvidia-ml.so.1"
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, f"-Wl,-soname,{built.name}", "-o", built, SOURCE], check=True)
    return built


class Answers:
    """What the library says: lines of a file, which may change at any time."""

    def __init__(self, path: Path, gpus: int = 1) -> None:
        self.path = path
        self.lines: dict[str, object] = {"driver": "580.105.08", "count": gpus}
        for gpu in range(gpus):
            self.add(gpu)

    def add(self, gpu: int) -> None:
        """A GPU that trains."""
        named = {"uuid": f"GPU-{gpu:08d}", "minor": gpu, "pci": f"00000000:{gpu:02X}:00.0"}
        self.set(**{f"{gpu}.{key}": value for key, value in {**TRAINING, **named}.items()})

    def set(self, **lines: object) -> None:
        """Changes some answers, all at once; None takes one away."""
        self.lines |= lines
        text = "".join(f"{key} {value}\n" for key, value in self.lines.items() if value is not None)
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: every call about it fails."""
        self.set(**{key: LOST for key in self.lines if key.startswith((f"{gpu}.", f"{gpu}/")) and ".gpm." not in key})
        self.set(**{f"{gpu}.gpm.sample": LOST})

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to see these GPUs."""
        return {**os.environ, "LD_LIBRARY_PATH": str(library().parent), "NVML_ANSWERS": str(self.path)}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """One GPU that trains, for this process too: the loader finds a library that is loaded by its soname."""
    ctypes.CDLL(str(library()))
    made = Answers(tmp_path / "nvml-answers")
    monkeypatch.setenv("NVML_ANSWERS", str(made.path))
    return made
