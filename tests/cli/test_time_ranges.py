"""The time range of a query: `--last`, `--since` and `--until`, `--month`, `--all`, in a time zone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.time_range import TimeRangeError, time_range_of, zone_of

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Kiritimati")
COVERED = LedgerCoverage(1_700_000_040_000, 1_700_360_040_000, 0)  # whole minutes, a hundred hours
FIRST, NEWEST = "2025-10-25T22:00:00Z", "2025-10-27T04:00:00Z"  # of the folder `autumn`


def window(last=None, since=None, until=None, month=None, everything=False, zone="UTC", default_last="12h"):
    return time_range_of(last, since, until, month, everything, zone_of(zone), default_last)(COVERED)


# -- laws -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5_000), st.sampled_from("smhdw"))
def test_last_ends_with_the_newest_minute(number, unit):
    length = number * {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}[unit] * 1000
    if length > 36_500 * 86_400_000:
        with pytest.raises(TimeRangeError):
            window(last=f"{number}{unit}")
        return
    time_range = window(last=f"{number}{unit}")
    assert time_range.to_ms == COVERED.end_ms
    assert 0 <= time_range.to_ms - time_range.from_ms - length < 60_000  # seconds make whole minutes, rounded up
    assert time_range.from_ms % 60_000 == 0


@given(st.integers(1971, 2100), st.integers(1, 12), st.sampled_from(ZONES))
def test_months_are_contiguous(year, month, zone):
    this = window(month=f"{year}-{month:02d}", zone=zone)
    following = window(month=f"{year + month // 12}-{month % 12 + 1:02d}", zone=zone)
    assert this.to_ms == following.from_ms
    first = datetime.fromtimestamp(this.from_ms / 1000, ZoneInfo(zone))
    assert (first.year, first.month, first.day, first.hour, first.minute) == (year, month, 1, 0, 0)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.sampled_from(ZONES))
def test_since_is_read_in_the_time_zone(moment, zone):
    time_range = window(since=moment.isoformat(), zone=zone)
    there = moment.replace(tzinfo=ZoneInfo(zone))
    assert 0 <= there.timestamp() * 1000 - time_range.from_ms < 61_000
    assert time_range.from_ms % 60_000 == 0
    assert time_range.to_ms >= time_range.from_ms


# -- examples ---------------------------------------------------------------------------------------------------------


def test_until_without_since_has_the_default_length():
    time_range = window(until="2023-11-15")
    assert time_range.to_ms - time_range.from_ms == 12 * 3_600_000
    time_range = window(until="2023-11-15", default_last=None)
    assert time_range.from_ms == COVERED.from_ms


def test_last_with_until_ends_at_until():
    time_range = window(last="2h", until="2023-11-15T12:00")
    assert time_range.to_ms == 1_700_049_600_000
    assert time_range.to_ms - time_range.from_ms == 7_200_000


def test_time_with_an_offset_ignores_the_zone():
    assert window(since="2023-11-15T12:00:00+05:00", zone="Europe/Berlin").from_ms == 1_700_031_600_000


def test_last_ends_with_the_newest_accounted_minute_not_now(cached_pyrometer, autumn):
    for name in ("why", "cost"):
        assert cached_pyrometer(name, "--data", autumn, "--last", "90m", "-o", "json").json["window"] == {
            "from": "2025-10-27T02:30:00Z",
            "to": NEWEST,
        }


def test_why_and_cost_default_to_twelve_hours(cached_pyrometer, autumn):
    for name in ("why", "cost"):
        assert cached_pyrometer(name, "--data", autumn, "-o", "json").json["window"] == {
            "from": "2025-10-26T16:00:00Z",
            "to": NEWEST,
        }


def test_runs_and_show_default_to_all_time(cached_pyrometer, recorded):
    rows = cached_pyrometer("runs", "--data", recorded, "-o", "json").json["rows"]
    assert rows == cached_pyrometer("runs", "--data", recorded, "--all", "-o", "json").json["rows"]
    assert cached_pyrometer("runs", "--data", recorded, "--until", "2026-11-15 06:00", "-o", "json").json == {
        "rows": []
    }
    assert cached_pyrometer("show", "recording-a", "--data", recorded, "--month", "2026-10").failed(1)


def test_all_covers_the_first_to_the_newest_minute(cached_pyrometer, autumn):
    answer = cached_pyrometer("cost", "--data", autumn, "--all", "-o", "json").json
    assert answer["window"] == {"from": FIRST, "to": NEWEST}
    assert answer["total"]["gpu_ms"] == 3 * 30 * 3_600_000


def test_since_and_until_cut_exactly(cached_pyrometer, autumn):
    day = cached_pyrometer(
        "cost", "--data", autumn, "--since", "2025-10-26", "--until", "2025-10-27", "-o", "json"
    ).json
    assert day["window"] == {"from": "2025-10-26T00:00:00Z", "to": "2025-10-27T00:00:00Z"}
    assert day["total"]["gpu_ms"] == 3 * 24 * 3_600_000
    minute = cached_pyrometer(
        "cost", "--data", autumn, "--since", "2025-10-26 01:00", "--until", "2025-10-26 01:01", "-o", "json"
    ).json
    assert minute["total"]["gpu_ms"] == 3 * 60_000


def test_adjacent_time_ranges_add_up_to_the_total(cached_pyrometer, autumn):
    def total(*arguments):
        return cached_pyrometer("cost", "--data", autumn, *arguments, "-o", "json").json["total"]["gpu_ms"]

    cut = "2025-10-26 07:31"
    assert total("--until", cut, "--since", "2025-10-25") + total("--since", cut) == total("--all")


def test_time_range_without_data_is_an_empty_answer(cached_pyrometer, autumn):
    answer = cached_pyrometer("cost", "--data", autumn, "--month", "2024-01", "-o", "json").json
    assert answer["rows"] == []
    assert answer["total"]["gpu_ms"] == 0
    for name in ("why", "cost", "runs"):
        assert cached_pyrometer(name, "--data", autumn, "--month", "2024-01").code == 0


def test_month_is_a_month_of_the_time_zone(cached_pyrometer, autumn):
    answer = cached_pyrometer(
        "cost", "--data", autumn, "--month", "2025-10", "--tz", "Europe/Berlin", "-o", "json"
    ).json
    assert answer["window"] == {"from": "2025-10-01T00:00:00+02:00", "to": "2025-11-01T00:00:00+01:00"}
    assert answer["total"]["gpu_ms"] == 3 * 30 * 3_600_000


def test_day_when_summer_time_ends_has_25_hours(cached_pyrometer, autumn):
    answer = cached_pyrometer(
        "cost", "--data", autumn, "--all", "--by", "day", "--tz", "Europe/Berlin", "-o", "json"
    ).json
    assert [(row["day"], row["gpu_ms"] // 3_600_000) for row in answer["rows"]] == [
        ("2025-10-26", 3 * 25),
        ("2025-10-27", 3 * 5),
    ]


@pytest.fixture
def autumn_hours(cached_pyrometer, autumn):
    """The local hours of the folder in the answer of `cost`."""
    answer = cached_pyrometer(
        "cost", "--data", autumn, "--all", "--by", "hour", "--tz", "Europe/Berlin", "-o", "json"
    ).json
    assert {row["gpu_ms"] for row in answer["rows"]} == {3 * 3_600_000}
    return [row["hour"] for row in answer["rows"]]


def test_repeated_hour_is_two_rows(autumn_hours):
    assert len(autumn_hours) == len(set(autumn_hours)) == 30
    assert {"2025-10-26T02:00+02:00", "2025-10-26T02:00+01:00"} < set(autumn_hours)


def test_hours_are_in_chronological_order(autumn_hours):
    assert autumn_hours == sorted(autumn_hours, key=datetime.fromisoformat)


def test_hours_of_a_zone_with_a_fractional_offset_are_local_hours(cached_pyrometer, autumn):
    answer = cached_pyrometer(
        "cost", "--data", autumn, "--all", "--by", "hour", "--tz", "Asia/Kathmandu", "-o", "json"
    ).json
    assert all(row["hour"].endswith(":00+05:45") for row in answer["rows"])
    assert [row["gpu_ms"] // 60_000 for row in answer["rows"]] == [3 * 15, *[3 * 60] * 29, 3 * 45]


def test_times_in_answers_are_in_the_time_zone(cached_pyrometer, recorded):
    there = cached_pyrometer("why", "--data", recorded, "--all", "--tz", "Asia/Tokyo", "-o", "json").json
    here = cached_pyrometer("why", "--data", recorded, "--all", "-o", "json").json
    assert there["timezone"] == "Asia/Tokyo"
    for one, other in zip(there["findings"], here["findings"], strict=True):
        assert one["from"].endswith("+09:00")
        assert datetime.fromisoformat(one["from"]) == datetime.fromisoformat(other["from"])
    assert "15:16" in cached_pyrometer("why", "--data", recorded, "--all", "--tz", "Asia/Tokyo").out


def test_time_range_does_not_cut_findings(cached_pyrometer, recorded):
    """A finding covers the time that its GPUs were held, even beyond the end of the query."""
    month = cached_pyrometer("why", "--data", recorded, "--month", "2026-11", "-o", "json").json
    everything = cached_pyrometer("why", "--data", recorded, "--all", "-o", "json").json
    assert [(f["cause"], f["from"], f["to"], f["gpu_ms"]) for f in month["findings"]] == [
        (f["cause"], f["from"], f["to"], f["gpu_ms"]) for f in everything["findings"]
    ]


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--last", "12"), "'12'"),
        (("--last", "0h"), "'0h'"),
        (("--last", "-1h"), "'-1h'"),
        (("--last", "soon"), "'soon'"),
        (("--last", "1.5h"), "'1.5h'"),
        (("--last", "999999d"), "'999999d'"),
        (("--last", "99999999999999d"), "'99999999999999d'"),
        (("--since", "tomorrow"), "'tomorrow'"),
        (("--since", "2026-02-30"), "'2026-02-30'"),
        (("--since", "0001-01-01"), "'0001-01-01'"),
        (("--until", "now"), "'now'"),
        (("--until", "9999-12-31"), "'9999-12-31'"),
        (("--month", "2026-13"), "'2026-13'"),
        (("--month", "october"), "'october'"),
        (("--month", "9999-12"), "'9999-12'"),
        (("--month", "0001-01"), "'0001-01'"),
        (("--tz", "Mars/Olympus"), "'Mars/Olympus'"),
        (("--tz", "Europe"), "'Europe'"),  # a folder of zones
        (("--tz", "../../etc/passwd"), "passwd"),
        (("--price", "cheap"), "'cheap'"),
        (("--price", "-1"), "'-1'"),
        (("--price", "nan"), "'nan'"),
        (("--price", "inf"), "'inf'"),
        (("--price", "1e99"), "'1e99'"),
        (("--price", ""), "''"),
        (("--since", "2026-11-02", "--until", "2026-11-01"), "'2026-11-01'"),
        (("--since", "2026-11-02", "--until", "2026-11-02"), "'2026-11-02'"),
        (("--last", "1h", "--since", "2026-11-01"), "one time range"),
        (("--last", "1h", "--month", "2026-11"), "one time range"),
        (("--last", "1h", "--all"), "one time range"),
        (("--since", "2026-11-01", "--month", "2026-11"), "one time range"),
        (("--since", "2026-11-01", "--all"), "one time range"),
        (("--month", "2026-11", "--all"), "one time range"),
        (("--month", "2026-11", "--until", "2026-11-20"), "one time range"),
        (("--until", "2026-11-20", "--all"), "one time range"),
    ],
)
def test_invalid_time_or_price_is_a_usage_error(pyrometer, autumn, arguments, named):
    assert named in pyrometer("cost", "--data", autumn, *arguments).failed(2)


def test_last_accepts_a_century(pyrometer, autumn):
    assert pyrometer("cost", "--data", autumn, "--last", "36500d", "-o", "json").json["total"]["gpu_hours"] == 90
    assert pyrometer("why", "--data", autumn, "--last", "36500d").code == 0
    assert timedelta(days=36_500) > timedelta(days=99 * 365)


def test_time_range_without_data_prints_a_sentence(cached_pyrometer, autumn):
    for command in ("why", "cost"):
        result = cached_pyrometer(command, "--data", autumn, "--month", "2024-02")
        assert result.lines[-1] == "No GPU time is recorded in this time range. Use --all for all recorded data."
        assert "$" not in result.out
        assert "no waste" not in result.out
    assert cached_pyrometer("cost", "--data", autumn, "--month", "2024-02", "-o", "json").json["rows"] == []


def test_export_prints_the_file_with_its_rows_and_dollars(cached_pyrometer, autumn, tmp_path):
    for name in ("charges.csv", "charges.parquet"):
        result = cached_pyrometer("export", "csv", "--data", autumn, "--all", "--price", "2", "--out", tmp_path / name)
        assert result.out == ""
        assert re.fullmatch(rf"\d+ rows?, \$[\d,.]+: .*/{name}\n", result.err)
