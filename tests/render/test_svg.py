"""Charts: they lose nothing, hide nothing, and stay well-formed whatever a name contains."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.model.states import CAUSES, STATE, STATES
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.render.svg import (
    MAX_LANES,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    BarPart,
    Clock,
    FindingSpan,
    TimeAxis,
    TimeBucket,
    area_chart,
    assign_lanes,
    cause_class,
    escaped,
    family_class,
    merge_buckets,
    stack_layers,
    stacked_bar,
    state_class,
    time_ticks,
)

HOSTILE = "<script>alert(1)</script>\"'&]]>\x00\ud800"
BUCKET_MS = 15 * MS_PER_MINUTE
BEGIN_MS = 1_794_600_000_000  # a full hour UTC, in November 2026
CLOCK = Clock.of("UTC")
SVG_TAGS = {"svg", "rect", "path", "title", "desc", "line", "text", "a", "circle"}

state_names = st.sampled_from([state.name for state in STATES] + ["a_state_of_the_future"])
state_amounts = st.dictionaries(state_names, st.integers(0, 300 * BUCKET_MS))
bucket_lists = st.lists(state_amounts, min_size=1, max_size=20).map(
    lambda rows: [
        TimeBucket(BEGIN_MS + index * BUCKET_MS, BEGIN_MS + (index + 1) * BUCKET_MS, states)
        for index, states in enumerate(rows)
    ]
)


def window_of(buckets: list[TimeBucket]) -> TimeAxis:
    return TimeAxis(buckets[0].from_ms, buckets[-1].to_ms)


def height_at(path: str, x: float) -> float:
    """The height of a step path at `x`, summed over its closed pieces."""
    height = 0.0
    for piece in filter(None, path.split("Z")):
        crossings, here_x, here_y = [], 0.0, 0.0
        for command, numbers in re.findall(r"([MVH])([-\d. ]+)", piece):
            values = [float(number) for number in numbers.split()]
            if command == "M":
                here_x, here_y = values
            elif command == "V":
                here_y = values[0]
            else:
                if min(here_x, values[0]) < x < max(here_x, values[0]):
                    crossings.append(here_y)
                here_x = values[0]
        if crossings:
            upper, lower = crossings
            height += lower - upper
    return height


@given(bucket_lists)
def test_bucket_layers_add_up_without_gap_or_overlap(buckets):
    layers = stack_layers(buckets)
    for index, bucket in enumerate(buckets):
        edges = [layer.edges[index] for layer in layers]
        assert sum(upper - lower for lower, upper in edges) == pytest.approx(
            sum(bucket.states.values()) / (bucket.to_ms - bucket.from_ms), abs=1e-6
        )
        assert all(lower <= upper for lower, upper in edges)
        assert all(below[1] == above[0] for below, above in pairwise(edges))


@given(bucket_lists)
def test_bucket_height_equals_its_total(buckets):
    window = window_of(buckets)
    totals = [sum(bucket.states.values()) / BUCKET_MS for bucket in buckets]
    root = ElementTree.fromstring(area_chart(window, CLOCK, buckets, [], "label", "detail"))
    paths = [path.attrib["d"] for path in root.iter("path")]
    for bucket, total in zip(buckets, totals, strict=True):
        middle = window.share((bucket.from_ms + bucket.to_ms) // 2) * PLOT_WIDTH
        drawn = sum(height_at(path, middle) for path in paths)
        assert drawn == pytest.approx(PLOT_HEIGHT * total / (max(totals) or 1), abs=0.11)


def test_layers_are_stacked_in_reading_order_and_unknown_states_on_top():
    bucket = TimeBucket(0, 1, {"novel": 1, "free": 1, "hang": 1, "train": 1, "startup": 0})
    assert [layer.state for layer in stack_layers([bucket])] == ["train", "hang", "free", "novel"]


@given(st.lists(state_amounts, max_size=100), st.integers(1, 30))
def test_merged_buckets_keep_every_millisecond_within_the_limit(rows, at_most):
    window = TimeAxis(BEGIN_MS, BEGIN_MS + max(1, len(rows)) * BUCKET_MS)
    times = [(BEGIN_MS + index * BUCKET_MS, states) for index, states in enumerate(rows)]
    merged = merge_buckets(times, BUCKET_MS, window, at_most)
    assert len(merged) <= at_most
    assert sum(sum(bucket.states.values()) for bucket in merged) == sum(sum(row.values()) for row in rows)
    assert all(one.to_ms <= other.from_ms for one, other in pairwise(merged))


def test_bucket_cut_by_the_window_keeps_its_gpus():
    window = TimeAxis(BEGIN_MS + 7 * MS_PER_MINUTE, BEGIN_MS + 20 * MS_PER_MINUTE)
    rows = [(BEGIN_MS, {"train": 3 * 8 * MS_PER_MINUTE}), (BEGIN_MS + BUCKET_MS, {"train": 3 * 5 * MS_PER_MINUTE})]
    merged = merge_buckets(rows, BUCKET_MS, window, 96)
    assert [bucket.gpus("train") for bucket in merged] == [3.0, 3.0]
    assert (merged[0].from_ms, merged[-1].to_ms) == window


def test_month_of_quarter_hours_becomes_half_days():
    rows = [(BEGIN_MS + index * BUCKET_MS, {"train": BUCKET_MS}) for index in range(30 * 96)]
    merged = merge_buckets(rows, BUCKET_MS, TimeAxis(BEGIN_MS, BEGIN_MS + 30 * MS_PER_DAY), 96)
    assert {bucket.to_ms - bucket.from_ms for bucket in merged} == {12 * MS_PER_HOUR}


def test_time_without_rows_is_a_gap_and_not_drawn():
    buckets = [TimeBucket(0, 10, {"train": 10}), TimeBucket(20, 30, {"train": 10})]
    root = ElementTree.fromstring(area_chart(TimeAxis(0, 30), CLOCK, buckets, [], "label", "detail"))
    path = next(root.iter("path")).attrib["d"]
    drawn = [height_at(path, share * PLOT_WIDTH) > 0 for share in (1 / 6, 1 / 2, 5 / 6)]
    assert drawn == [True, False, True]


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=12), st.integers(0, 10**15))
def test_bar_parts_are_adjacent_and_fill_their_share(amounts, rest):
    whole = sum(amounts) + rest
    root = ElementTree.fromstring(stacked_bar([BarPart("s-train", n, "") for n in amounts], whole, "label"))
    ends = [0.0]
    for rect in root.iter("rect"):
        left, width = (float(rect.attrib[name].rstrip("%")) for name in ("x", "width"))
        assert left == pytest.approx(ends[-1], abs=0.02 * len(ends))
        ends.append(left + width)
    share = sum(amounts) / whole if whole else 0
    assert ends[-1] == pytest.approx(100 * share, abs=0.02)
    assert len(ends) - 1 == sum(amount > 0 for amount in amounts)


spans = st.lists(
    st.tuples(st.integers(-100, 1100), st.sampled_from([0, 5, 40, 300])).map(lambda pair: (pair[0], sum(pair))),
    max_size=40,
).map(lambda times: [FindingSpan(number, "s-hang", *time, "") for number, time in enumerate(times, start=1)])


@given(spans)
def test_findings_do_not_overlap_and_the_largest_is_drawn(spans):
    window = TimeAxis(0, 1000)
    lanes = assign_lanes(spans, window)
    assert len(lanes) <= MAX_LANES
    assert [lane[0].number for lane in lanes[:1]] == [span.number for span in spans[:1]]
    for lane in lanes:
        shares = sorted((window.share(span.from_ms), window.share(span.to_ms)) for span in lane)
        assert all(one[1] < other[0] for one, other in pairwise(shares))
        assert all(other[0] - one[0] > 0.05 for one, other in pairwise(shares)), "numbers would overlap"


@pytest.mark.parametrize(
    "length_ms", [MS_PER_MINUTE, BUCKET_MS, MS_PER_HOUR, 12 * MS_PER_HOUR, 30 * MS_PER_DAY, 400 * MS_PER_DAY]
)
def test_ticks_are_few_ascending_and_within_the_window(length_ms):
    window = TimeAxis(BEGIN_MS, BEGIN_MS + length_ms)
    times = [time_ms for time_ms, _ in time_ticks(window, CLOCK)]
    assert 1 <= len(times) <= 8
    assert times == sorted(set(times))
    assert window.from_ms <= times[0] <= times[-1] <= window.to_ms


def test_ticks_are_round_in_the_readers_zone_across_a_clock_change():
    berlin = Clock.of("Europe/Berlin")
    saturday_22h_ms = 1_792_872_000_000  # 2026-10-24 20:00 UTC; clocks go back on the 25th at 03:00
    labels = [label for _, label in time_ticks(TimeAxis(saturday_22h_ms, saturday_22h_ms + MS_PER_DAY), berlin)]
    assert labels == ["Oct 25", "06:00", "12:00", "18:00"]


def test_interval_names_its_day_once():
    assert CLOCK.between(TimeAxis(BEGIN_MS, BEGIN_MS + MS_PER_HOUR)) == "Nov 13, 20:00 – 21:00"
    assert CLOCK.between(TimeAxis(BEGIN_MS, BEGIN_MS + MS_PER_DAY)) == "Nov 13, 20:00 – Nov 14, 20:00"


@pytest.mark.parametrize("zone", ["Nowhere/Land", "", "../../etc/passwd", "Europe", HOSTILE])
def test_unknown_zone_falls_back_to_utc(zone):
    assert Clock.of(zone).name == "UTC"


@given(st.text())
def test_escaped_text_reads_back_in_xml_and_has_no_markup(text):
    safe = escaped(text)
    assert not set("<>\"'") & set(safe)
    element = ElementTree.fromstring(f'<a b="{safe}">{safe}</a>')
    replaced = {"\ufffd"}
    kept = [character for character in text if character.isprintable() and character not in replaced]
    shown = [character for character in element.text or "" if character.isprintable() and character not in replaced]
    assert shown == kept


def test_hostile_names_stay_text_in_every_drawing():
    bucket = TimeBucket(0, 1000, {HOSTILE: 1000, "train": 500})
    span = FindingSpan(1, HOSTILE, 0, 500, HOSTILE)
    for drawing in (
        stacked_bar([BarPart(HOSTILE, 1, HOSTILE)], 1, HOSTILE, HOSTILE),
        area_chart(TimeAxis(0, 1000), CLOCK, [bucket], [[span]], HOSTILE, HOSTILE),
    ):
        root = ElementTree.fromstring(drawing)
        assert {element.tag for element in root.iter()} <= SVG_TAGS
        assert any("alert(1)" in (element.text or "") for element in root.iter("title"))


def test_every_span_links_to_its_finding_and_every_drawing_has_a_name():
    spans = [FindingSpan(number, "s-hang", 0, 900, f"finding {number}") for number in (1, 2)]
    lanes = assign_lanes(spans, TimeAxis(0, 1000))
    root = ElementTree.fromstring(
        area_chart(TimeAxis(0, 1000), CLOCK, [TimeBucket(0, 1000, {"hang": 9})], lanes, "l", "d")
    )
    assert [link.attrib["href"] for link in root.iter("a")] == ["#finding-1", "#finding-2"]
    assert all(svg.attrib["aria-label"] for svg in root.iter("svg"))


def test_each_cause_has_the_color_of_a_state_that_it_claims():
    assert {cause_class(cause) for cause in CAUSES} <= {f"s-{state}" for state in STATE}
    unknown = [cause for cause in CAUSES if cause_class(cause) == "s-unobserved"]
    assert unknown == ["telemetry_lost"]


def test_unknown_states_and_causes_have_the_unknown_color():
    assert (state_class(HOSTILE), family_class(HOSTILE), cause_class(HOSTILE)) == (
        "s-unobserved",
        "f-unknown",
        "s-unobserved",
    )
