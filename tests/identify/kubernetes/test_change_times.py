"""Times of records that are written when an object changes, and numbers and times as objects write them."""

from __future__ import annotations

from typing import Any

import pytest

from pyrometer.identify.kubernetes.change_times import finite, iso_ms, stamped
from pyrometer.model.records import Metric

RECORD = Metric(0, "run", 1, 0, "loss", 1.0)


def test_stamped_uses_the_own_time_of_a_new_record() -> None:
    assert stamped(RECORD, None, 500, 900) == RECORD._replace(time_ms=500)


def test_stamped_uses_the_time_of_observation_without_an_own_time() -> None:
    assert stamped(RECORD, None, 0, 900) == RECORD._replace(time_ms=900)


def test_stamped_returns_none_if_only_the_time_differs() -> None:
    assert stamped(RECORD, RECORD._replace(time_ms=500), 700, 900) is None


@pytest.mark.parametrize(("own_ms", "seen_ms", "at_ms"), [(700, 900, 700), (500, 900, 900), (0, 400, 501)])
def test_stamped_is_later_than_the_previous_record(own_ms: int, seen_ms: int, at_ms: int) -> None:
    changed = stamped(RECORD._replace(value=2.0), RECORD._replace(time_ms=500), own_ms, seen_ms)
    assert changed is not None
    assert changed.time_ms == at_ms


@pytest.mark.parametrize(
    ("value", "number"), [("1.5", 1.5), (3, 3.0), ("nan", None), ("inf", None), (None, None), ("x", None), ({}, None)]
)
def test_finite_accepts_only_finite_numbers(value: Any, number: float | None) -> None:
    assert finite(value) == number


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [("1970-01-01T00:00:01Z", 1_000), ("1970-01-01T01:00:00.5+01:00", 500), ("soon", None), (None, None), (5, None)],
)
def test_iso_ms_reads_iso_times_only(text: Any, at_ms: int | None) -> None:
    assert iso_ms(text) == at_ms
