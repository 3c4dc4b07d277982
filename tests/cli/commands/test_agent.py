"""`pyrometer agent`: its options. tests/agent runs it."""

from __future__ import annotations

import click
import pytest

from pyrometer.cli.commands.agent import _seconds


@pytest.mark.parametrize(("length", "seconds"), [("100ms", 0.1), ("1s", 1.0), ("2.5s", 2.5), ("5m", 300.0)])
def test_seconds_parses_a_duration(length, seconds):
    assert _seconds(length) == pytest.approx(seconds)


@pytest.mark.parametrize("length", ["", "1", "99ms", "301s", "-1s", "1h", "1 s", "1e1s"])
def test_seconds_refuses_other_durations(length):
    with pytest.raises(click.UsageError, match="is not a duration from 100ms to 5m, like 1s"):
        _seconds(length)


def test_agent_refuses_an_address_without_a_port(pyrometer):
    error = pyrometer("agent", "--listen", "localhost").failed(2)
    assert error.startswith("--listen 'localhost' is not HOST:PORT")
