"""The chart of `pyrometer worth EXPERIMENT -o chart`: the metric of its runs against their cost."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from string import ascii_lowercase
from typing import Any

from pyrometer.model.human import counted, dollars, duration
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, USD_MICRO_PER_USD
from pyrometer.render.curves import COLUMNS_PER_TICK, HEIGHT, ROWS_PER_TICK, Curve, Glyphs, draw, round_axis
from pyrometer.render.why_text import Style

AXES = ("dollars", "gpu-hours", "time", "step")
MAX_NAMED = 12
ALWAYS_SHOWN_SHARE = 0.85  # of values; the worst ones, from the first minutes, would compress the axis
FEW = 20
MIN_CUT_RATIO = 3  # values are cut off only if they would make the chart more than this many times higher
_TIMES = ((MS_PER_SECOND, "s"), (MS_PER_MINUTE, "minutes"), (MS_PER_HOUR, "hours"), (24 * MS_PER_HOUR, "days"))


class NothingToDrawError(LookupError):
    """No run has a curve on the requested axis. The text says why and what to do."""


def chart_lines(answer: dict[str, Any], by: str, *, width: int, glyphs: Glyphs, style: Style) -> Iterator[str]:
    """The chart, and below it a legend of runs by letter."""
    rows = [row for row in answer["runs"] if row["curve"]]
    if not rows:
        raise NothingToDrawError(
            f"No run of {answer['experiment']!r} has reported a metric, so there is no curve to draw."
        )
    drawn = [(row, _points(row, by)) for row in rows]
    drawn = [(row, points) for row, points in drawn if points]
    if not drawn:
        raise NothingToDrawError(_missing(by))
    sign = -1 if answer["goal"] == "max" else 1
    low, high = _range([[y for _, y in points] for _, points in drawn], sign, answer["target"])
    y = round_axis(low, high, HEIGHT // ROWS_PER_TICK, lambda value, decimals: f"{value:,.{decimals}f}")
    x, title = _x_axis(by, max(point[0] for _, points in drawn for point in points), width)
    many = len(drawn) > MAX_NAMED
    named = _named([row for row, _ in drawn])
    curves = [_curve(row, points, named.get(row["run"], ""), sign, many) for row, points in drawn]
    # runs on the Pareto front are drawn last, on top; runs without a letter first
    curves.sort(key=lambda curve: (bool(curve.letter), curve.bold))
    line = None if answer["target"] is None else (answer["target"], f"{answer['target']:g}")
    better = {"min": ", lower is better", "max": ", higher is better", None: ""}[answer["goal"]]
    yield style(f"{answer['metric']}{better}, against {title}", bold=True)
    yield ""
    yield from draw(curves, x, y, width=width, glyphs=glyphs, style=style, line=line)
    yield ""
    yield from _legend([row for row, _ in drawn if row["run"] in named], named, glyphs, style, width)
    yield ""
    notes = " ".join(_notes(answer, drawn, named, (y.low, y.high), glyphs))
    yield from textwrap.wrap(notes, width)


def _points(row: dict[str, Any], by: str) -> list[tuple[float, float]]:
    started_ms = datetime.fromisoformat(row["started"]).timestamp() * 1000
    placed: dict[str, Callable[[list[Any]], float | None]] = {
        "dollars": lambda point: None if point[4] is None else point[4] / USD_MICRO_PER_USD,
        "gpu-hours": lambda point: point[3] / MS_PER_HOUR,
        "time": lambda point: max(0.0, point[1] - started_ms),
        "step": lambda point: point[0],
    }
    return [(float(x), point[2]) for point in row["curve"] if (x := placed[by](point)) is not None]


def _missing(by: str) -> str:
    if by == "dollars":
        return "These runs have no price: set one per GPU-hour with --price, or use --by gpu-hours."
    return "These runs have reported no steps: use --by time, gpu-hours or dollars."


def _range(curves: Sequence[Sequence[float]], sign: int, target: float | None) -> tuple[float, float]:
    """The range of the y axis: nearly all values, and the best of every run unless it is far off."""
    bad = sorted(value * sign for values in curves for value in values)
    best, cut = bad[0], bad[int(ALWAYS_SHOWN_SHARE * (len(bad) - 1))]
    if len(bad) < FEW or bad[-1] - best <= MIN_CUT_RATIO * (cut - best):
        cut = bad[-1]
    else:
        bests = [min(value * sign for value in values) for values in curves]
        cut = max([cut, *(one for one in bests if one - best <= MIN_CUT_RATIO * (cut - best))])
    ends = [best, cut] if target is None else [min(best, target * sign), max(cut, target * sign)]
    low, high = sorted(end * sign for end in ends)
    return low, high


def _x_axis(by: str, largest: float, width: int) -> tuple[Any, str]:
    """The x axis and its title."""
    ticks = width // COLUMNS_PER_TICK
    if by == "time":
        unit_ms, name = next((one for one in reversed(_TIMES) if largest >= 3 * one[0]), _TIMES[0])
        axis = round_axis(0.0, largest / unit_ms, ticks, lambda value, decimals: f"{value:,.{decimals}f}")
        scaled = axis._replace(
            low=axis.low * unit_ms,
            high=axis.high * unit_ms,
            every=axis.every * unit_ms,
            written=lambda value: axis.written(value / unit_ms),
        )
        return scaled, f"{name} since the start"
    if by == "dollars":
        cents = round_axis(
            0.0, largest, ticks, lambda value, decimals: f"${value:,.{2 if decimals == 1 else decimals}f}"
        )
        return cents, "dollars"
    return (
        round_axis(0.0, largest, ticks, lambda value, decimals: f"{value:,.{decimals}f}"),
        {"gpu-hours": "GPU-hours", "step": "steps"}[by],
    )


def _named(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A letter for each run, or for as many as fit the legend. Runs on the Pareto front come first, in capitals."""
    chosen = sorted(rows, key=lambda row: not row["pareto"])[:MAX_NAMED]
    in_order = [row for row in rows if row in chosen]
    return {
        row["run"]: letter.upper() if row["pareto"] else letter
        for row, letter in zip(in_order, ascii_lowercase, strict=False)
    }


