"""Tables for the terminal, and sparklines as cells of a table.

Names are aligned left and figures right. Columns that do not fit are left out, and a line below the table names them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click

from pyrometer.model.human import listed, wrapped

GAP = 2
BLOCKS = "▁▂▃▄▅▆▇█"


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    figures: int,
    foot: bool = False,
    spare: Sequence[str] = (),
) -> None:
    """Prints rows; the last `figures` columns are numbers. With `foot` the last row is a total. On a terminal that is
    too narrow, `spare` columns are left out, the first of them first: lines that wrap cannot be read."""
    texts = [[_text(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headings), *texts]) for i in range(len(headings))]
    names = len(headings) - figures
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    shown = fitting(headings, widths, spare, room)

    def line(cells: Sequence[str]) -> str:
        padded = [cells[i].ljust(widths[i]) if i < names else cells[i].rjust(widths[i]) for i in shown]
        return (" " * GAP).join(padded).rstrip()

    click.echo(click.style(line(headings), bold=True))
    for number, row in enumerate(texts):
        if foot and number == len(texts) - 1:
            click.echo((" " * GAP).join("─" * widths[i] for i in shown))
        click.echo(line(row))
    left_out = [heading for i, heading in enumerate(headings) if i not in shown and heading]
    if left_out and room:
        text = f"No room for {listed(left_out, len(left_out))}: -o json has them."
        click.echo("\n".join(click.style(part, dim=True) for part in wrapped(text, room)))


def fitting(headings: Sequence[str], widths: Sequence[int], spare: Sequence[str], room: int | None) -> list[int]:
    """The columns that are shown in so much room; without a limit, all."""
    shown = list(range(len(headings)))
    for heading in spare:
        if room is None or sum(widths[i] for i in shown) + GAP * (len(shown) - 1) <= room:
            break
        shown = [i for i in shown if headings[i] != heading]
    return shown


def sparkline(values: Sequence[float | None], *, low: float | None = None, high: float | None = None) -> str:
    """One block per value, a blank where a value is missing. `low` and `high` default to the range of the values."""
    present = [value for value in values if value is not None]
    low = min(present, default=0.0) if low is None else low
    high = max(present, default=0.0) if high is None else high
    span = (high - low) or 1.0
    return "".join(" " if v is None else BLOCKS[min(7, max(0, int(8 * (v - low) / span)))] for v in values)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):  # a workload
        return f"{value['namespace']}/{value['name']} ({value['kind']})"
    return str(value)
