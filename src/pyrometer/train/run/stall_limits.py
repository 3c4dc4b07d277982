"""How long a rank may make no progress in each phase before it counts as stuck: the one table of these limits."""

from __future__ import annotations

from pyrometer.train.run.environment import read_number

HANG_LIMIT_S = 60.0
# Phases that may make no progress for longer than a step. A rank writes its limits next to its ring, and the watcher
# applies the same table to a rank that has not written any.
#
# - Start-up and compilation of a large model take up to half an hour.
# - A blocking checkpoint is one mark from its begin to its end. A sharded one on a busy file system takes minutes, and
#   a false alarm there costs more than a late one.
# - Every batch of an evaluation is a mark of its own, which counts as progress. So the limit covers one batch and the
#   metrics that are computed at the end, not the whole evaluation.
#
# `causes/hang.py` has the same numbers in milliseconds, because it cannot import the SDK. A test compares them.
LIMITS_S = {"startup": 1800.0, "compile": 1800.0, "checkpoint": 900.0, "evaluate": 300.0}
SLOW_STEPS = 10  # the limit is at least this many times its slowest step


def configured_hang_limit_s() -> float:
    """The limit of PYROMETER_HANG_LIMIT_S, or the default where it is unset, zero or not a number."""
    return read_number("PYROMETER_HANG_LIMIT_S", HANG_LIMIT_S) or HANG_LIMIT_S


def stall_limits_s(hang_limit_s: float, slow_step_s: float = 0.0) -> dict[str, float]:
    """The limit of each phase, and as `default` the limit of all other phases.

    A hang limit below the default shortens all limits in proportion. No limit is below the default one.
    """
    default_s = max(hang_limit_s, SLOW_STEPS * slow_step_s)
    scale = min(hang_limit_s / HANG_LIMIT_S, 1.0)
    return {"default": default_s, **{phase: max(default_s, limit * scale) for phase, limit in LIMITS_S.items()}}
