"""Measured hours of a night: complete hours, late rows, and split activities."""

from __future__ import annotations

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.jobs import Activity
from pyrometer.simulate.measurements import Meter, _split
from pyrometer.simulate.scenarios import SCENARIOS


def test_meter_measures_each_hour_once():
    night = SCENARIOS["hang"].make(1, 80, 3)
    hours = list(Meter(night).hours())
    assert [hour.hour_ms for hour in hours] == list(range(night.from_ms, night.to_ms, MS_PER_HOUR))
    for hour in hours:
        times = hour.tables["gpu_sample"]["time_ms"].to_pylist()
        assert hour.hour_ms <= min(times) <= max(times) < hour.hour_ms + MS_PER_HOUR
        assert 0 < hour.late["gpu_sample"].num_rows < len(times) / 100


def test_running_activity_is_split_at_the_start_of_the_night():
    activities = [Activity("startup", 0, 10), Activity("steps", 10, 30), Activity("checkpoint", 30, 40)]
    assert list(_split(activities, 20)) == [
        Activity("startup", 0, 10),
        Activity("steps", 10, 20),
        Activity("steps", 20, 30),
        Activity("checkpoint", 30, 40),
    ]
    assert list(_split(activities, 10)) == activities
