"""`pyrometer rebuild`: the states of a month before and after."""

from __future__ import annotations


def test_rebuild_prints_the_states_of_a_month_before_and_after(pyrometer, two_months):
    assert pyrometer("close", "2026-10", "--data", two_months).code == 0
    printed = pyrometer("rebuild", "--month", "2026-10", "--data", two_months).out
    assert "GPU-hours before" in printed
    assert "0.000 GPU-hours changed state. Its frozen charges are unaffected." in printed
    answer = pyrometer("rebuild", "--month", "2026-10", "--data", two_months, "-o", "json").json
    assert all(row["gpu_ms_before"] == row["gpu_ms_after"] > 0 for row in answer["states"])


def test_rebuild_of_a_month_without_rows_is_a_usage_error(pyrometer, two_months):
    assert "The ledger has no rows in 2026-09." in pyrometer(
        "rebuild", "--month", "2026-09", "--data", two_months
    ).failed(2)


def test_rebuild_takes_a_folder_or_a_server(pyrometer, two_months):
    error = pyrometer("rebuild", "--month", "2026-10", "--data", two_months, "--server", "http://127.0.0.1:9").failed(2)
    assert error == "Pass --data or --server, not both."
