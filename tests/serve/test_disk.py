"""Failures of the disk: logged once when they begin and end, and reported without paths."""

from __future__ import annotations

import logging

import duckdb
import pytest

from pyrometer.serve.disk import UNSTORED, UNWRITTEN, Disk, reason_of


def test_failure_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    with caplog.at_level(logging.INFO, "pyrometer"):
        for _ in range(3):
            disk.failed(UNWRITTEN, OSError(28, "No space left on device", "/data/x"))
        disk.worked(UNWRITTEN)
        disk.worked(UNWRITTEN)
    assert [record.getMessage() for record in caplog.records] == [
        f"{UNWRITTEN}: No space left on device. Trying again.",
        f"{UNWRITTEN}: it works again.",
    ]
    assert disk.failures == 3


def test_shortcomings_are_the_current_failures() -> None:
    disk = Disk()
    assert disk.shortcomings() == []
    disk.failed(UNWRITTEN, OSError(5, "Input/output error"))
    disk.failed(UNSTORED, OSError(28, "No space left on device"))
    disk.worked(UNWRITTEN)
    assert disk.shortcomings() == [f"{UNSTORED}: No space left on device."]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device", "/data/x"), "No space left on device"),
        (duckdb.IOException('IO Error: {"exception_type":"IO","errno":"28"}'), "No space left on device"),
        (duckdb.IOException("IO Error: Cannot open file"), "Cannot open file"),
        (duckdb.FatalException('FATAL Error: Failed.\nOriginal error: "IO Error: Could not write"'), "Could not write"),
        (OSError(), "OSError"),
    ],
)
def test_reason_of_is_one_line_without_paths(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
