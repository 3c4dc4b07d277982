"""Answers in notebooks: tables, parameters and HTML."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pyrometer.notebook import Answer, NotebookQueryError, _text, connect


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


def test_answer_is_a_mapping_with_its_default_table_first():
    answer = Answer("why", {"states": [{"state": "hang"}], "findings": [{"cause": "hang"}], "total": {}})
    assert answer.tables == ("findings", "states")
    assert answer["total"] == {}
    assert (len(answer), list(answer)) == (3, ["states", "findings", "total"])
    assert repr(answer) == "<why: findings (1), states (1)>"


def test_answer_without_a_table_names_the_existing_ones():
    with pytest.raises(NotebookQueryError, match="has no table 'spans'"):
        Answer("why", {"states": []}).arrow("spans")
    with pytest.raises(NotebookQueryError, match="It has: none"):
        Answer("top", {"total": 1}).arrow()


def test_answer_rows_with_columns_are_named():
    answer = Answer("charges", {"columns": ["team", "usd"], "rows": [["ml", 1.5]]})
    assert answer.arrow().to_pylist() == [{"team": "ml", "usd": 1.5}]


def test_answer_curves_have_times_and_dollars():
    table = Answer("show", {"metrics": {"loss": [[1, 60_000, 0.5, 3_600_000, 2_500_000]]}}).arrow("metrics")
    (row,) = table.to_pylist()
    assert (row["metric"], row["step"], row["usd"]) == ("loss", 1, 2.5)
    assert row["time"] == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


def test_answer_time_columns_are_timestamps():
    table = Answer("runs", {"rows": [{"started": "2026-10-08T20:00:00+02:00"}, {"started": None}]}).arrow()
    assert table["started"].to_pylist() == [datetime(2026, 10, 8, 18, tzinfo=UTC), None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "1"),
        (2.5, "2.5"),
        (["team", "state"], "team,state"),
        (datetime(2026, 10, 8, 20, tzinfo=UTC), "2026-10-08T20:00:00Z"),
    ],
)
def test_parameters_become_option_texts(value, text):
    assert _text(value) == text


def test_connect_needs_a_folder_or_a_server(monkeypatch, tmp_path):
    monkeypatch.delenv("PYROMETER_DATA", raising=False)
    with pytest.raises(NotebookQueryError, match="PYROMETER_DATA"):
        connect()
    with pytest.raises(FileNotFoundError, match="not found"):
        connect(tmp_path / "missing")
    assert repr(connect("http://localhost:1")) == "pyrometer.connect('http://localhost:1')"
