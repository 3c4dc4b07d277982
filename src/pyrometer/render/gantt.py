"""Bars on a time axis, as wide as the terminal: letters, with background colors if the terminal has colors."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyrometer.render.why_text import Style

MIN_WIDTH, MAX_WIDTH = 60, 240
TICK = 10  # minimum columns between two labels of the axis


class BarStyle(NamedTuple):
    """What a bar means: its letter, its color, and its name in the legend."""

    letter: str
    color: str
    name: str


class Bar(NamedTuple):
    """A time interval of one kind."""

    kind: BarStyle
    start: float
    end: float


class GanttRow(NamedTuple):
    """A line of bars with a label before and a note after it. A row without bars is a remark."""

    label: str
    bars: Sequence[Bar] = ()
    note: str = ""
    bold: bool = False


def terminal_width() -> int:
    """The width of lines: that of the terminal, else COLUMNS, else 100, within limits."""
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size((100, 24)).columns))


def gantt(
    rows: Sequence[GanttRow],
    start: float,
    end: float,
    *,
    width: int,
    style: Style,
    ticks: Callable[[float, float, int], list[tuple[float, str]]],
    keep_short: bool = False,
) -> Iterator[str]:
    """The axis, the rows, and a legend. `ticks(start, end, count)` returns the labels of the axis. With `keep_short`,
    bars that are too short for a column get one anyway."""
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
        line = "".join(
            " " * length if kind is None else style(kind.letter * length, fg="black", bg=kind.color)
            for kind, length in _runs(cells)
        )
        yield f"{style(row.label.ljust(left), bold=row.bold)}{line} {row.note}".rstrip()
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
        names = "   ".join(f"{style(kind.letter, fg='black', bg=kind.color)} {kind.name}" for kind in line)
        yield f"{' ' * left}{names}".rstrip()


def _cells(
    bars: Sequence[Bar], start: float, end: float, columns: int, *, keep_short: bool = False
) -> list[BarStyle | None]:
    """The kind that covers most of each column."""
    scale = columns / ((end - start) or 1.0)
    cells: list[BarStyle | None] = [None] * columns
    longest = [0.0] * columns
    positions = []
    for bar in bars:
        begin, stop = (bar.start - start) * scale, (bar.end - start) * scale
        first, last = max(0, min(columns - 1, int(begin))), min(columns - 1, int(stop))
        positions.append((stop - begin, first, bar.kind))
        for column in range(first, last + 1):
            covered = min(stop, column + 1.0) - max(begin, float(column))
            if covered > longest[column]:
                longest[column], cells[column] = covered, bar.kind
    if keep_short:
        _keep_short(cells, positions)
    return cells


def _keep_short(cells: list[BarStyle | None], positions: Sequence[tuple[float, int, BarStyle]]) -> None:
    """Gives bars that are too short for a column the column in which they start, longer bars first. A kind that would
    take more than every third column stays hidden."""
    lost = sorted((p for p in positions if 0 < p[0] < 1 and cells[p[1]] != p[2]), key=lambda p: -p[0])
    often = {kind for _, _, kind in lost if 3 * sum(one[2] == kind for one in lost) > len(cells)}
    used: set[int] = set()
    for _, column, kind in lost:
        if column not in used and kind not in often:
            used.add(column)
            cells[column] = kind


def _runs(cells: Sequence[BarStyle | None]) -> Iterator[tuple[BarStyle | None, int]]:
    begin = 0
    for column in range(1, len(cells) + 1):
        if column == len(cells) or cells[column] != cells[begin]:
            yield cells[begin], column - begin
            begin = column


def _axis(labels: Sequence[tuple[float, str]], start: float, end: float, columns: int) -> str:
    """Labels at their positions, each starting with its mark. Labels that do not fit are left out."""
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


def length_ticks(start: float, end: float, max_count: int) -> list[tuple[float, str]]:
    """Labels of an axis of milliseconds, counted from its start."""
    every = _near(_LENGTHS, (end - start) / max(1, max_count))
    count = int((end - start) / every)
    digits = 0 if every >= 1 else len(f"{every:.6f}".rstrip("0").partition(".")[2])
    return [(start + n * every, f"{n * every:,.{digits}f}{' ms' if n == 0 else ''}") for n in range(count + 1)]


def clock_ticks(clock: Callable[[float, int], str]) -> Callable[[float, float, int], list[tuple[float, str]]]:
    """Labels of an axis of times of day. `clock` formats one, given the distance between labels."""

    def ticks(start: float, end: float, max_count: int) -> list[tuple[float, str]]:
        every = int(_near(_CLOCK_MS, (end - start) / max(1, max_count)))
        first = int(-(-start // every) * every)
        return [(at, clock(at, every)) for at in range(first, int(end) + 1, every)]

    return ticks


def _near(steps: Sequence[float], min_step: float) -> float:
    """The smallest of these steps that is long enough."""
    return steps[min(len(steps) - 1, bisect_right(steps, min_step))]
