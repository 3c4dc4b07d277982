"""CSV for spreadsheets: the table of `cost`, and the rendering of any table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from pyrometer.account.query.cost import AMOUNTS

FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates a cell that starts with one of them
WORKLOAD_COLUMNS = ("uid", "kind", "namespace", "name")
ROWS_PER_CHUNK = 1_000

Cell = str | int | float | Decimal | None


def cost_table(answer: dict[str, Any]) -> Iterator[list[Cell]]:
    """The table of `cost`, column names first. A workload has four columns, and dollars keep all digits."""
    by = answer["by"]
    yield [
        *(
            column
            for name in by
            for column in ([f"workload_{part}" for part in WORKLOAD_COLUMNS] if name == "workload" else [name])
        ),
        *AMOUNTS,
    ]
    for row in answer["rows"]:
        yield [
            *(cell for name in by for cell in (_workload_cells(row[name]) if name == "workload" else [row[name]])),
            *(dollars(row[f"{name}_micro"]) if kind is Decimal else row[name] for name, kind in AMOUNTS.items()),
        ]


def dollars(usd_micro: int | None) -> Decimal | None:
    """Converts micro-dollars to dollars without rounding."""
    return None if usd_micro is None else Decimal(usd_micro).scaleb(-6)


def render_csv(rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Renders rows as CSV (RFC 4180) in chunks, so that a large table is never in memory as a whole."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for number, row in enumerate(rows, start=1):
        writer.writerow([_escape_formula(cell) for cell in row])
        if number % ROWS_PER_CHUNK == 0:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    if buffer.getvalue():
        yield buffer.getvalue()


def _escape_formula(cell: Cell) -> Cell:
    """Marks text as text if a spreadsheet would evaluate it as a formula."""
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_PREFIXES) else cell


def _workload_cells(workload: dict[str, str] | None) -> list[Cell]:
    return [workload[part] if workload else None for part in WORKLOAD_COLUMNS]
