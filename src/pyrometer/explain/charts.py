"""The drawings of the `why` page, as inline SVG: bars, and the area over time with findings marked above it.

Every function is pure: numbers in, a string out. Nothing here knows the `why` JSON or the page's wording.
Shapes have no colour but the CSS class of their state, family or cause; colours.css colours it, light or dark.
Positions along the width are percentages, so that a drawing fits any width without distorting its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from html import escape
from math import floor, log10
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pyrometer.model.states import CAUSE, FAMILIES, STATE, STATES, state_title
from pyrometer.model.units import MS_PER_SECOND

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

PLOT_HEIGHT = 270
PLOT_WIDTH = 1000  # of the stretched inner drawing; the page decides the pixels
LANE_HEIGHT = 22
SPACE = 8
AXIS_HEIGHT = 26
MOST_LANES = 6
LEAST_SPAN = 0.065  # share of the width that a finding's number needs on a telephone
MERGE_FACTORS = (
    1,
    2,
    4,
    8,
    12,
    24,
    48,
    96,
    192,
    384,
)  # quarters of an hour become hours, parts of days, days
MOST_TICKS = 7
TICK_STEPS = (
    *(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12)),
    *(timedelta(days=days) for days in (1, 2, 5, 7, 14, 30, 90, 365)),
)

# Once in a page: the pattern with which report.css fills what is unknown.
HATCH = (
    '<svg class="patterns" width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="6"'
    ' height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="ground" width="6" height="6"/>'
    '<rect class="stroke" width="2" height="6"/></pattern></defs></svg>'
)


class Window(NamedTuple):
    """From (inclusive) to (exclusive), in milliseconds UTC."""

    from_ms: int
    to_ms: int

    def share(self, time_ms: int) -> float:
        """Where a time lies: 0 at the window's beginning, 1 at its end; times outside stay at the edge."""
        if self.to_ms <= self.from_ms:
            return 0.0
        return min(1.0, max(0.0, (time_ms - self.from_ms) / (self.to_ms - self.from_ms)))


class Clock(NamedTuple):
    """Times in the reader's zone."""

    zone: tzinfo
    name: str

    @classmethod
    def of(cls, timezone: str) -> Clock:
        """A zone that this machine does not know is shown as UTC, and called so."""
        try:
            return cls(ZoneInfo(timezone), timezone)
        except (ValueError, OSError, KeyError):
            return cls(UTC, "UTC")

    def local(self, time_ms: int) -> datetime:
        """The time as the reader's wall clock has it."""
        return datetime.fromtimestamp(time_ms / MS_PER_SECOND, UTC).astimezone(self.zone)

    def minute(self, time_ms: int, month_format: str = "%b") -> str:
        """As `14 Nov 23:41`."""
        local = self.local(time_ms)
        return f"{local.day} {local:{month_format} %H:%M}"

    def between(self, window: Window, month_format: str = "%b") -> str:
        """As `14 Nov 23:41 – 15 Nov 07:09`; the day is said once where it does not change."""
        begin, end = self.minute(window.from_ms, month_format), self.minute(window.to_ms, month_format)
        same_day = self.local(window.from_ms).date() == self.local(window.to_ms).date()
        return f"{begin} – {end.rpartition(' ')[2] if same_day else end}"


class Part(NamedTuple):
    """One piece of a bar."""

    css_class: str
    amount: int
    title: str


class Bucket(NamedTuple):
    """A stretch of time and the GPU-milliseconds of each state in it."""

    from_ms: int
    to_ms: int
    states: Mapping[str, int]

    def gpus(self, state: str) -> float:
        """How many GPUs were in the state on average."""
        return self.states.get(state, 0) / (self.to_ms - self.from_ms)


class Layer(NamedTuple):
    """A state's band of the stacked area: for each bucket its lower and upper edge, in GPUs."""

    state: str
    edges: tuple[tuple[float, float], ...]


class Span(NamedTuple):
    """A finding as marked above the area."""

    number: int
    css_class: str
    from_ms: int
    to_ms: int
    title: str


def escaped(text: object) -> str:
    """Text that is safe in HTML and SVG, between tags and in quoted attributes, whoever wrote it."""
    return escape(NOT_IN_XML.sub("\ufffd", str(text)), quote=True)


def state_class(state: str) -> str:
    """The CSS class of a state; one that this version does not know looks like `unobserved`."""
    return f"s-{state}" if state in STATE else "s-unobserved"


def family_class(family: str) -> str:
    """The CSS class of a family; one that this version does not know looks like `unknown`."""
    return f"f-{family}" if family in FAMILIES else "f-unknown"


def cause_class(cause: str) -> str:
    """The CSS class of a finding's cause: that of the state it mostly claims."""
    return state_class(CAUSE[cause].colored_as if cause in CAUSE else cause)


