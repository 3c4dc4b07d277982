"""Answers in notebooks: tables, parameters and HTML."""

from __future__ import annotations

from pyrometer.notebook import Answer


def test_notebook_html_escapes_text():
    rows = [{"team": "<script>alert(1)</script>", "usd": 1.5, "workload": None}] * 30
    shown = Answer("cost", {"rows": rows})._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "10 more rows" in shown


def test_mixed_cells_and_absent_parts_form_a_table():
    rows = [
        {"value": 1, "culprit": {"rank": 0}},
        {"value": "one", "culprit": None},
        {"value": None, "culprit": {"node": "a"}},
    ]
    table = Answer("x", {"rows": rows}).arrow()
    assert table.to_pydict() == {
        "value": ["1", '"one"', None],
        "culprit_rank": [0, None, None],
        "culprit_node": [None, None, "a"],
    }
    assert Answer("x", {"rows": []}).arrow().num_rows == 0
