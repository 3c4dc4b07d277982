"""Tables as Parquet: the same rows as in CSV, with columns that have types. Money is decimal, times are timestamps.

A text is what it is: there is no spreadsheet here that would take it for a formula.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyrometer.account.query.cost import AMOUNTS
from pyrometer.export.csv import Cell

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 100_000
# What a column may be; one that is not said to be anything is text.
MONEY, QUANTITY, NUMBER, WHOLE, TIME, DAY = "money", "quantity", "number", "whole", "time", "day"
_KIND_OF_TYPE = {int: WHOLE, float: NUMBER, Decimal: MONEY, str: ""}
COST_KINDS = {"day": DAY} | {name: _KIND_OF_TYPE[kind] for name, kind in AMOUNTS.items()}  # of the rows of `cost`
_DIGITS = {MONEY: 6, QUANTITY: 12}  # after the point


def as_parquet(rows: Iterable[Sequence[Cell]], kinds: Mapping[str, str]) -> Iterator[bytes]:
    """Rows, the names of their columns first, as a Parquet file, piece by piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = iter(rows)
    names = [str(name) for name in next(lines)]
    said = [kinds.get(name, "") for name in names]
    schema = pa.schema([pa.field(name, _type(kind)) for name, kind in zip(names, said, strict=True)])
    sink = _Sink()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while some := list(islice(lines, ROWS_AT_ONCE)):
            columns = [
                pa.array([_value(cell, kind) for cell in column], field.type)
                for column, kind, field in zip(zip(*some, strict=True), said, schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file that is handed on while it is written: one of millions of rows is never in memory at once."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        """It is for nothing else."""
        return True

    def write(self, piece: Any) -> int:
        """Keeps a piece until it is taken."""
        self._pieces.append(bytes(piece))
        self._written += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        """How much was written in all: a Parquet file ends with where its columns are."""
        return self._written

    def taken(self) -> bytes:
        """What was written since the last time."""
        piece, self._pieces = b"".join(self._pieces), []
        return piece


def _type(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind in _DIGITS:
        return pa.decimal128(38, _DIGITS[kind])
    return {NUMBER: pa.float64(), WHOLE: pa.int64(), TIME: pa.timestamp("ms", "UTC"), DAY: pa.date32()}.get(
        kind, pa.string()
    )


def _value(cell: Cell, kind: str) -> Any:
    if cell is None:
        return None
    if kind in _DIGITS:
        return Decimal(cell)
    if kind == TIME:
        return datetime.fromisoformat(str(cell))
    return date.fromisoformat(str(cell)) if kind == DAY else cell
