"""`why --kube` and `why --prometheus`: options that they refuse, and the time range that they read."""

from __future__ import annotations

import click
import pytest

from pyrometer.cli.command_support import ReadRequest
from pyrometer.cli.live_sources import _window
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR

NOW_MS = 1_794_600_000_000  # 2026-11-13 20:00 UTC


def window(**parameters: str) -> tuple[int, int]:
    return _window(ReadRequest(None, None, parameters, "table"), "why", Settings(), NOW_MS)


def test_window_is_the_last_twelve_hours_by_default():
    assert window() == (NOW_MS - 12 * MS_PER_HOUR, NOW_MS)


def test_window_ends_now_at_the_latest():
    assert window(since="2026-11-13 19:00", until="2026-11-14")[1] == NOW_MS


def test_window_in_the_future_is_a_usage_error():
    with pytest.raises(click.UsageError, match="in the future"):
        window(since="2026-11-15", until="2026-11-16")


def test_window_of_all_time_is_a_usage_error():
    with pytest.raises(click.UsageError, match="pass --last or --since"):
        window(all="1")


@pytest.mark.parametrize("option", ["--lake", "--server"])
def test_other_sources_cannot_be_combined_with_a_prometheus(pyrometer, option):
    error = pyrometer("why", option, "http://127.0.0.1:9", "--prometheus", "http://127.0.0.1:9").failed(2)
    assert error == f"{option} cannot be combined with --kube or --prometheus."
