"""Figures as people read them: little is not nothing, and a percent sign stays with its figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.explain.words import dollars, hours, wrapped


@pytest.mark.parametrize(
    ("usd_micro", "said"),
    [(None, "unpriced"), (0, "$0.00"), (1, "<$0.01"), (4_999, "<$0.01"), (5_000, "$0.01"), (-24_000_000, "−$24")],
)
def test_a_price_that_is_not_nothing_is_never_called_nothing(usd_micro, said):
    assert dollars(usd_micro) == said


@pytest.mark.parametrize(
    ("gpu_ms", "said"), [(0, "0.0 GPU-minutes"), (900, "0.9 GPU-seconds"), (60_000, "1.0 GPU-minutes")]
)
def test_gpu_time_is_in_a_unit_that_shows_it(gpu_ms, said):
    assert hours(gpu_ms) == said


@given(st.lists(st.sampled_from(["12 %", "the", "SDK", "a-long-word,", "100 %."]), min_size=1), st.integers(12, 40))
def test_no_line_begins_with_a_percent_sign_and_no_word_is_lost(words, width):
    lines = wrapped(" ".join(words), width)
    assert " ".join(lines) == " ".join(words)
    assert all(len(line) <= width and not line.startswith("%") for line in lines)