def _curve(row: dict[str, Any], points: list[tuple[float, float]], letter: str, sign: int, many: bool) -> Curve:
    """A run's line; its letter marks its best value, or its end. Of many runs the best so far is drawn, and of those
    without a letter only the best: lines that go up and down would fill the picture."""
    known = row["best"] is not None
    at = min(points, key=lambda point: point[1] * sign) if known else points[-1]
    if many and known:
        points = [(x, y * sign) for x, y in _so_far(points, sign)] if letter else [at]
    return Curve(points, letter, at, row["pareto"])


def _so_far(points: list[tuple[float, float]], sign: int) -> Iterator[tuple[float, float]]:
    return zip((x for x, _ in points), accumulate((y * sign for _, y in points), min), strict=True)


def _legend(
    rows: Sequence[dict[str, Any]], named: dict[str, str], glyphs: Glyphs, style: Style, width: int
) -> Iterator[str]:
    """Which letter is which run, how good it got, and for how much."""
    results = [_result(row) for row in rows]
    room = max(8, width - max(map(len, results)) - 8)
    names = [
        row["run"] if len(row["run"]) <= room else f"{row['run'][: room - 1]}{'…' if glyphs.is_braille else '~'}"
        for row in rows
    ]
    long = max(map(len, names))
    for row, name, result in zip(rows, names, results, strict=True):
        letter = style(named[row["run"]], bold=row["pareto"])
        yield f"  {letter} {glyphs.front if row['pareto'] else ' '} {name.ljust(long)}  {result}"


def _result(row: dict[str, Any]) -> str:
    value = row["final"] if row["best"] is None else row["best"]
    spent = f"{row['gpu_hours']:,.2f} GPU-hours" if row["usd_micro"] is None else dollars(row["usd_micro"])
    return f"{value:.5g} for {spent}{_reached(row)}"


def _reached(row: dict[str, Any]) -> str:
    if row["to_target_ms"] is None:
        return ""
    spent = row["to_target_usd_micro"]
    after = duration(row["to_target_ms"]) if spent is None else dollars(spent)
    return f", target after {after}"


def _notes(
    answer: dict[str, Any],
    drawn: Sequence[tuple[dict[str, Any], Any]],
    named: dict[str, str],
    shown: tuple[float, float],
    glyphs: Glyphs,
) -> Iterator[str]:
    """The notes below the chart: what it leaves out, and what its symbols mean."""
    if any(row["pareto"] for row, _ in drawn):
        yield f"{glyphs.front} and a capital letter: on the Pareto front (no other run was as good for less)."
    others = len(drawn) - len(named)
    if others:
        yield f"Lines show the best value so far. {counted(others, 'run')} without a letter: a dot at the best value."
    beyond = [value for _, points in drawn for _, value in points if not shown[0] <= value <= shown[1]]
    if beyond:
        edge = f"above {shown[1]:g}" if max(beyond) > shown[1] else f"below {shown[0]:g}"
        yield f"Not drawn: values {edge}, from the start of runs."
    if answer["target"] is not None:
        missed = sum(row["to_target_ms"] is None for row, _ in drawn)
        if missed:
            yield f"{counted(missed, 'run')} did not reach {answer['target']:g}."
