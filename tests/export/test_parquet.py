"""Parquet: typed columns, unchanged text, and chunks."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

from pyrometer.export.csv import dollars
from pyrometer.export.parquet import render_parquet


def test_parquet_is_rendered_in_chunks_with_unchanged_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrometer.export.parquet.ROWS_PER_CHUNK", 10)
    rows: list[list[Any]] = [["name", "usd"], *(["=1+1", dollars(-number)] for number in range(25))]
    pieces = list(render_parquet(rows, {"usd": "money"}))
    assert len(pieces) == 4
    assert all(pieces)
    table = pq.read_table(io.BytesIO(b"".join(pieces)))
    assert table.column("name").to_pylist() == ["=1+1"] * 25
    assert sum(table.column("usd").to_pylist()) == Decimal("-0.0003")
    empty = pq.read_table(io.BytesIO(b"".join(render_parquet(rows[:1], {"usd": "money"}))))
    assert (empty.num_rows, empty.column_names) == (0, ["name", "usd"])


def test_parquet_columns_have_their_types():
    kinds = {"usd": "money", "hours": "quantity", "gpus": "whole", "share": "number", "from": "time", "day": "day"}
    rows = [[*kinds, "team"], ["1.5", "0.25", 8, 0.5, "2026-10-08T20:00:00+00:00", "2026-10-08", "ml"], [None] * 7]
    table = pq.read_table(io.BytesIO(b"".join(render_parquet(rows, kinds))))
    assert {field.name: str(field.type) for field in table.schema} == {
        "usd": "decimal128(38, 6)",
        "hours": "decimal128(38, 12)",
        "gpus": "int64",
        "share": "double",
        "from": "timestamp[ms, tz=UTC]",
        "day": "date32[day]",
        "team": "string",
    }
    assert table.to_pylist()[0]["usd"] == Decimal("1.5")
    assert set(table.to_pylist()[1].values()) == {None}
