"""CSV: text round trips, formulas become text, and large tables are rendered in chunks."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.export.csv import FORMULA_PREFIXES, dollars, render_csv


@given(st.lists(st.lists(st.text() | st.integers() | st.none(), min_size=2, max_size=4), max_size=5))
def test_csv_round_trips_any_text_without_formulas(rows: list[list[Any]]) -> None:
    read_again = list(csv.reader(io.StringIO("".join(render_csv(rows)), newline="")))
    assert len(read_again) == len(rows)
    for row, again in zip(rows, read_again, strict=True):
        for cell, text in zip(row, again, strict=True):
            if isinstance(cell, str) and cell.startswith(FORMULA_PREFIXES):
                assert text == f"'{cell}"
            else:
                assert text == ("" if cell is None else str(cell))


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_marks_formulas_as_text(cell: str) -> None:
    assert next(csv.reader(io.StringIO("".join(render_csv([[cell]])), newline=""))) == [f"'{cell}"]


def test_csv_is_rendered_in_chunks() -> None:
    pieces = list(render_csv([number] for number in range(2_500)))
    assert [piece.count("\n") for piece in pieces] == [1_000, 1_000, 500]


@given(st.integers(0, 10**18))
def test_dollars_keep_every_digit(usd_micro: int) -> None:
    assert Decimal(dollars(usd_micro)) * 1_000_000 == usd_micro
