"""The settings of the SDK, from `PYROMETER_*` variables and `pyrometer.init`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.train.run.environment import read_number
from pyrometer.train.run.stall_limits import HANG_LIMIT_S, configured_hang_limit_s
from pyrometer.train.ship.spool import spool_folder

WINDOW_S = 10.0


class SdkSettings(NamedTuple):
    """The settings of one process."""

    spool: Path
    endpoint: str | None
    identity: dict[str, Any]
    first_step: int | None = None
    hang_limit_s: float = HANG_LIMIT_S
    window_s: float = WINDOW_S
    flops_per_sample: float = 0.0


def load_settings(environment: Mapping[str, str], init_arguments: Mapping[str, Any]) -> SdkSettings | None:
    """Combines variables with the arguments of `pyrometer.init`; None if no target is configured."""
    endpoint = init_arguments.get("endpoint") or environment.get("PYROMETER_ENDPOINT") or None
    spool = environment.get("PYROMETER_SPOOL")
    if not endpoint and not spool:
        return None
    identity = {name: init_arguments[name] for name in ("run", "experiment") if init_arguments.get(name)}
    return SdkSettings(
        spool_folder(environment),
        endpoint,
        identity,
        init_arguments.get("step"),
        configured_hang_limit_s(),
        read_number("PYROMETER_WINDOW_S", WINDOW_S) or WINDOW_S,
        float(init_arguments.get("flops_per_sample") or 0.0),
    )
