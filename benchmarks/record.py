"""Records one GPU while something known happens to a training on it: for `pyrometer import recording`, to be scored.

python benchmarks/record.py conv|small FOLDER [--speed 1.0]

Writes NAME-gpu.csv (NVML and GPM twice a second), NAME-steps.csv (every step by phase) and NAME-truth.json (what was
done). Needs an NVIDIA GPU of Hopper or later, PyTorch and nvidia-ml-py; nothing of Pyrometer.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import torch
from torch import nn

GPM = {
    "graphics_active": 1,
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp32_active": 12,
    "fp16_active": 13,
    "pcie_tx_mib_s": 20,
    "pcie_rx_mib_s": 21,
}
EVERY_S = 0.5
CLASSES = 1000
CYCLES = 1_000_000_000  # half a second or so of a kernel that does nothing


class Sampler(threading.Thread):
    """What the GPU says, twice a second, until it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.gpu = pynvml.nvmlDeviceGetName(self.handle)
        self._file = path.open("w", newline="")
        self._ended = threading.Event()

    def run(self) -> None:
        rows = csv.writer(self._file)
        rows.writerow(
            [
                "time",
                "gpu_util",
                "mem_copy_util",
                "fb_used_bytes",
                "power_w",
                "energy_mj",
                "temp_c",
                "sm_clock_mhz",
                "throttle_reasons",
                *GPM,
            ]
        )
        before, now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(self.handle, before)
        while not self._ended.wait(EVERY_S):
            pynvml.nvmlGpmSampleGet(self.handle, now)
            rows.writerow([f"{time.time():.3f}", *self._plain(), *self._profiled(before, now)])
            self._file.flush()
            before, now = now, before

    def close(self) -> None:
        self._ended.set()
        self.join()
        self._file.close()

    def _plain(self) -> list[Any]:
        used = pynvml.nvmlDeviceGetUtilizationRates(self.handle)
        return [
            used.gpu,
            used.memory,
            pynvml.nvmlDeviceGetMemoryInfo(self.handle).used,
            pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1000,
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle),
            pynvml.nvmlDeviceGetTemperature(self.handle, pynvml.NVML_TEMPERATURE_GPU),
            pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle),
        ]

    def _profiled(self, before: Any, now: Any) -> list[str]:
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        query.sample1, query.sample2 = before, now
        for place, metric in enumerate(GPM.values()):
            query.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(query)
        values = [query.metrics[place].value for place in range(len(GPM))]
        return [f"{value:.3f}" if math.isfinite(value) else "" for value in values]


class Recording:
    """A training with a plan, and what it did."""

    def __init__(self, name: str, folder: Path, speed: float) -> None:
        self.speed = speed
        self.intervals: list[dict[str, Any]] = []
        self.sampler = Sampler(folder / f"{name}-gpu.csv")
        self._steps = (folder / f"{name}-steps.csv").open("w", newline="")
        self._rows = csv.writer(self._steps)
        self._rows.writerow(
            [
                "step",
                "start",
                "end",
                "data_s",
                "forward_s",
                "backward_s",
                "optimizer_s",
                "loss",
                "batch_size",
                "true_state",
            ]
        )
        self._truth = folder / f"{name}-truth.json"
        self.step = 0
        self.job: Any = None

    @contextmanager
    def state(self, state: str, **more: Any) -> Iterator[None]:
        began = time.time()
        yield
        torch.cuda.synchronize() if torch.cuda.is_initialized() else None
        self.intervals.append({"state": state, "start": round(began, 3), "end": round(time.time(), 3), **more})

    def sleeps(self, state: str, seconds: float) -> None:
        with self.state(state):
            time.sleep(seconds * self.speed)

    def trains(self, seconds: float, state: str = "train", nap_s: float = 0.0, batch: int | None = None) -> None:
        """Steps, one after the other, each after a nap in which it waits for its data."""
        with self.state(state):
            end = time.time() + seconds * self.speed
            while time.time() < end:
                self.one_step(state, nap_s, batch)

    def one_step(self, state: str, nap_s: float = 0.0, batch: int | None = None) -> None:
        marks = [time.time()]

        def mark() -> None:
            torch.cuda.synchronize()
            marks.append(time.time())

        time.sleep(nap_s)
        inputs = self.job.batch(batch)
        mark()
        loss = self.job.loss(*inputs)
        mark()
        loss.backward()
        mark()
        self.job.optimizer.step()
        self.job.optimizer.zero_grad()
        mark()
        took = [f"{after - before:.4f}" for before, after in pairwise(marks)]
        self._rows.writerow(
            [self.step, f"{marks[0]:.4f}", f"{marks[-1]:.4f}", *took, f"{loss.item():.5f}", len(inputs[0]), state]
        )
        self.step += 1

    def starts(self, make: Callable[[], Any], seconds: float, resumed_step: int | None = None) -> None:
        """A process begins: imports, the model, its first step."""
        more = {} if resumed_step is None else {"resumed_step": resumed_step, "lost_steps": self.step - resumed_step}
        with self.state("startup", **more):
            time.sleep(seconds * self.speed)
            self.step = self.step if resumed_step is None else resumed_step
            self.job = make()
            self.one_step("startup")

    def evaluates(self, seconds: float) -> None:
        with self.state("evaluate"), torch.no_grad():
            end = time.time() + seconds * self.speed
            while time.time() < end:
                self.job.loss(*self.job.batch(None)).item()

    def spins(self, seconds: float) -> None:
        """A kernel that never gets what it waits for, as NCCL's do."""
        with self.state("hang_spin"):
            end = time.time() + seconds * self.speed
            while time.time() < end:
                torch.cuda._sleep(CYCLES)
                torch.cuda.synchronize()

    def close(self, **more: Any) -> None:
        self.sampler.close()
        self._steps.close()
        about = {"gpu": self.sampler.gpu, "torch": torch.__version__, **more}
        self._truth.write_text(json.dumps({**about, "intervals": self.intervals}, indent=1))


