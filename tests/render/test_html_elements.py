"""Elements of the HTML report: text is escaped, and values have the common formats."""

from __future__ import annotations

import pytest

from pyrometer.render.html_elements import (
    foreign_text,
    gpu_count,
    html_table,
    spaced,
    state_label,
    text_cell,
    time_ms_of,
    unbroken_duration,
    workload_name,
)


def test_cells_and_heads_escape_text():
    assert text_cell("<b>") == '<td class="n">&lt;b&gt;</td>'
    assert "&lt;i&gt;" in html_table("states", [("<i>", "n")], [text_cell("1")])


def test_foreign_text_is_escaped_and_isolated():
    assert foreign_text(["a", "<b>"]) == "<bdi>a, &lt;b&gt;</bdi>"
    assert foreign_text(None) == foreign_text("") == ""
    assert foreign_text(0) == "<bdi>0</bdi>"


def test_workload_name_allows_a_line_break_after_the_namespace():
    assert workload_name({"namespace": "ml", "name": "x"}) == "<bdi>ml</bdi>/<wbr><bdi>x</bdi>"
    assert workload_name(None) == "Unallocated"


def test_state_label_has_the_title_of_the_state():
    assert state_label("train").endswith("Training")
    assert state_label("<new>").endswith("&lt;new&gt;")


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (0.5, "0.5"), (9.95, "10"), (1234, "1,234")])
def test_gpu_count_has_one_decimal_below_ten(count, text):
    assert gpu_count(count) == text


def test_small_formats():
    assert spaced("data_stall") == "data stall"
    assert time_ms_of("1970-01-01T00:00:01+00:00") == 1000
    assert " " not in unbroken_duration(3_660_000)
