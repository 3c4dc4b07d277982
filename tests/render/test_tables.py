"""Tables in terminals: only optional columns are dropped, in their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.render.tables import GAP, fitting, print_table

COLUMNS = ("run", "team", "steps", "cost", "goodput")


@given(
    st.lists(st.integers(1, 30), min_size=5, max_size=5),
    st.permutations(["team", "steps", "goodput"]),
    st.integers(10, 120),
)
def test_table_drops_only_optional_columns_and_only_as_needed(widths, spare, room):
    shown = fitting(COLUMNS, widths, spare, room)
    left_out = [COLUMNS[i] for i in range(5) if i not in shown]

    def width(columns):
        return sum(widths[i] for i in columns) + GAP * (len(columns) - 1)

    assert set(left_out) == set(spare[: len(left_out)])  # in the given order
    assert width(shown) <= room or len(left_out) == len(spare)
    if left_out:
        last = COLUMNS.index(spare[len(left_out) - 1])
        assert width([*shown, last]) > room


def test_table_in_a_pipe_has_all_columns():
    assert fitting(COLUMNS, [50] * 5, ["team"], None) == [0, 1, 2, 3, 4]


def test_table_aligns_names_left_and_figures_right(capsys):
    rows = [["a", None, 1], [{"namespace": "ml", "name": "x", "kind": "Job"}, "b", 10_000], ["total", "", 10_001]]
    print_table(["name", "more", "figure"], rows, figures=1, foot=True)
    assert capsys.readouterr().out.splitlines() == [
        "name        more  figure",
        "a           –          1",
        "ml/x (Job)  b      10000",
        "──────────  ────  ──────",
        "total              10001",
    ]


def test_empty_table_has_headings(capsys):
    print_table(["name", "figure"], [], figures=1)
    assert capsys.readouterr().out == "name  figure\n"
