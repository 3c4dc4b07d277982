"""Curves on two axes, drawn as text: braille dots, or ASCII if the terminal cannot show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyrometer.render.why_text import Style

HEIGHT = 18
COLUMNS_PER_TICK = 12
ROWS_PER_TICK = 3
DOTS_X, DOTS_Y = 2, 4  # of a character
_BRAILLE = 0x2800
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column of a character
COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")


class Glyphs(NamedTuple):
    """The characters of a chart."""

    tick: str
    left: str
    corner: str
    mark: str
    bottom: str
    line: str
    front: str
    is_braille: bool


BRAILLE = Glyphs(tick="┤", left="│", corner="└", mark="┬", bottom="─", line="╌", front="★", is_braille=True)
ASCII = Glyphs(tick="+", left="|", corner="+", mark="+", bottom="-", line="-", front="*", is_braille=False)


class Curve(NamedTuple):
    """A line through points, and the letter that marks it. A curve without a letter is one of many."""

    points: Sequence[tuple[float, float]]
    letter: str = ""
    at: tuple[float, float] | None = None
    bold: bool = False


class Axis(NamedTuple):
    """An axis between two round numbers: the distance of its marks, and how to format a number."""

    low: float
    high: float
    every: float
    written: Callable[[float], str]

    def marks(self) -> Iterator[float]:
        """The values of the marks."""
        count = round((self.high - self.low) / self.every)
        return (self.low + number * self.every for number in range(count + 1))


def glyphs_for(encoding: str | None) -> Glyphs:
    """The characters that a stream with this encoding can show."""
    try:
        "".join([*BRAILLE[:-1], chr(_BRAILLE + 0xFF), "…"]).encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return BRAILLE


def round_axis(low: float, high: float, max_ticks: int, written: Callable[[float, int], str]) -> Axis:
    """The shortest axis with round marks, about as many as fit. `written` receives the decimals that tell two marks
    apart."""
    tolerance = 1e-9 * max(abs(low), abs(high))  # closer values count as equal: marks between them would look the same
    span = high - low if high - low > tolerance else abs(high) or 1.0
    rough = span / max(1, max_ticks)
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(base * power for base in (1, 2, 5, 10) if base * power >= rough * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(every) + 1e-9))
    first, last = math.floor(low / every + 1e-9), math.ceil(high / every - 1e-9)
    return Axis(first * every, max(last, first + 1) * every, every, lambda value: written(value, decimals))


def draw(
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    *,
    width: int,
    glyphs: Glyphs,
    style: Style,
    line: tuple[float, str] | None = None,
) -> Iterator[str]:
    """The chart with its axes. `line` is a horizontal line with a label on the left. Later curves are drawn on top."""
    labels = _labels(y, line)
    left = max(len(label) for label in labels.values()) + 1
    columns = max(20, width - left - 1 - len(x.written(x.high)) // 2)
    picture = _Picture(columns, x, y)
    for number, curve in enumerate(curves):
        picture.put(curve, COLORS[number % len(COLORS)] if curve.letter else "bright_black")
    for curve in curves:
        picture.name(curve)
    across = None if line is None else picture.row(line[0])
    for row in range(HEIGHT):
        cells = (picture.cell(row, column, glyphs, style, row == across) for column in range(columns))
        label = labels.get(row, "")
        yield f"{label.rjust(left)}{glyphs.tick if label else glyphs.left}{''.join(cells)}".rstrip()
    yield from _bottom(x, columns, left, glyphs)


def _labels(y: Axis, line: tuple[float, str] | None) -> dict[int, str]:
    """The labels left of the rows. The label of the line replaces the label of a mark."""
    labels = {_row(value, y): y.written(value) for value in y.marks()}
    return labels if line is None else {**labels, _row(line[0], y): line[1]}


def _row(value: float, y: Axis) -> int:
    return min(HEIGHT - 1, max(0, round((y.high - value) / (y.high - y.low) * (HEIGHT - 1))))


def _bottom(x: Axis, columns: int, left: int, glyphs: Glyphs) -> Iterator[str]:
    rule, texts = [glyphs.bottom] * columns, ""
    for value in x.marks():
        column = round((value - x.low) / (x.high - x.low) * (columns - 1))
        rule[column] = glyphs.mark
        text = x.written(value)
        begin = max(0, left + 1 + column - len(text) // 2)
        if begin > len(texts) or not texts:
            texts = texts.ljust(begin) + text
    yield " " * left + glyphs.corner + "".join(rule)
    yield texts


class _Picture:
    """Dots, the colors of their characters, and letters on top."""

    def __init__(self, columns: int, x: Axis, y: Axis) -> None:
        self.columns, self.x, self.y = columns, x, y
        self.dots = [[0] * columns for _ in range(HEIGHT)]
        self.colors: dict[tuple[int, int], str] = {}
        self.letters: dict[tuple[int, int], Curve] = {}

    def row(self, value: float) -> int:
        return _row(value, self.y)

    def put(self, curve: Curve, color: str) -> None:
        """Draws a line from point to point, clipped to the axes."""
        placed = [self._dot(point) for point in curve.points]
        for (x0, y0), (x1, y1) in zip(placed, placed[1:] or placed, strict=False):
            pieces = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for piece in range(pieces + 1):
                self._set(x0 + (x1 - x0) * piece / pieces, y0 + (y1 - y0) * piece / pieces, color)

    def name(self, curve: Curve) -> None:
        """Draws the letter of a curve, next to other letters."""
        if not curve.letter or curve.at is None or not self.y.low <= curve.at[1] <= self.y.high:
            return
        dot_x, _ = self._dot(curve.at)
        row, column = self.row(curve.at[1]), min(self.columns - 1, round(dot_x) // DOTS_X)
        for place in (column, column + 1, column - 1, column + 2, column - 2):
            if 0 <= place < self.columns and (row, place) not in self.letters:
                self.letters[row, place] = curve
                return

    def cell(self, row: int, column: int, glyphs: Glyphs, style: Style, is_line: bool) -> str:
        named = self.letters.get((row, column))
        if named is not None:
            return style(named.letter, fg=self.colors.get((row, column)), bold=named.bold)
        dots = self.dots[row][column]
        if not dots:
            return style(glyphs.line, dim=True) if is_line else " "
        upper, lower = bool(dots & 0x1B), bool(dots & 0xE4)
        shown = chr(_BRAILLE + dots) if glyphs.is_braille else ":" if upper and lower else "'" if upper else "."
        return style(shown, fg=self.colors[row, column])

    def _dot(self, point: tuple[float, float]) -> tuple[float, float]:
        x, y = self.x, self.y
        # the row of a mark is the middle of its character, so that a curve that reaches the mark is drawn on it
        return (
            (point[0] - x.low) / (x.high - x.low) * (self.columns - 1) * DOTS_X + (DOTS_X - 1) / 2,
            (y.high - point[1]) / (y.high - y.low) * (HEIGHT - 1) * DOTS_Y + (DOTS_Y - 1) / 2,
        )

    def _set(self, dot_x: float, dot_y: float, color: str) -> None:
        column, row = round(dot_x), round(dot_y)
        if 0 <= column < self.columns * DOTS_X and 0 <= row < HEIGHT * DOTS_Y:
            place = row // DOTS_Y, column // DOTS_X
            self.dots[place[0]][place[1]] |= _BITS[row % DOTS_Y][column % DOTS_X]
            self.colors[place] = color
