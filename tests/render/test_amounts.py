"""The unit of a report: dollars if any time has a price, GPU time otherwise."""

from __future__ import annotations

import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.render.amounts import Measure, gpu_hours


def test_measure_is_money_if_any_time_has_a_price():
    measure = Measure.of({"usd_micro": 5_000_000, "gpu_ms": 1})
    assert measure.is_money
    assert measure.amounts([{"usd_micro": 3}, {"usd_micro": None}]) == [3, 0]
    assert measure.text(5_000_000) == "$5.00"


@pytest.mark.parametrize("usd_micro", [None, 0])
def test_measure_is_gpu_time_without_a_price(usd_micro):
    measure = Measure.of({"usd_micro": usd_micro, "gpu_ms": 1})
    assert not measure.is_money
    assert measure.amounts([{"waste_gpu_ms": 7}], "waste_") == [7]
    assert measure.text(2 * MS_PER_HOUR) == "2.0 GPU-hours"


@pytest.mark.parametrize(
    ("hours", "text"), [(0, "0.0"), (0.04, "<0.1"), (0.05, "0.1"), (3.2, "3.2"), (99.94, "99.9"), (1204, "1,204")]
)
def test_gpu_hours_never_show_a_small_amount_as_zero(hours, text):
    assert gpu_hours(hours * MS_PER_HOUR) == text
