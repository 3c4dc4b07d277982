"""Tables as Parquet: the same rows as in CSV, with typed columns. Money is decimal, and times are timestamps.

Text is written unchanged, because readers of Parquet do not evaluate formulas.
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

ROWS_PER_CHUNK = 100_000
# The types of columns. A column without a type is text.
MONEY, QUANTITY, NUMBER, WHOLE, TIME, DAY = "money", "quantity", "number", "whole", "time", "day"
_KIND_OF_TYPE = {int: WHOLE, float: NUMBER, Decimal: MONEY, str: ""}
COST_KINDS = {"day": DAY} | {name: _KIND_OF_TYPE[kind] for name, kind in AMOUNTS.items()}  # of the rows of `cost`
_DECIMAL_PLACES = {MONEY: 6, QUANTITY: 12}  # after the point


def render_parquet(rows: Iterable[Sequence[Cell]], kinds: Mapping[str, str]) -> Iterator[bytes]:
    """Renders a table, column names first, as a Parquet file in chunks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = iter(rows)
    names = [str(name) for name in next(lines)]
    column_kinds = [kinds.get(name, "") for name in names]
    schema = pa.schema([pa.field(name, _type(kind)) for name, kind in zip(names, column_kinds, strict=True)])
    sink = _ChunkBuffer()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while some := list(islice(lines, ROWS_PER_CHUNK)):
            columns = [
                pa.array([_value(cell, kind) for cell in column], field.type)
                for column, kind, field in zip(zip(*some, strict=True), column_kinds, schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            yield sink.take()
    yield sink.take()


class _ChunkBuffer(io.RawIOBase):
    """A write-only file that is taken in chunks, so that a large table is never in memory as a whole."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        """Always true: the file is write-only."""
        return True

    def write(self, piece: Any) -> int:
        """Appends bytes to the current chunk."""
        self._pieces.append(bytes(piece))
        self._written += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        """The total number of bytes written. The footer of a Parquet file contains offsets."""
        return self._written

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        piece, self._pieces = b"".join(self._pieces), []
        return piece


def _type(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind in _DECIMAL_PLACES:
        return pa.decimal128(38, _DECIMAL_PLACES[kind])
    return {NUMBER: pa.float64(), WHOLE: pa.int64(), TIME: pa.timestamp("ms", "UTC"), DAY: pa.date32()}.get(
        kind, pa.string()
    )


def _value(cell: Cell, kind: str) -> Any:
    if cell is None:
        return None
    if kind in _DECIMAL_PLACES:
        return Decimal(cell)
    if kind == TIME:
        return datetime.fromisoformat(str(cell))
    return date.fromisoformat(str(cell)) if kind == DAY else cell
