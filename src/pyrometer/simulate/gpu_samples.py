"""GPU samples of one hour in dcgm-exporter's fields, with noise, gaps and repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.hardware import SIGNATURES, Signature
from pyrometer.simulate.jobs import Job, JobAttempt, Night, slots_of
from pyrometer.simulate.rank_steps import Integers, Numbers, Steps

SIGNATURE_OF = {
    "startup": "startup",
    "checkpoint": "checkpoint",
    "evaluate": "evaluate",
    "hang": "idle",
    "spin": "spin",
    "idle": "idle",
    "busy": "train",
    "pause": "idle",
    "serve": "serve",
    "steps": "train",
}
_KINDS = tuple(SIGNATURE_OF)
_TABLE = np.array([SIGNATURES[name] for name in SIGNATURE_OF.values()], float).T  # one row per measure
_UTIL, _SM, _TENSOR, _DRAM, _POWER, _CLOCK = range(len(Signature._fields))
_WORKING = slice(_SM, _POWER + 1)
THERMAL_SLOWDOWN = 0x20 | 0x40  # NVML: thermal slowdown, by software and by hardware
GPU_IDLE, POWER_CAP = 0x1, 0x4


class Gpus:
    """The devices of a night. Their power differs slightly, and machines are scraped at different moments."""

    def __init__(self, night: Night, rng: np.random.Generator) -> None:
        machines = night.machines
        self.machines = [machine.uid for machine in machines]
        self.machine = np.concatenate([np.full(m.pool.gpus, n) for n, m in enumerate(machines)])
        self.index = np.concatenate([np.arange(m.pool.gpus) for m in machines])
        models = [m.pool.model for m in machines for _ in range(m.pool.gpus)]
        spread = rng.normal(1.0, 0.02, len(models))
        self.idle_w = np.array([model.idle_w for model in models]) * spread
        self.busy_w = np.array([model.busy_w for model in models]) * spread
        self.slowness = rng.normal(1.0, 0.0025, len(models))  # devices differ slightly
        self.clock_mhz = np.array([model.clock_mhz for model in models], float)
        self.memory_mib = np.array([model.memory_mib for model in models], float)
        self.offset_ms = rng.integers(0, night.sample_every_ms, len(machines))
        self.skew_ms = np.round(rng.normal(0, 40, len(machines))).astype(int)
        self.skew_ms[rng.integers(len(machines))] = 1_300  # one clock is wrong
        # the energy counter of each device and the time of that value; it has counted since its driver was loaded
        self.counted_j = 1e8 + 7919.0 * np.arange(len(models))
        self.counted_ms = np.full(len(models), night.from_ms)


class SimulatedTelemetry:
    """One hour of GPU samples. All devices are free until attempts are added."""

    def __init__(self, night: Night, gpus: Gpus, rng: np.random.Generator, from_ms: int, to_ms: int) -> None:
        self.night, self.gpus, self.rng, self.from_ms = night, gpus, rng, from_ms
        grid = np.arange(from_ms, to_ms, night.sample_every_ms)
        jitter = rng.integers(-400, 400, (len(gpus.machines), len(grid)))
        self.times = np.clip(grid[None, :] + gpus.offset_ms[:, None] + jitter, from_ms, to_ms - 1)
        shape = (len(gpus.index), len(grid))
        self.shown = np.empty((len(Signature._fields), *shape))  # by measure, device and time
        self.shown[:] = np.array(SIGNATURES["free"], float)[:, None, None]
        self.memory_share = np.zeros(shape)
        self.hot = np.zeros(shape, bool)

    def add_attempt(self, job: Job, attempt: JobAttempt, steps: Steps | None, slots: Integers, over_ms: int) -> None:
        """Sets the values of the devices that the attempt's pods hold."""
        now = [activity for activity in attempt.activities if activity.to_ms >= self.from_ms] or attempt.activities[-1:]
        begins = np.array([activity.from_ms for activity in now])
        kinds = np.array([_KINDS.index(activity.kind) for activity in now])
        times = self.times[self.gpus.machine[slots]]
        held = (times >= np.repeat(attempt.scheduled_ms, job.gpus)[:, None]) & (times < over_ms)
        kind = kinds[np.maximum(np.searchsorted(begins, times, side="right") - 1, 0)]
        shown = _TABLE[:, kind]
        if steps is not None:
            _adjust_stepping(shown, steps, times, kind == _KINDS.index("steps"))
        if not job.instrumented:
            using = np.clip(job.intensity * (1 + job.swing * np.sin(2 * np.pi * times / job.swing_ms)), 0.05, 1.06)
            shown[_UTIL] *= using**0.3
            shown[_WORKING] *= using
        if job.serves:
            load = np.zeros_like(times, float)
            for pod in range(job.pods):
                first = pod * job.gpus
                at = times[first][held[first]]
                drawn = 0.55 + 0.4 * np.sin(at / MS_PER_HOUR * 1.3 + pod) + self.rng.normal(0, 0.05, len(at))
                load[first : first + job.gpus, held[first]] = np.clip(drawn, 0.25, 1.0)
            shown[_UTIL] *= load
            shown[_WORKING] *= load
        share = np.where(kind == _KINDS.index("startup"), 0.01, memory_share(attempt, np.arange(job.ranks), times))
        self._apply_effects(attempt, shown, times, held, slots)
        self.memory_share[slots] = np.where(held, share, self.memory_share[slots])
        self.shown[:, slots] = np.where(held, shown, self.shown[:, slots])

    def _apply_effects(self, attempt: JobAttempt, shown: Numbers, times: Integers, held: Any, slots: Integers) -> None:
        for effect in attempt.effects:
            mine = np.ones(len(slots), bool)
            if effect.ranks is not None:
                mine = np.isin(np.arange(len(slots)), effect.ranks)
            where = mine[:, None] & (times >= effect.from_ms) & (times < effect.to_ms)
            if effect.kind == "nan":
                shown[_POWER, where] *= SIGNATURES["nan"].power / 1000
            elif effect.kind == "unused":
                shown[:, where] = np.array(SIGNATURES["idle"], float)[:, None]
            elif effect.kind == "clock":
                shown[_CLOCK, where] *= effect.size
                shown[_POWER, where] *= 0.35 + 0.65 * effect.size
                self.hot[slots] |= where & held

    def samples(self) -> tuple[pa.Table, pa.Table]:
        """Returns the rows that arrive in time and the late ones. Some rows arrive twice."""
        gpus, rng, shape = self.gpus, self.rng, self.hot.shape
        times = self.times[gpus.machine]
        kept = rng.random(shape) > 0.003  # missing values
        kept &= (rng.random(self.times.shape) > 0.001)[gpus.machine]  # scrapes that timed out
        for outage in self.night.outages:
            if outage.kind == "cordon":
                continue
            gone = slots_of(outage)
            kept[gone] &= (times[gone] < outage.from_ms) | (times[gone] >= outage.to_ms)
        active = rng.normal(1.0, 0.03, shape)
        util = np.clip(self.shown[_UTIL] * (1 + (active - 1) / 3), 0, 1000)
        sm, tensor, dram = (np.clip(self.shown[measure] * active, 0, 1000) for measure in (_SM, _TENSOR, _DRAM))
        power = gpus.idle_w[:, None] + self.shown[_POWER] / 1000 * (gpus.busy_w - gpus.idle_w)[:, None]
        power = power * rng.normal(1.0, 0.012, shape)
        energy = self._counted(power, times)
        clock = self.shown[_CLOCK] / 1000 * gpus.clock_mhz[:, None] * rng.normal(1.0, 0.004, shape)
        warm = 31 + 34 * power / gpus.busy_w[:, None] + np.where(self.hot, 19, 0) + rng.normal(0, 1, shape)
        busy = sm > 400
        reasons = np.where(busy & (rng.random(shape) < 0.3), POWER_CAP, np.where(busy, 0, GPU_IDLE))
        reasons = np.where(self.hot, THERMAL_SLOWDOWN, reasons)

        def column(numbers: Any, kind: Any = np.int16) -> pa.Array:
            return pa.array(np.round(np.broadcast_to(numbers, shape)[kept]).astype(kind))

        nothing = pa.nulls(int(kept.sum()), pa.int64())
        node = np.broadcast_to(gpus.machine[:, None], shape)[kept].astype(np.int32)
        table = pa.table(
            {
                "time_ms": column(times, np.int64),
                "node_uid": pa.DictionaryArray.from_arrays(node, gpus.machines),
                "slot_index": column(gpus.index[:, None]),
                "instance": column(np.full((1, 1), -1)),
                "gpu_util_permille": column(util),
                "sm_active_permille": column(sm),
                "graphics_active_permille": nothing,
                "tensor_active_permille": column(tensor),
                "dram_active_permille": column(dram),
                "memory_used_mib": column(self.memory_share * gpus.memory_mib[:, None], np.int32),
                "power_w": column(power),
                "energy_j": column(energy, np.int64),
                "temperature_c": column(warm),
                "sm_clock_mhz": column(clock),
                "throttle_reasons": column(reasons, np.int64),
                "xid": nothing,
            }
        )
        chance = rng.random(table.num_rows)
        return table.filter(pa.array(chance >= 0.001)), table.filter(pa.array(chance < 0.002))

    def _counted(self, power: Any, times: Integers) -> Any:
        """The energy counters at these times, continued from the previous hour."""
        gpus = self.gpus
        passed_ms = np.diff(times, axis=1, prepend=gpus.counted_ms[:, None])
        energy: Any = gpus.counted_j[:, None] + np.cumsum(power * passed_ms / 1000, axis=1)
        gpus.counted_j, gpus.counted_ms = energy[:, -1], times[:, -1]
        return energy