def stacked_bar(parts: Sequence[Part], whole: int, label: str, css_class: str = "bar") -> str:
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
    rows: Sequence[tuple[int, Mapping[str, int]]], bucket_ms: int, window: Window, at_most: int
) -> list[Bucket]:
    """Rows (their beginning, their states) merged into `at_most` buckets of equal length.

    Buckets keep to the rows' own grid and are cut at the window's edges: their GPUs are right there too.
    """
    inside = [row for row in rows if row[0] + bucket_ms > window.from_ms and row[0] < window.to_ms]
    if not inside:
        return []
    origin_ms = min(from_ms for from_ms, _ in inside)
    count = -(-(window.to_ms - origin_ms) // bucket_ms)
    length_ms = bucket_ms * next((f for f in MERGE_FACTORS if count <= f * at_most), -(-count // at_most))
    sums: dict[int, dict[str, int]] = {}
    for from_ms, states in inside:
        bucket = sums.setdefault(origin_ms + (from_ms - origin_ms) // length_ms * length_ms, {})
        for state, gpu_ms in states.items():
            bucket[state] = bucket.get(state, 0) + gpu_ms
    return [
        Bucket(max(window.from_ms, from_ms), min(window.to_ms, from_ms + length_ms), sums[from_ms])
        for from_ms in sorted(sums)
    ]


def stack_layers(buckets: Sequence[Bucket]) -> list[Layer]:
    """The states that occur, stacked from the bottom in reading order; names unknown to us come on top."""
    occurring = {state for bucket in buckets for state, gpu_ms in bucket.states.items() if gpu_ms > 0}
    known = [state.name for state in STATES if state.name in occurring]
    floors = [0.0] * len(buckets)
    layers = []
    for state in [*known, *sorted(occurring - set(known))]:
        tops = [bottom + bucket.gpus(state) for bottom, bucket in zip(floors, buckets, strict=True)]
        layers.append(Layer(state, tuple(zip(floors, tops, strict=True))))
        floors = tops
    return layers


def assign_lanes(spans: Sequence[Span], window: Window, most_lanes: int = MOST_LANES) -> list[list[Span]]:
    """Spans in lanes so that none covers another; the first come first, those without room are left out."""
    lanes: list[list[Span]] = []
    for span in spans:
        for lane in lanes:
            if not any(_collide(span, other, window) for other in lane):
                lane.append(span)
                break
        else:
            if len(lanes) < most_lanes:
                lanes.append([span])
    return lanes


def time_ticks(window: Window, clock: Clock, most: int = MOST_TICKS) -> list[tuple[int, str]]:
    """Round local times inside the window: the hour, or the date where a day begins."""
    least = timedelta(milliseconds=window.to_ms - window.from_ms) / most
    step = next((step for step in TICK_STEPS if step >= least), TICK_STEPS[-1])
    wall = clock.local(window.from_ms).replace(hour=0, minute=0, second=0, microsecond=0)
    ticks = []
    while (time_ms := round(wall.timestamp() * MS_PER_SECOND)) <= window.to_ms:
        if time_ms >= window.from_ms:
            day_begins = wall.hour == 0 and wall.minute == 0
            ticks.append((time_ms, f"{wall.day} {wall:%b}" if day_begins else f"{wall:%H:%M}"))
        wall += step
    return ticks


def area_chart(
    window: Window,
    clock: Clock,
    buckets: Sequence[Bucket],
    lanes: Sequence[Sequence[Span]],
    label: str,
    detail: str,
) -> str:
    """GPUs by state over time, stacked, with the spans of findings in lanes above and the time below."""
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


def _area(layer: Layer, buckets: Sequence[Bucket], window: Window, peak: float) -> str:
    """A layer as one path with steps, since a bucket is a sum: nothing is known of the moments inside it."""
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


def _time_axis(window: Window, clock: Clock, top: int) -> str:
    marks = []
    for number, (time_ms, label) in enumerate(time_ticks(window, clock)):
        share = window.share(time_ms)
        anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
        x, y = _percent(share), top + PLOT_HEIGHT
        marks.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{y}" y2="{y + 5}"/>')
        css = "tick odd" if number % 2 else "tick"  # a telephone has no room for the odd ones
        marks.append(f'<text class="{css}" x="{x}" y="{y + 19}" text-anchor="{anchor}">{label}</text>')
    return "".join(marks)


def _span(span: Span, lane: int, top: int, window: Window) -> str:
    """A numbered line over the finding's interval; it links to the finding's card."""
    y = top - SPACE - lane * LANE_HEIGHT - LANE_HEIGHT // 2
    left, right = _percent(window.share(span.from_ms)), _percent(window.share(span.to_ms))
    return (
        f'<a class="span {escaped(span.css_class)}" href="#finding-{span.number}">'
        f"<title>{escaped(span.title)}</title>"
        f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}"/><circle cx="{left}" cy="{y}" r="8.5"/>'
        f'<text x="{left}" y="{y}" dy=".35em" text-anchor="middle">{span.number}</text></a>'
    )


def _collide(one: Span, other: Span, window: Window) -> bool:
    one_left, other_left = window.share(one.from_ms), window.share(other.from_ms)
    one_right = max(window.share(one.to_ms) + LEAST_SPAN / 2, one_left + LEAST_SPAN)
    other_right = max(window.share(other.to_ms) + LEAST_SPAN / 2, other_left + LEAST_SPAN)
    return one_left < other_right and other_left < one_right


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50, … (or of their tenths, hundredths, …) that is at least so much."""
    magnitude: float = 10.0 ** floor(log10(least))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= least * 0.9999)


def _percent(share: float) -> str:
    return f"{_short(share * 100, 2)}%"


def _short(number: float, decimals: int = 1) -> str:
    """No more digits than can be seen."""
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".")
