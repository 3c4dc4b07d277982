"""Bars on a time axis: every column shows its longest kind, within the width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.render.gantt import Bar, BarStyle, GanttRow, gantt, length_ticks
from pyrometer.render.why_text import plain

TRAIN, SAVE = BarStyle("t", "green", "training"), BarStyle("k", "blue", "checkpoint")


def drawn(bars: list[Bar], *, end: float = 100.0, width: int = 60, keep_short: bool = False) -> list[str]:
    rows = [GanttRow("run", bars, "done")]
    return list(gantt(rows, 0.0, end, width=width, style=plain, ticks=length_ticks, keep_short=keep_short))


def test_gantt_draws_axis_bars_and_legend():
    axis, line, legend = drawn([Bar(TRAIN, 0, 50), Bar(SAVE, 50, 100)])
    assert "0 ms" in axis
    assert line.startswith("run tttt")
    assert line.endswith("kkkk done")
    assert abs(line.count("t") - line.count("k")) <= 1
    assert legend.split() == ["t", "training", "k", "checkpoint"]


def test_gantt_shows_short_bars_only_on_request():
    bars = [Bar(TRAIN, 0, 100), Bar(SAVE, 50, 50.1)]
    assert "k" not in drawn(bars)[1]
    assert drawn(bars, keep_short=True)[1].count("k") == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=9), st.integers(60, 200))
def test_gantt_fits_its_width(edges, width):
    bars = [Bar(TRAIN, min(edge), max(edge)) for edge in edges]
    assert all(len(line) <= width for line in drawn(bars, width=width))


def test_gantt_row_without_bars_is_a_remark():
    rows = [GanttRow("run", [Bar(TRAIN, 0, 1)]), GanttRow("… 9 ranks …")]
    assert "… 9 ranks …" in list(gantt(rows, 0.0, 1.0, width=60, style=plain, ticks=length_ticks))


@given(st.floats(0.001, 1e8), st.integers(1, 20))
def test_length_ticks_start_at_zero_and_do_not_exceed_the_end(end, count):
    ticks = length_ticks(0.0, end, count)
    assert ticks[0] == (0.0, ticks[0][1])
    assert ticks[0][1].endswith(" ms")
    assert all(at <= end * 1.000001 for at, _ in ticks)
