"""What the SDK was told: by `PYROMETER_*` variables, or by `pyrometer.init`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.train.environment import number
from pyrometer.train.spool import place
from pyrometer.train.stall_limits import HANG_LIMIT_S, configured_hang_limit_s

WINDOW_S = 10.0


class Told(NamedTuple):
    """The settings of one process."""

    spool: Path
    endpoint: str | None
    identity: dict[str, Any]
    first_step: int | None = None
    hang_limit_s: float = HANG_LIMIT_S
    window_s: float = WINDOW_S
    flops_per_sample: float = 0.0


def told(environment: Mapping[str, str], asked: Mapping[str, Any]) -> Told | None:
    """From variables, and what `pyrometer.init` was given; None: nobody wants to know."""
    endpoint = asked.get("endpoint") or environment.get("PYROMETER_ENDPOINT") or None
    spool = environment.get("PYROMETER_SPOOL")
    if not endpoint and not spool:
        return None
    identity = {name: asked[name] for name in ("run", "experiment") if asked.get(name)}
    return Told(
        place(environment),
        endpoint,
        identity,
        asked.get("step"),
        configured_hang_limit_s(),
        number("PYROMETER_WINDOW_S", WINDOW_S) or WINDOW_S,
        float(asked.get("flops_per_sample") or 0.0),
    )
