"""Curves in text: axes and lines at any width, with and without Unicode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.render.curves import ASCII, BRAILLE, HEIGHT, Axis, Curve, draw, glyphs_for, round_axis
from pyrometer.render.why_text import plain

number = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-6)


def written(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"


@given(number, number, st.integers(1, 20))
def test_axis_covers_its_values_with_distinct_round_ticks(a, b, most):
    low, high = sorted((a, b))
    axis = round_axis(low, high, most, written)
    slack = 1e-6 * axis.every
    assert axis.low <= low + slack
    assert axis.high >= high - slack
    marks = [axis.written(mark) for mark in axis.marks()]
    assert 2 <= len(marks) <= most + 3
    assert len(set(marks)) == len(marks)
    assert f"{axis.every:.0e}"[0] in "125"


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-5, 5)), min_size=1, max_size=30), st.integers(60, 200))
def test_curves_fit_the_terminal_width(points, width):
    x, y = round_axis(0, 10, 5, written), round_axis(-2, 2, 5, written)
    for glyphs in (BRAILLE, ASCII):
        lines = list(
            draw([Curve(points, "a", points[-1])], x, y, width=width, glyphs=glyphs, style=plain, line=(1, "one"))
        )
        assert len(lines) == HEIGHT + 2
        assert max(map(len, lines)) <= width


def test_falling_curve_in_ascii():
    x, y = Axis(0, 10, 5, "{:g}".format), Axis(0, 2, 1, "{:g}".format)
    lines = list(draw([Curve([(0, 2), (10, 0)], "A", (10, 0))], x, y, width=30, glyphs=ASCII, style=plain))
    assert lines[0].startswith(" 2+.")
    assert lines[HEIGHT - 1].endswith("A")
    assert lines[-2].count("+") == 4  # the corner and three marks
    assert lines[-1].split() == ["0", "5", "10"]
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize(
    ("encoding", "glyphs"), [("utf-8", BRAILLE), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII)]
)
def test_glyphs_follow_the_encoding_of_the_terminal(encoding, glyphs):
    assert glyphs_for(encoding) == glyphs
