"""The text report of `why`: its content, its width, and its notes."""

from __future__ import annotations

import pytest

from pyrometer.render.why_text import MAX_FAILURES, MAX_FINDINGS, NOTHING, WIDTH, head, render_text, waits
from tests.support.why_answers import half_priced, nothing, why


@pytest.mark.parametrize("answer", [why(), why(priced=False), half_priced(), why(findings=0), why(findings=40)])
def test_text_report_fits_its_width(answer):
    text = render_text(answer)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.endswith("\n")


def test_head_shows_cost_and_waste():
    _, total, explained, energy, _ = head(why())
    assert "wasted (" in total
    assert explained.startswith("Findings explain $")
    assert energy == "412 kWh, 0.16 t CO2e"


def test_head_without_prices_is_in_gpu_hours():
    total = list(head(why(priced=False)))[1]
    assert "$" not in total
    assert "GPU-hours wasted" in total


def test_text_report_of_an_empty_window_suggests_all_data():
    assert render_text(nothing()).endswith(f"{NOTHING}\n")


def test_text_report_sums_up_smaller_findings():
    text = render_text(why(findings=40))
    assert f"in {40 - MAX_FINDINGS} smaller findings" in text


def test_text_report_limits_failed_runs():
    failure = {"name": "ml/llama", "attempt": 2, "rank": 1, "ranks": 3, "error": "ValueError"}
    text = render_text(why() | {"failures": [failure] * (MAX_FAILURES + 1)})
    assert text.count("ml/llama (attempt 2): rank 1 failed first, of 3 ranks: ValueError.") == MAX_FAILURES
    assert "and 1 failed run more" in text


def test_text_report_names_assumed_and_missing_prices():
    assert "Prices are assumed" in render_text(why() | {"prices_assumed": True})
    assert "No price is known for" in render_text(half_priced())


def test_queue_is_shown_only_if_jobs_wait_or_waited_long():
    assert waits({"waiting": 1, "waited_median_ms": None})
    assert waits({"waiting": 0, "waited_median_ms": 600_000})
    assert not waits({"waiting": 0, "waited_median_ms": 599_999})
