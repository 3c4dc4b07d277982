"""Answers as files: formats and file names."""

from __future__ import annotations

import json

import pytest

from pyrometer.serve.http.downloads import DOWNLOADS, PARQUET, Download, file_name

WINDOW = {"window": {"from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"}}


def test_file_name_of_a_bill_has_its_time_range() -> None:
    assert file_name("csv", WINDOW, "csv") == "pyrometer-csv-2026-11-01T000000Z-2026-12-01T000000Z.csv"


@pytest.mark.parametrize("run", ['a"; rm -rf /', "../../etc/passwd", "a\r\nX-Header: y", "x" * 500])
def test_file_name_has_no_characters_to_quote(run: str) -> None:
    name = file_name("perfetto", {"run": run, "step": 7}, "json")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-")
    assert name.startswith("pyrometer-perfetto-")
    assert name.endswith(".json")
    assert len(name) < 150


@pytest.mark.parametrize(("form", "suffix"), [("csv", "csv"), ("focus", "csv"), ("perfetto", "json")])
def test_default_format_is_text(form: str, suffix: str) -> None:
    _, kind, written = DOWNLOADS[form].written_as(None)
    assert written == suffix
    assert kind == ("application/json" if suffix == "json" else "text/csv")


def test_tables_are_available_as_parquet_and_traces_are_not() -> None:
    assert {form for form in DOWNLOADS if DOWNLOADS[form].written_as(PARQUET)[2] == PARQUET} == {"csv", "focus"}


def test_text_is_written_piece_by_piece() -> None:
    download = Download("cost", lambda answer: iter([json.dumps(answer), "\n"]), lambda answer: "x")
    pieces, kind, suffix = download.written_as("csv")
    assert list(pieces({"a": 1})) == ['{"a": 1}', "\n"]
    assert (kind, suffix) == ("text/csv", "csv")
