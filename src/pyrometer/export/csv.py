"""Rows for spreadsheets: the answer of `cost`, and how any table is written as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from pyrometer.account.query.cost import AMOUNTS

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would work out
WORKLOAD = ("uid", "kind", "namespace", "name")
ROWS_AT_ONCE = 1_000

Cell = str | int | float | Decimal | None


def cost_table(answer: dict[str, Any]) -> Iterator[list[Cell]]:
    """The rows of `cost`, names of columns first. A workload is four columns; dollars have all their digits."""
    by = answer["by"]
    yield [
        *(
            column
            for name in by
            for column in ([f"workload_{part}" for part in WORKLOAD] if name == "workload" else [name])
        ),
        *AMOUNTS,
    ]
    for row in answer["rows"]:
        yield [
            *(cell for name in by for cell in (_parts(row[name]) if name == "workload" else [row[name]])),
            *(dollars(row[f"{name}_micro"]) if kind is Decimal else row[name] for name, kind in AMOUNTS.items()),
        ]


def dollars(usd_micro: int | None) -> Decimal | None:
    """Micro-dollars as dollars, with all their digits."""
    return None if usd_micro is None else Decimal(usd_micro).scaleb(-6)


def as_text(rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Rows as CSV (RFC 4180), piece by piece: never all of it at once."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for number, row in enumerate(rows, start=1):
        writer.writerow([_harmless(cell) for cell in row])
        if number % ROWS_AT_ONCE == 0:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    if buffer.getvalue():
        yield buffer.getvalue()


def _harmless(cell: Cell) -> Cell:
    """A text that a spreadsheet would take for a formula is marked as a text, whoever wrote it."""
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _parts(workload: dict[str, str] | None) -> list[Cell]:
    return [workload[part] if workload else None for part in WORKLOAD]
