"""Bars on one axis of time, as wide as the terminal: letters, and colours behind them where there are any."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyrometer.explain.text import Style

NARROWEST, WIDEST = 60, 240
TICK = 10  # columns between two labels of the axis, at least


class BarStyle(NamedTuple):
    """What a bar stands for: its letter, its colour, and its name in the legend."""

    letter: str
    colour: str
    name: str


class Bar(NamedTuple):
    """A stretch of one kind."""

    kind: BarStyle
    start: float
    end: float


class GanttRow(NamedTuple):
    """A line of bars with what stands before and behind it; one without bars is a remark."""

    label: str
    bars: Sequence[Bar] = ()
    note: str = ""
    bold: bool = False


def terminal_width() -> int:
    """How wide a line may be: the terminal's width, COLUMNS, or 100."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((100, 24)).columns))


def gantt(
    rows: Sequence[GanttRow], start: float, end: float, *, width: int, style: Style,
    ticks: Callable[[float, float, int], list[tuple[float, str]]], keep_short: bool = False,
) -> Iterator[str]:  # fmt: skip
    """The axis, the rows, and a legend of what is in them. `ticks` gives labels for an axis of so many columns; with
    `keep_short`, what is too short for a column of its own gets one all the same."""
    left = max(len(row.label) for row in rows if row.bars) + 1
    right = max(len(row.note) for row in rows if row.bars) + 1
    kinds: dict[BarStyle, None] = {}
    columns = max(20, width - left - right)
    yield style(" " * left + _axis(ticks(start, end, columns // TICK), start, end, columns), dim=True).rstrip()
    for row in rows:
        if not row.bars:
            yield style(row.label, dim=True)
            continue
        cells = _cells(row.bars, start, end, columns, keep_short=keep_short)
        kinds |= dict.fromkeys(cell for cell in cells if cell is not None)
        drawn = "".join(
            " " * length if kind is None else style(kind.letter * length, fg="black", bg=kind.colour)
            for kind, length in _runs(cells)
        )
        yield f"{style(row.label.ljust(left), bold=row.bold)}{drawn} {row.note}".rstrip()
    yield from _legend(list(kinds), left, width, style)


def _legend(kinds: Sequence[BarStyle], left: int, width: int, style: Style) -> Iterator[str]:
    lines: list[list[BarStyle]] = [[]]
    used = left
    for kind in kinds:
        long = len(kind.letter) + len(kind.name) + 4
        if used + long > width and lines[-1]:
            lines.append([])
            used = left
        lines[-1].append(kind)
        used += long
    for line in lines:
        said = "   ".join(f"{style(kind.letter, fg='black', bg=kind.colour)} {kind.name}" for kind in line)
        yield f"{' ' * left}{said}".rstrip()


def _cells(
    bars: Sequence[Bar], start: float, end: float, columns: int, *, keep_short: bool = False
) -> list[BarStyle | None]:
    """What most of each column's time was spent on."""
    scale = columns / ((end - start) or 1.0)
    cells: list[BarStyle | None] = [None] * columns
    most = [0.0] * columns
    places = []
    for bar in bars:
        begin, stop = (bar.start - start) * scale, (bar.end - start) * scale
        first, last = max(0, min(columns - 1, int(begin))), min(columns - 1, int(stop))
        places.append((stop - begin, first, bar.kind))
        for column in range(first, last + 1):
            covered = min(stop, column + 1.0) - max(begin, float(column))
            if covered > most[column]:
                most[column], cells[column] = covered, bar.kind
    if keep_short:
        _keep_short(cells, places)
    return cells


def _keep_short(cells: list[BarStyle | None], places: Sequence[tuple[float, int, BarStyle]]) -> None:
    """Gives the columns in which they begin to bars that are too short for one, the longer ones first; a kind that
    would take every third column and more stays hidden."""
    lost = sorted((place for place in places if 0 < place[0] < 1 and cells[place[1]] != place[2]), key=lambda p: -p[0])
    often = {kind for _, _, kind in lost if 3 * sum(one[2] == kind for one in lost) > len(cells)}
    taken: set[int] = set()
    for _, column, kind in lost:
        if column not in taken and kind not in often:
            taken.add(column)
            cells[column] = kind


def _runs(cells: Sequence[BarStyle | None]) -> Iterator[tuple[BarStyle | None, int]]:
    begin = 0
    for column in range(1, len(cells) + 1):
        if column == len(cells) or cells[column] != cells[begin]:
            yield cells[begin], column - begin
            begin = column


def _axis(labels: Sequence[tuple[float, str]], start: float, end: float, columns: int) -> str:
    """Labels at their places, each beginning with its mark; one for which there is no room is left out."""
    line = ""
    for at, label in labels:
        column = min(columns - 1, round((at - start) / ((end - start) or 1.0) * columns))
        if column >= len(line) + (1 if line else 0) and column + 1 + len(label) <= columns:
            line = f"{line.ljust(column)}╷{label}"
    return line


_LENGTHS = tuple(base * 10**power for power in range(-3, 8) for base in (1, 2, 5))
_CLOCK_MS = tuple(
    unit * count
    for unit, counts in ((1_000, (1, 5, 15, 30)), (60_000, (1, 5, 15, 30)), (3_600_000, (1, 2, 3, 6, 12, 24, 48, 96)))
    for count in counts
)


def length_ticks(start: float, end: float, most: int) -> list[tuple[float, str]]:
    """Labels of an axis of milliseconds that begins at zero."""
    every = _near(_LENGTHS, (end - start) / max(1, most))
    count = int((end - start) / every)
    digits = 0 if every >= 1 else len(f"{every:.6f}".rstrip("0").partition(".")[2])
    return [(start + n * every, f"{n * every:,.{digits}f}{' ms' if n == 0 else ''}") for n in range(count + 1)]


def clock_ticks(clock: Callable[[float, int], str]) -> Callable[[float, float, int], list[tuple[float, str]]]:
    """Labels of an axis of times of day; `clock` writes one, given how far they lie apart."""

    def ticks(start: float, end: float, most: int) -> list[tuple[float, str]]:
        every = int(_near(_CLOCK_MS, (end - start) / max(1, most)))
        first = int(-(-start // every) * every)
        return [(at, clock(at, every)) for at in range(first, int(end) + 1, every)]

    return ticks


def _near(steps: Sequence[float], least: float) -> float:
    """The first of these steps that is long enough."""
    return steps[min(len(steps) - 1, bisect_right(steps, least))]
