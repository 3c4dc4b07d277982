"""Time ranges from options, in a time zone."""

from __future__ import annotations

from datetime import UTC, date
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.time_range import (
    TimeRange,
    TimeRangeError,
    midnight_ms,
    month_of,
    month_range,
    time_ms,
    time_range_of,
    zone_name,
    zone_of,
)
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

BERLIN = ZoneInfo("Europe/Berlin")
NOVEMBER_MS = 1_793_491_200_000  # 2026-11-01T00:00Z
COVERED = LedgerCoverage(NOVEMBER_MS, NOVEMBER_MS + 10 * MS_PER_DAY, 0)


def selected(**options: Any) -> TimeRange:
    given = dict.fromkeys(("last", "since", "until", "month")) | {"everything": False, "default_last": "7d"} | options
    return time_range_of(zone=UTC, **given)(COVERED)


def test_time_range_without_options_is_the_default_length_before_the_end() -> None:
    assert selected() == (COVERED.end_ms - 7 * MS_PER_DAY, COVERED.end_ms)


@pytest.mark.parametrize(
    ("last", "length_ms"),
    [("90m", 90 * MS_PER_MINUTE), ("12h", 12 * MS_PER_HOUR), ("1w", 7 * MS_PER_DAY), ("61s", 2 * MS_PER_MINUTE)],
)
def test_last_selects_a_length_in_whole_minutes(last: str, length_ms: int) -> None:
    assert selected(last=last) == (COVERED.end_ms - length_ms, COVERED.end_ms)


@pytest.mark.parametrize("last", ["", "0h", "h", "-3h", "3 months", "1.5h"])
def test_last_refuses_invalid_lengths(last: str) -> None:
    with pytest.raises(TimeRangeError, match="is not a length of time"):
        selected(last=last, default_last="")


@pytest.mark.parametrize("last", ["36501d", "9" * 5_000 + "s"])
def test_last_refuses_too_long_lengths(last: str) -> None:
    with pytest.raises(TimeRangeError, match="is too long"):
        selected(last=last)


def test_since_and_until_select_their_minutes() -> None:
    assert selected(since="2026-11-02", until="2026-11-03 00:00:59") == (
        NOVEMBER_MS + MS_PER_DAY,
        NOVEMBER_MS + 2 * MS_PER_DAY,
    )


def test_since_after_the_coverage_gives_an_empty_range() -> None:
    assert selected(since="2027-01-01").is_empty


def test_until_before_since_is_refused() -> None:
    with pytest.raises(TimeRangeError, match="is not after --since"):
        selected(since="2026-11-03", until="2026-11-02")


def test_all_selects_the_coverage_of_the_ledger() -> None:
    assert selected(everything=True) == (COVERED.from_ms, COVERED.end_ms)


@pytest.mark.parametrize(
    "options",
    [
        {"last": "1h", "month": "2026-11"},
        {"last": "1h", "since": "2026-11-01"},
        {"everything": True} | {"until": "2026-11-02"},
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TimeRangeError, match="Choose one time range"):
        selected(**options)


def test_month_range_follows_the_clock_change() -> None:
    from_ms, to_ms = month_range("2026-10", BERLIN)
    assert to_ms - from_ms == 31 * MS_PER_DAY + MS_PER_HOUR


def test_month_range_of_december_ends_with_the_year() -> None:
    assert month_range("2026-12", UTC).to_ms == midnight_ms(date(2027, 1, 1), UTC)


@pytest.mark.parametrize("text", ["2026-13", "October", "2026-10-01", "0001-01", "9999-12"])
def test_month_of_refuses_other_texts(text: str) -> None:
    with pytest.raises(TimeRangeError, match="is not a month"):
        month_of(text, UTC)


def test_time_ms_uses_the_offset_of_the_text_before_the_zone() -> None:
    assert time_ms("2026-11-01T01:00+01:00", UTC) == time_ms("2026-11-01T01:00", BERLIN) == NOVEMBER_MS


@pytest.mark.parametrize("text", ["yesterday", "0001-01-01", "9999-12-31", "2026-02-30"])
def test_time_ms_refuses_other_texts(text: str) -> None:
    with pytest.raises(TimeRangeError, match="is not a time"):
        time_ms(text, UTC)


@pytest.mark.parametrize("name", ["Europe", "Mars/Base", "../etc/passwd"])
def test_zone_of_refuses_unknown_names(name: str) -> None:
    with pytest.raises(TimeRangeError, match="There is no time zone"):
        zone_of(name)


def test_zone_name_is_read_by_zone_of() -> None:
    assert zone_of(zone_name(BERLIN)) == BERLIN
    assert zone_of("utc") is UTC
    assert zone_name(UTC) == "UTC"