def _adjust_stepping(shown: Numbers, steps: Steps, times: Integers, stepping: Any) -> None:
    """Adjusts busy values: a device that waits for data is idle, one that waits for other ranks spins."""
    window = np.clip(np.searchsorted(steps.starts, times, side="right") - 1, 0, len(steps.starts) - 1)
    length = np.maximum(steps.ends - steps.starts, 1)
    working = np.take_along_axis(steps.train / length, window, axis=1)
    seen = 1 - np.take_along_axis(steps.data / length, window, axis=1)
    shown[_UTIL] *= np.where(stepping, seen, 1.0)
    shown[_WORKING] *= np.where(stepping, np.minimum(working * 1.1, 1.04), 1.0)


def memory_share(attempt: JobAttempt, ranks: Integers, times: Integers) -> Numbers:
    """The share of its memory that each rank uses: constant, unless it grows until the memory is full."""
    times = np.broadcast_to(times, (len(ranks), times.shape[-1]))
    share = np.full(times.shape, 0.72)
    for effect in attempt.effects:
        if effect.kind == "memory" and effect.ranks is not None:
            mine = np.isin(ranks, effect.ranks)
            lasted = np.clip((times[mine] - effect.from_ms) / max(effect.to_ms - effect.from_ms, 1), 0, 1)
            share[mine] = 0.72 + 0.26 * lasted
    return share
