"""The limits of each phase, and how they adapt."""

from __future__ import annotations

import pytest

from pyrometer.train.run.stall_limits import HANG_LIMIT_S, LIMITS_S, configured_hang_limit_s, stall_limits_s


def test_stall_limits_grow_with_slow_steps_and_shrink_with_the_hang_limit():
    assert stall_limits_s(60.0) == {"default": 60.0, **LIMITS_S}
    assert stall_limits_s(60.0, slow_step_s=45.0) == {
        "default": 450.0,
        "startup": 1800.0,
        "compile": 1800.0,
        "checkpoint": 900.0,
        "evaluate": 450.0,
    }
    assert stall_limits_s(6.0) == {
        "default": 6.0,
        "startup": 180.0,
        "compile": 180.0,
        "checkpoint": 90.0,
        "evaluate": 30.0,
    }


@pytest.mark.parametrize(
    ("value", "limit_s"), [("90", 90.0), ("0", HANG_LIMIT_S), ("x", HANG_LIMIT_S), ("", HANG_LIMIT_S)]
)
def test_configured_hang_limit_falls_back_to_the_default(monkeypatch, value, limit_s):
    monkeypatch.setenv("PYROMETER_HANG_LIMIT_S", value)
    assert configured_hang_limit_s() == limit_s
