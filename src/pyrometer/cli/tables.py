"""Rows as a table for a terminal: names to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], *, figures: int, foot: bool = False) -> None:
    """Prints rows; the last `figures` columns are numbers. With `foot` the last row is a total."""
    texts = [[_text(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headings), *texts]) for i in range(len(headings))]
    names = len(headings) - figures

    def line(cells: Sequence[str]) -> str:
        shown = [c.ljust(w) if i < names else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "  ".join(shown).rstrip()

    click.echo(click.style(line(headings), bold=True))
    for number, row in enumerate(texts):
        if foot and number == len(texts) - 1:
            click.echo("  ".join("─" * width for width in widths))
        click.echo(line(row))


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):  # a workload
        return f"{value['namespace']}/{value['name']} ({value['kind']})"
    return str(value)
