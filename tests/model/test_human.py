"""Numbers in texts: small amounts are not zero, and every surface has one format."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.model.human import date, date_time, dollars, hours, percent, ratio, wrapped
from tests.support.money_texts import AMOUNT_TEXTS, SHARE_TEXTS


@pytest.mark.parametrize(("usd_micro", "written"), AMOUNT_TEXTS)
def test_money_has_one_format(usd_micro, written):
    """tests/browser/test_format.py compares the page with the same table."""
    assert dollars(usd_micro) == written


@given(st.integers(-(10**15), 10**15))
def test_money_is_rounded_to_the_nearest_and_halves_away_from_zero(usd_micro):
    written = dollars(usd_micro)
    assert written.startswith("−") == (usd_micro < 0)
    assert dollars(-usd_micro).lstrip("−") == written.lstrip("−")
    if "<" not in written:
        unit = 10_000 if "." in written else 1_000_000
        shown = round(float(written.lstrip("−$").replace(",", "")) * 1_000_000)
        assert -unit < 2 * (shown - abs(usd_micro)) <= unit


@pytest.mark.parametrize(("part", "whole", "written"), SHARE_TEXTS)
def test_shares_have_one_format(part, whole, written):
    """tests/browser/test_format.py compares the page with the same table."""
    assert percent(part, whole) == written
    assert ratio(part / whole) == written


@pytest.mark.parametrize(
    ("gpu_ms", "text"), [(0, "0.0 GPU-minutes"), (900, "0.9 GPU-seconds"), (60_000, "1.0 GPU-minutes")]
)
def test_gpu_time_uses_a_unit_that_shows_its_size(gpu_ms, text):
    assert hours(gpu_ms) == text


@given(st.lists(st.sampled_from(["12%", "the", "SDK", "a-long-word,", "100%."]), min_size=1), st.integers(12, 40))
def test_wrapped_text_keeps_every_word(words, width):
    lines = wrapped(" ".join(words), width)
    assert " ".join(lines) == " ".join(words)
    assert all(len(line) <= width and not line.startswith("%") for line in lines)


def test_dates_have_one_format():
    """tests/browser/test_format.py compares the page with the same functions."""
    at = datetime(2026, 10, 8, 14, 5, 9, tzinfo=UTC)
    assert (date(at), date(at, year=True)) == ("Oct 8", "Oct 8, 2026")
    assert date_time(at) == "Oct 8, 14:05"
    assert date_time(at, year=True, seconds=True) == "Oct 8, 2026, 14:05:09"
