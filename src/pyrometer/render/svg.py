"""The charts of the HTML report as inline SVG: bars, and the area over time with findings marked above it.

Every function is pure: numbers in, a string out. Nothing here knows the JSON of `why` or the wording of the report.
Shapes have no color except the CSS class of their state, family or cause; colors.css colors it, light or dark.
Horizontal positions are percentages, so that a chart fits any width without distorting its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from html import escape
from math import floor, log10
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pyrometer.model.human import date, date_time
from pyrometer.model.states import CAUSE, FAMILIES, STATE, STATES, state_title
from pyrometer.model.units import MS_PER_SECOND

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

PLOT_HEIGHT = 270
PLOT_WIDTH = 1000  # of the inner drawing, which is stretched to the width of the page
LANE_HEIGHT = 22
SPACE = 8
AXIS_HEIGHT = 26
MAX_LANES = 6
MIN_SPAN = 0.065  # share of the width that the number of a finding needs on a phone
MERGE_FACTORS = (1, 2, 4, 8, 12, 24, 48, 96, 192, 384)  # quarter-hours are merged into hours, parts of days, days
MAX_TICKS = 7
TICK_STEPS = (
    *(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12)),
    *(timedelta(days=days) for days in (1, 2, 5, 7, 14, 30, 90, 365)),
)

# Once per page: the pattern with which report.css fills unknown time.
HATCH = (
    '<svg class="patterns" width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="6"'
    ' height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="ground" width="6" height="6"/>'
    '<rect class="stroke" width="2" height="6"/></pattern></defs></svg>'
)


class TimeAxis(NamedTuple):
    """From (inclusive) to (exclusive), in milliseconds UTC."""

    from_ms: int
    to_ms: int

    def share(self, time_ms: int) -> float:
        """The position of a time: 0 at the start, 1 at the end. Times outside are clamped."""
        if self.to_ms <= self.from_ms:
            return 0.0
        return min(1.0, max(0.0, (time_ms - self.from_ms) / (self.to_ms - self.from_ms)))


class Clock(NamedTuple):
    """Times in the reader's zone."""

    zone: tzinfo
    name: str

    @classmethod
    def of(cls, timezone: str) -> Clock:
        """The zone of that name, or UTC if this machine does not know it."""
        try:
            return cls(ZoneInfo(timezone), timezone)
        except (ValueError, OSError, KeyError):
            return cls(UTC, "UTC")

    def local(self, time_ms: int) -> datetime:
        """The local time of the reader."""
        return datetime.fromtimestamp(time_ms / MS_PER_SECOND, UTC).astimezone(self.zone)

    def minute(self, time_ms: int, *, year: bool = False) -> str:
        """A date and a time: `Nov 14, 23:41`."""
        return date_time(self.local(time_ms), year=year)

    def between(self, window: TimeAxis, *, year: bool = False) -> str:
        """A time range: `Nov 14, 23:41 – Nov 15, 07:09`. The date is not repeated if it is the same."""
        begin, end = self.minute(window.from_ms, year=year), self.minute(window.to_ms, year=year)
        same_day = self.local(window.from_ms).date() == self.local(window.to_ms).date()
        return f"{begin} – {end.rpartition(' ')[2] if same_day else end}"


class BarPart(NamedTuple):
    """One part of a bar."""

    css_class: str
    amount: int
    title: str


class TimeBucket(NamedTuple):
    """A time interval with the GPU-milliseconds of each state."""

    from_ms: int
    to_ms: int
    states: Mapping[str, int]

    def gpus(self, state: str) -> float:
        """The average number of GPUs in a state."""
        return self.states.get(state, 0) / (self.to_ms - self.from_ms)


class Layer(NamedTuple):
    """The band of a state in the stacked area: its lower and upper edge per bucket, in GPUs."""

    state: str
    edges: tuple[tuple[float, float], ...]


class FindingSpan(NamedTuple):
    """A finding that is marked above the area."""

    number: int
    css_class: str
    from_ms: int
    to_ms: int
    title: str


def escaped(text: object) -> str:
    """Text that is safe in HTML and SVG, between tags and in quoted attributes."""
    return escape(NOT_IN_XML.sub("\ufffd", str(text)), quote=True)


def state_class(state: str) -> str:
    """The CSS class of a state. An unknown state looks like `unobserved`."""
    return f"s-{state}" if state in STATE else "s-unobserved"


def family_class(family: str) -> str:
    """The CSS class of a family. An unknown family looks like `unknown`."""
    return f"f-{family}" if family in FAMILIES else "f-unknown"


