"""Local hours, days and months of quarters of an hour."""

from __future__ import annotations

from datetime import date, datetime, tzinfo
from zoneinfo import ZoneInfo

from pyrometer.account.query.quarters import label_quarters
from pyrometer.account.query.time_range import TimeRange, midnight_ms
from pyrometer.model.units import MS_PER_HOUR
from tests.support.histories import folder

BERLIN = ZoneInfo("Europe/Berlin")


def labels(time_range: TimeRange, zone: tzinfo, column: str) -> list[str]:
    """The labels of a time range in order, each once."""
    with folder() as store:
        label_quarters(store, time_range, zone)
        query = f"SELECT {column}_label FROM quarter_label GROUP BY ALL ORDER BY min({column}_first)"
        return [label for (label,) in store.connection.execute(query).fetchall()]


def test_a_repeated_hour_has_two_labels() -> None:
    from_ms = midnight_ms(date(2026, 10, 25), BERLIN) + 2 * MS_PER_HOUR
    assert labels(TimeRange(from_ms, from_ms + 3 * MS_PER_HOUR), BERLIN, "hour") == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T03:00+01:00",
    ]


def test_a_quarter_has_the_day_in_which_it_starts() -> None:
    midnight = midnight_ms(date(2026, 11, 1), BERLIN)
    around = TimeRange(midnight - 1, midnight + 1)
    assert labels(around, BERLIN, "day") == ["2026-10-31", "2026-11-01"]
    assert labels(around, BERLIN, "month") == ["2026-10", "2026-11"]


def test_zones_with_half_hours_start_their_own_hours() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    from_ms = round(datetime(2026, 11, 1, 10, 0, tzinfo=kolkata).timestamp() * 1000)
    assert labels(TimeRange(from_ms, from_ms + MS_PER_HOUR), kolkata, "hour") == ["2026-11-01T10:00+05:30"]
