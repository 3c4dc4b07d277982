"""The hardware: pools of machines, and what their GPUs show while they do one thing or another."""

from __future__ import annotations

from typing import NamedTuple


class Model(NamedTuple):
    """A GPU model, as far as telemetry shows it."""

    name: str
    usd_micro_per_hour: int
    idle_w: int  # held by a process, nothing running
    busy_w: int  # training
    clock_mhz: int
    memory_mib: int


H200 = Model("NVIDIA H200", 4_150_000, 125, 674, 1980, 143_771)
H100 = Model("NVIDIA H100 80GB HBM3", 3_490_000, 118, 641, 1980, 81_559)
A100 = Model("NVIDIA A100-SXM4-80GB", 1_890_000, 88, 372, 1410, 81_920)


class Pool(NamedTuple):
    """Machines of one kind."""

    name: str
    model: Model
    machines: int
    instance_type: str
    gpus: int = 8


class Machine(NamedTuple):
    """One machine. Its slots are numbered through the whole cluster, from `first_slot` on."""

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
    """What one GPU shows, in thousandths; power and clock relative to the model: 0 idle, 1000 training."""

    util: int
    sm: int
    tensor: int
    dram: int
    power: int
    clock: int


# As measured on one H200 that trained a GPT in bf16: power above what the held, idle device draws, as a share of what
# training adds to that; clocks as a share of the highest.
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
