"""Public data of GPU models by name: the bundled table, dated, and marked as assumed wherever it is used."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

# Near idle: within this much of the power that a held, idle board draws.
NEAR_IDLE_FACTOR = 1.25
NEAR_IDLE_UNKNOWN_W = 150


class GpuModel(NamedTuple):
    """A GPU model: how its name is written, what it draws, what it can compute, what a large cloud lists it at."""

    model: str
    pattern: re.Pattern[str]
    board_power_w: int
    held_idle_power_w: int
    peak_tflops_bf16: float | None  # dense, from the maker's data sheet; None if it has no value
    list_usd_micro_per_hour: int | None
    as_of: str
    source: str


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """The bundled table, specific names before general ones."""
    text = files(__package__).joinpath("gpu_models.csv").read_text(encoding="utf-8")
    return tuple(
        GpuModel(
            model=row["model"],
            pattern=re.compile(row["pattern"], re.IGNORECASE),
            board_power_w=int(row["board_power_w"]),
            held_idle_power_w=int(row["held_idle_power_w"]),
            peak_tflops_bf16=float(row["peak_tflops_bf16"]) if row["peak_tflops_bf16"] else None,
            list_usd_micro_per_hour=_usd_micro(row["list_usd_per_gpu_hour"]),
            as_of=row["as_of"],
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def gpu_model(name: str | None) -> GpuModel | None:
    """The model that a product name means ("NVIDIA-H100-80GB-HBM3", "Tesla T4"); None when it is not in the table."""
    if name is None:
        return None
    return next((known for known in gpu_models() if known.pattern.search(name)), None)


def near_idle_power_w(name: str | None) -> int:
    """Below this power a board of that model does no significant work, at any reported utilization."""
    known = gpu_model(name)
    return round(known.held_idle_power_w * NEAR_IDLE_FACTOR) if known else NEAR_IDLE_UNKNOWN_W


def _usd_micro(text: str) -> int | None:
    from decimal import Decimal

    return int(Decimal(text) * 1_000_000) if text else None
