"""The morning report is due once per day in every time zone, and never late."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.act.morning_report import MAX_DELAY, last_due

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns")
# Two days around each of the nights in which Berlin's, New York's and Lord Howe's clocks change.
CHANGES = (
    date(2026, 3, 29),
    date(2026, 10, 25),
    date(2026, 3, 8),
    date(2026, 11, 1),
    date(2026, 4, 5),
    date(2026, 10, 4),
)
times = st.builds(time, st.integers(0, 23), st.sampled_from((0, 15, 30, 59)))


@given(st.sampled_from(ZONES), times, st.sampled_from(CHANGES))
def test_each_day_has_one_morning_report(zone: str, at: time, change: date) -> None:
    now = datetime(change.year, change.month, change.day, tzinfo=UTC) - timedelta(days=2)
    reported: list[str] = []
    moments: list[datetime] = []
    for _ in range(4 * 24 * 4):
        due = last_due(at, ZoneInfo(zone), now)
        if due is not None:
            assert timedelta(0) <= now - due.at.astimezone(UTC) < MAX_DELAY
            if due.day not in reported:
                reported.append(due.day)
                moments.append(now)
        now += timedelta(minutes=15)
    assert reported == sorted(reported)
    days = [date.fromisoformat(day) for day in reported]
    assert all(after - before == timedelta(days=1) for before, after in pairwise(days))
    assert len(days) >= 4
    assert all(timedelta(hours=22) < after - before < timedelta(hours=26) for before, after in pairwise(moments[1:]))


@pytest.mark.parametrize(
    ("now", "day"),
    [("06:59", None), ("07:00", "2026-11-14"), ("12:59", "2026-11-14"), ("13:00", None), ("23:00", None)],
)
def test_late_server_sends_only_a_recent_report(now: str, day: str | None) -> None:
    due = last_due(time(7), UTC, datetime.fromisoformat(f"2026-11-14T{now}:00+00:00"))
    assert (due.day if due else None) == day
    late = last_due(time(23), UTC, datetime(2026, 11, 15, 1, tzinfo=UTC))
    assert late is not None
    assert late.day == "2026-11-14"