def cause_class(cause: str) -> str:
    """The CSS class of the state whose color a cause has."""
    return state_class(CAUSE[cause].colored_as if cause in CAUSE else cause)


def stacked_bar(parts: Sequence[BarPart], whole: int, label: str, css_class: str = "bar") -> str:
    """A horizontal bar of parts, one after the other; its full width stands for `whole`."""
    shapes, before = [], 0
    for part in parts:
        if part.amount <= 0 or whole <= 0:
            continue
        left, width = _percent(before / whole), _percent(part.amount / whole)
        title = f"<title>{escaped(part.title)}</title>" if part.title else ""
        shapes.append(
            f'<rect class="{escaped(part.css_class)}" x="{left}" width="{width}" height="100%">{title}</rect>'
        )
        before += part.amount
    body = "".join(shapes)
    return f'<svg class="{escaped(css_class)}" role="img" aria-label="{escaped(label)}">{body}</svg>'


def merge_buckets(
    rows: Sequence[tuple[int, Mapping[str, int]]], bucket_ms: int, window: TimeAxis, max_count: int
) -> list[TimeBucket]:
    """Rows (start, states) merged into at most `max_count` buckets of equal length.

    Buckets are aligned with the rows and cut at the edges of the time range, where their GPU counts stay correct.
    """
    inside = [row for row in rows if row[0] + bucket_ms > window.from_ms and row[0] < window.to_ms]
    if not inside:
        return []
    origin_ms = min(from_ms for from_ms, _ in inside)
    count = -(-(window.to_ms - origin_ms) // bucket_ms)
    length_ms = bucket_ms * next((f for f in MERGE_FACTORS if count <= f * max_count), -(-count // max_count))
    sums: dict[int, dict[str, int]] = {}
    for from_ms, states in inside:
        bucket = sums.setdefault(origin_ms + (from_ms - origin_ms) // length_ms * length_ms, {})
        for state, gpu_ms in states.items():
            bucket[state] = bucket.get(state, 0) + gpu_ms
    return [
        TimeBucket(max(window.from_ms, from_ms), min(window.to_ms, from_ms + length_ms), sums[from_ms])
        for from_ms in sorted(sums)
    ]


def stack_layers(buckets: Sequence[TimeBucket]) -> list[Layer]:
    """The states that occur, stacked in reading order. Unknown states are on top."""
    occurring = {state for bucket in buckets for state, gpu_ms in bucket.states.items() if gpu_ms > 0}
    recorded = [state.name for state in STATES if state.name in occurring]
    floors = [0.0] * len(buckets)
    layers = []
    for state in [*recorded, *sorted(occurring - set(recorded))]:
        tops = [bottom + bucket.gpus(state) for bottom, bucket in zip(floors, buckets, strict=True)]
        layers.append(Layer(state, tuple(zip(floors, tops, strict=True))))
        floors = tops
    return layers


def assign_lanes(spans: Sequence[FindingSpan], window: TimeAxis, max_lanes: int = MAX_LANES) -> list[list[FindingSpan]]:
    """Spans in lanes without overlap. The first spans have priority; spans without room are left out."""
    lanes: list[list[FindingSpan]] = []
    for span in spans:
        for lane in lanes:
            if not any(_collide(span, other, window) for other in lane):
                lane.append(span)
                break
        else:
            if len(lanes) < max_lanes:
                lanes.append([span])
    return lanes


def time_ticks(window: TimeAxis, clock: Clock, max_ticks: int = MAX_TICKS) -> list[tuple[int, str]]:
    """Round local times within the time range: the hour, or the date at midnight."""
    min_step = timedelta(milliseconds=window.to_ms - window.from_ms) / max_ticks
    step = next((step for step in TICK_STEPS if step >= min_step), TICK_STEPS[-1])
    wall = clock.local(window.from_ms).replace(hour=0, minute=0, second=0, microsecond=0)
    ticks = []
    while (time_ms := round(wall.timestamp() * MS_PER_SECOND)) <= window.to_ms:
        if time_ms >= window.from_ms:
            day_begins = wall.hour == 0 and wall.minute == 0
            ticks.append((time_ms, date(wall) if day_begins else f"{wall:%H:%M}"))
        wall += step
    return ticks


def area_chart(
    window: TimeAxis,
    clock: Clock,
    buckets: Sequence[TimeBucket],
    lanes: Sequence[Sequence[FindingSpan]],
    label: str,
    detail: str,
) -> str:
    """GPUs by state over time, stacked, with lanes of findings above and the time axis below."""
    layers = stack_layers(buckets)
    peak = max((top for layer in layers for _, top in layer.edges), default=0.0) or 1.0
    top = len(lanes) * LANE_HEIGHT + SPACE
    height = top + PLOT_HEIGHT + AXIS_HEIGHT
    areas = "".join(_area(layer, buckets, window, peak) for layer in layers)
    marks = "".join(_span(span, lane, top, window) for lane, spans in enumerate(lanes) for span in spans)
    return (
        f'<svg class="area" role="group" height="{height}" aria-label="{escaped(label)}">'
        f"<desc>{escaped(detail)}</desc>"
        f'<svg y="{top}" width="100%" height="{PLOT_HEIGHT}" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}"'
        f' preserveAspectRatio="none" role="img" aria-label="{escaped(detail)}">{areas}</svg>'
        f"{_gpu_axis(peak, top)}{_time_axis(window, clock, top)}{marks}</svg>"
    )


def _area(layer: Layer, buckets: Sequence[TimeBucket], window: TimeAxis, peak: float) -> str:
    """A layer as one path with steps, because a bucket is a sum over its time."""
    path, run = [], []
    for index, (bucket, (lower, upper)) in enumerate(zip(buckets, layer.edges, strict=True)):
        if upper > lower:
            run.append(
                (
                    _short(window.share(bucket.from_ms) * PLOT_WIDTH),
                    _short(window.share(bucket.to_ms) * PLOT_WIDTH),
                    _short(PLOT_HEIGHT * (1 - lower / peak)),
                    _short(PLOT_HEIGHT * (1 - upper / peak)),
                )
            )
        ends = index + 1 == len(buckets) or buckets[index + 1].from_ms != bucket.to_ms or upper <= lower
        if run and ends:
            tops = "".join(f"V{upper_y}H{right}" for _, right, _, upper_y in run)
            bottoms = "".join(f"V{lower_y}H{left}" for left, _, lower_y, _ in reversed(run))
            path.append(f"M{run[0][0]} {run[0][2]}{tops}{bottoms}Z")
            run = []
    name = escaped(state_title(layer.state))
    return f'<path class="{state_class(layer.state)}" d="{"".join(path)}"><title>{name}</title></path>'


def _gpu_axis(peak: float, top: int) -> str:
    step = _round_step(peak / 3)
    marks = []
    for count in range(floor(peak / step * 1.0001) + 1):
        value = round(count * step, 6)
        y = _short(top + PLOT_HEIGHT * (1 - value / peak))
        line = f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        marks.append(f'{line}<text class="tick" x="-8" y="{y}" dy=".32em" text-anchor="end">{value:,g}</text>')
    return "".join(marks)


def _time_axis(window: TimeAxis, clock: Clock, top: int) -> str:
    marks = []
    for number, (time_ms, label) in enumerate(time_ticks(window, clock)):
        share = window.share(time_ms)
        anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
        x, y = _percent(share), top + PLOT_HEIGHT
        marks.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{y}" y2="{y + 5}"/>')
        css = "tick odd" if number % 2 else "tick"  # a phone has no room for every second label
        marks.append(f'<text class="{css}" x="{x}" y="{y + 19}" text-anchor="{anchor}">{label}</text>')
    return "".join(marks)


def _span(span: FindingSpan, lane: int, top: int, window: TimeAxis) -> str:
    """A numbered line over the interval of a finding, linked to its card."""
    y = top - SPACE - lane * LANE_HEIGHT - LANE_HEIGHT // 2
    left, right = _percent(window.share(span.from_ms)), _percent(window.share(span.to_ms))
    return (
        f'<a class="span {escaped(span.css_class)}" href="#finding-{span.number}">'
        f"<title>{escaped(span.title)}</title>"
        f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}"/><circle cx="{left}" cy="{y}" r="8.5"/>'
        f'<text x="{left}" y="{y}" dy=".35em" text-anchor="middle">{span.number}</text></a>'
    )


def _collide(one: FindingSpan, other: FindingSpan, window: TimeAxis) -> bool:
    one_left, other_left = window.share(one.from_ms), window.share(other.from_ms)
    one_right = max(window.share(one.to_ms) + MIN_SPAN / 2, one_left + MIN_SPAN)
    other_right = max(window.share(other.to_ms) + MIN_SPAN / 2, other_left + MIN_SPAN)
    return one_left < other_right and other_left < one_right


def _round_step(min_value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50, … (or their tenths, hundredths, …) that is at least `min_value`."""
    magnitude: float = 10.0 ** floor(log10(min_value))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= min_value * 0.9999)


def _percent(share: float) -> str:
    return f"{_short(share * 100, 2)}%"


def _short(number: float, decimals: int = 1) -> str:
    """A number with only the digits that are visible."""
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".")