class Conv:
    """Pictures, half precision, steps of a few hundred milliseconds: busy, and hot."""

    def __init__(self) -> None:
        widths = [64, 128, 256, 512]
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3)]
        for before, width in zip([64, *widths], widths, strict=False):
            layers += [nn.Conv2d(before, width, 3, 2 if width > 64 else 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
            for _ in range(3):
                layers += [nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))
        self.net = self.net.cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(384, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        self.y = torch.randint(CLASSES, (384,), device="cuda")

    def batch(self, size: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[:size], self.y[:size]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return nn.functional.cross_entropy(self.net(x), y)


class Small:
    """A model so small that the host cannot keep the GPU busy: single precision, steps of some milliseconds."""

    def __init__(self) -> None:
        width = 1024
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
        self.net = nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Linear(width, CLASSES)).cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, foreach=False)
        self.x = torch.randn(4, 64, width, device="cuda")
        self.y = torch.randint(CLASSES, (4, 64), device="cuda")

    def batch(self, size: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[:size], self.y[:size]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x).flatten(0, 1), y.flatten())


def poisoned(job: Any) -> None:
    with torch.no_grad():
        next(job.net.parameters()).fill_(float("nan"))


def conv(recording: Recording) -> None:
    recording.sleeps("free", 8)
    recording.starts(Conv, 12)
    recording.trains(25)
    recording.evaluates(13)
    recording.trains(12)
    recording.trains(20, "data_stall", nap_s=0.35)
    recording.trains(12)
    saved = recording.step
    recording.sleeps("checkpoint", 11)
    recording.trains(14)
    recording.sleeps("hang_idle", 18)
    recording.trains(12)
    recording.spins(16)
    recording.starts(Conv, 11, resumed_step=saved)
    recording.trains(24, batch=192)
    poisoned(recording.job)
    recording.trains(24, "diverged", batch=192)
    recording.sleeps("idle_held", 20)


def small(recording: Recording) -> None:
    recording.sleeps("free", 8)
    recording.starts(Small, 11)
    recording.trains(22)
    recording.trains(18, "data_stall", nap_s=0.02)
    recording.trains(15)
    recording.spins(20)
    recording.trains(12)
    saved = recording.step
    recording.sleeps("checkpoint", 12)
    recording.trains(14)
    recording.sleeps("hang_idle", 25)
    recording.starts(Small, 10, resumed_step=saved)
    recording.trains(15)
    recording.evaluates(14)
    recording.trains(12)
    poisoned(recording.job)
    recording.trains(20, "diverged")
    recording.sleeps("idle_held", 18)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("conv", "small"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--speed", type=float, default=1.0, help="every length times this")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    recording = Recording(args.name, args.folder, args.speed)
    recording.sampler.start()
    {"conv": conv, "small": small}[args.name](recording)
    recording.close()


if __name__ == "__main__":
    main()
