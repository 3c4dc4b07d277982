"""`pyrometer runs`: one row per run."""

from __future__ import annotations


def test_runs_prints_one_row_per_run(cached_pyrometer, recorded):
    heading, row = cached_pyrometer("runs", "--data", recorded).lines
    assert heading.split()[0] == "run"
    assert row.split()[:3] == ["recording-a", "a", "recording"]
    assert "2,273" in row
    assert "$0.57" in row


def test_runs_without_runs_names_the_cost_command(cached_pyrometer, recorded_without_steps):
    result = cached_pyrometer("runs", "--data", recorded_without_steps)
    assert (result.code, result.err) == (0, "")
    assert "pyrometer cost --by workload" in result.out
