"""The hardware: pools of machines, and the telemetry of their GPUs during each kind of activity."""

from __future__ import annotations

from typing import NamedTuple


class SimulatedGpuModel(NamedTuple):
    """The telemetry values that are typical of a GPU model."""

    name: str
    usd_micro_per_hour: int
    idle_w: int  # a process holds the GPU, nothing runs
    busy_w: int  # training
    clock_mhz: int
    memory_mib: int


H200 = SimulatedGpuModel("NVIDIA H200", 4_150_000, 125, 674, 1980, 143_771)
H100 = SimulatedGpuModel("NVIDIA H100 80GB HBM3", 3_490_000, 118, 641, 1980, 81_559)
A100 = SimulatedGpuModel("NVIDIA A100-SXM4-80GB", 1_890_000, 88, 372, 1410, 81_920)


class Pool(NamedTuple):
    """A group of equal machines."""

    name: str
    model: SimulatedGpuModel
    machines: int
    instance_type: str
    gpus: int = 8


class Machine(NamedTuple):
    """A machine. Slots are numbered across the cluster; its own start at `first_slot`."""

    uid: str
    name: str
    pool: Pool
    first_slot: int

    @property
    def slots(self) -> range:
        """The numbers of its slots."""
        return range(self.first_slot, self.first_slot + self.pool.gpus)


def machines_of(pools: tuple[Pool, ...]) -> list[Machine]:
    """The machines of a cluster."""
    machines: list[Machine] = []
    slot = 0
    for pool in pools:
        for number in range(pool.machines):
            name = f"{pool.name}-{number + 1:02}"
            machines.append(Machine(f"node-{name}", name, pool, slot))
            slot += pool.gpus
    return machines


class Signature(NamedTuple):
    """Telemetry of one GPU in thousandths. Power is relative to the model: 0 is idle, 1000 is training."""

    util: int
    sm: int
    tensor: int
    dram: int
    power: int
    clock: int


# Measured on one H200 that trained a GPT in bf16. Power is what exceeds the idle power of a held device, as a share of
# what training adds to it. Clocks are a share of the highest clock.
SIGNATURES = {
    "free": Signature(0, 0, 0, 0, -82, 174),
    "idle": Signature(0, 0, 0, 0, 0, 1000),
    "startup": Signature(0, 0, 0, 0, -27, 753),
    "train": Signature(930, 820, 250, 420, 1000, 994),
    "evaluate": Signature(960, 900, 270, 450, 1015, 958),
    "checkpoint": Signature(30, 0, 0, 0, 2, 1000),
    "spin": Signature(1000, 8, 0, 0, 0, 1000),
    "nan": Signature(920, 810, 250, 420, 636, 1000),
    "serve": Signature(540, 310, 60, 240, 420, 1000),
}
