"""Times, amounts and workloads in the JSON of answers."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

from pyrometer.account.query.answer_json import iso, time_and_money, time_range_json, total, workload_json
from pyrometer.account.query.sums import Sum
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_HOUR

NOVEMBER_MS = 1_793_491_200_000  # 2026-11-01T00:00Z


def test_iso_writes_the_offset_and_no_empty_milliseconds() -> None:
    assert iso(NOVEMBER_MS, UTC) == "2026-11-01T00:00:00Z"
    assert iso(NOVEMBER_MS + 7, UTC) == "2026-11-01T00:00:00.007Z"
    assert iso(NOVEMBER_MS, ZoneInfo("Europe/Berlin")) == "2026-11-01T01:00:00+01:00"


def test_time_range_json_has_start_and_end() -> None:
    assert time_range_json(TimeRange(NOVEMBER_MS, NOVEMBER_MS + MS_PER_HOUR), UTC) == {
        "from": "2026-11-01T00:00:00Z",
        "to": "2026-11-01T01:00:00Z",
    }


def test_workload_json_is_none_without_a_uid() -> None:
    assert workload_json(None, "Job", "ml", "llama") is None
    assert workload_json("u", "Job", "ml", "llama") == {"uid": "u", "kind": "Job", "namespace": "ml", "name": "llama"}


def test_time_and_money_keeps_an_unknown_price() -> None:
    assert time_and_money(MS_PER_HOUR, None) == {
        "gpu_ms": MS_PER_HOUR,
        "gpu_hours": 1.0,
        "usd_micro": None,
        "usd": None,
    }


def test_total_adds_money_and_time_without_a_price() -> None:
    priced = Sum(("a",), MS_PER_HOUR, 2_500_000 * MS_PER_HOUR, 0)
    unpriced = Sum(("b",), MS_PER_HOUR, 0, MS_PER_HOUR)
    whole = total([priced, unpriced])
    assert (whole["gpu_ms"], whole["usd"], whole["unpriced_gpu_ms"]) == (2 * MS_PER_HOUR, 2.5, MS_PER_HOUR)
    assert total([unpriced])["usd_micro"] is None
