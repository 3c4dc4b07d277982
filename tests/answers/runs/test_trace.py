"""One step over all ranks: what must always hold of its trace, and a step whose truth is known."""

from __future__ import annotations

import json
from datetime import UTC
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs import trace as tracing
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.answers.runs.overview import RunNotFoundError
from pyrometer.answers.runs.trace import PHASES, over_ranks, timeline, trace_sample, trace_step
from pyrometer.export.perfetto import perfetto_trace
from pyrometer.export.trace_otlp import otlp_trace
from pyrometer.model.records import Batch
from tests.support import traced_run
from tests.support.traced_run import RUN, START_MS, TrainingRecords

EVER = TimeRange(0, 2**62)


def us(ms: float) -> int:
    return round(ms * 1000)


# -- laws -------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(("step", *PHASES, "augment", "tokenize"))
PIECES = st.tuples(
    NAMES,
    st.integers(0, 200_000),  # begins, µs after the step
    st.integers(0, 90_000),  # lasts
    st.booleans(),  # known to the microsecond
)
RANKS = st.lists(
    st.tuples(st.sampled_from(("a", "b", None)), st.integers(-50_000, 50_000), st.lists(PIECES, min_size=1)),
    min_size=1,
    max_size=5,
)


def answer_of(ranks) -> dict:
    """The answer about spans in any shape: nested, overlapping, empty, on clocks that disagree."""
    spans = []
    for rank, (_, skew_us, pieces) in enumerate(ranks):
        for number, (name, begin_us, lasted_us, exact) in enumerate(pieces):
            at_us = START_MS * 1000 + begin_us + skew_us
            at_us -= 0 if exact else at_us % 1000
            spans.append(tracing.TraceSpan(rank, name, at_us, lasted_us, f"{rank:08x}{number:08x}", None, {}, exact))
    nodes = {rank: place for rank, (place, _, _) in enumerate(ranks)}
    return {"run": RUN, "step": 7, "trace_id": "f" * 32, **over_ranks(spans, nodes, [], UTC)}


def every_span_lies_in_the_step_and_none_gets_lost(answer, ranks):
    assert len(answer["spans"]) == sum(len(pieces) for _, _, pieces in ranks)
    end = us(answer["start_ms"]) + us(answer["duration_ms"])
    for span in answer["spans"]:
        assert us(answer["start_ms"]) <= us(span["start_ms"])
        assert us(span["start_ms"]) + us(span["duration_ms"]) <= end
        assert us(span["offset_ms"]) == us(span["start_ms"]) - us(answer["start_ms"])
    lasted = sorted(us(span["duration_ms"]) for span in answer["spans"])
    assert lasted == sorted(lasted_us for _, _, pieces in ranks for _, _, lasted_us, _ in pieces)


def the_critical_path_is_one_rank_s_step_without_gap_or_overlap(answer, ranks):
    path = answer["critical_path"]
    assert len({piece["rank"] for piece in path}) <= 1
    for one, following in pairwise(path):
        assert us(one["start_ms"]) + us(one["duration_ms"]) == us(following["start_ms"])
    if path:
        (row,) = (row for row in answer["ranks"] if row["rank"] == path[0]["rank"])
        assert sum(us(piece["duration_ms"]) for piece in path) == us(row["duration_ms"])
        assert answer["ranks"][0] is row or row["waited_ms"] is not None
        synced = [one["sync_ms"] for one in answer["ranks"] if one["sync_ms"] is not None]
        assert not synced or row["sync_ms"] == min(synced)


def ranks_of_one_node_keep_their_places_to_each_other(answer, ranks):
    shift = {row["rank"]: us(row["clock_shift_ms"]) for row in answer["ranks"]}
    for rank, (place, _, _) in enumerate(ranks):
        for other, (elsewhere, _, _) in enumerate(ranks):
            assert place != elsewhere or shift[rank] == shift[other]


def perfetto_gets_every_span_with_its_duration(answer, ranks):
    made = json.loads(json.dumps(perfetto_trace(answer), allow_nan=False))
    assert made["displayTimeUnit"] in ("ms", "ns")
    slices = [event for event in made["traceEvents"] if event["ph"] == "X"]
    drawn = sorted((event["pid"], event["name"], event["ts"], event["dur"]) for event in slices)
    assert drawn == sorted(
        (span["rank"], span["name"], us(span["start_ms"]), us(span["duration_ms"])) for span in answer["spans"]
    )
    named = {event["pid"] for event in made["traceEvents"] if event["ph"] == "M" and event["name"] == "process_name"}
    assert named == {event["pid"] for event in slices}
    flows: dict[str, list[str]] = {}
    for event in made["traceEvents"]:
        assert event["ph"] in "XMsf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or (isinstance(event["ts"], int) and event["ts"] >= 0)
        if event["ph"] in "sf":
            flows.setdefault(event["id"], []).append(event["ph"])
            assert any(  # an arrow begins and ends in a slice
                one["pid"] == event["pid"] and one["ts"] <= event["ts"] <= one["ts"] + one["dur"] for one in slices
            )
    assert all(ends == ["s", "f"] for ends in flows.values())


LAWS = (
    every_span_lies_in_the_step_and_none_gets_lost,
    the_critical_path_is_one_rank_s_step_without_gap_or_overlap,
    ranks_of_one_node_keep_their_places_to_each_other,
    perfetto_gets_every_span_with_its_duration,
)


@given(ranks=RANKS)
def test_trace_of_a_step_satisfies_its_invariants(ranks):
    answer = answer_of(ranks)
    for law in LAWS:
        law(answer, ranks)


@given(pieces=st.lists(PIECES, min_size=1, max_size=12))
def test_timeline_has_no_gap_and_no_overlap(pieces):
    spans = [
        tracing.TraceSpan(0, name, begin_us, lasted_us, f"{number}", None, {}, exact)
        for number, (name, begin_us, lasted_us, exact) in enumerate(pieces)
    ]
    line = timeline(spans)
    for one, following in pairwise(line):
        assert one.end_us == following.start_us
    for piece in line:
        assert piece.end_us > piece.start_us
        around = {
            s.name for s in spans if s.name in PHASES and s.start_us <= piece.start_us and s.end_us >= piece.end_us
        }
        assert piece.name in around if around else piece.name == "other"


# -- a step whose truth is known --------------------------------------------------------------------------------------


def test_trace_names_the_awaited_rank_and_the_cause(store):
    answer = trace_step(store, RUN, 70, EVER, zone=UTC)
    assert (answer["attempt"], answer["attempts"], answer["lost"]) == (2, [1, 2], False)
    assert answer["waited_for"] == {
        "rank": 2,
        "ranks": 3,
        "waited_ms": 24.0,
        "phase": "backward",
        "phase_ms": 56.0,
        "excess_ms": 24.0,
    }
    assert answer["ranks"][0]["rank"] == 2
    assert [row["waited_ms"] for row in answer["ranks"]] == [0.0, 24.0, 24.0, 24.0]
    names = [piece["name"] for piece in answer["critical_path"]]
    assert names == ["data", "copy", "forward", "backward"] * 4 + ["sync", "optimizer"]


def test_trace_aligns_the_clocks_of_nodes_at_the_sync(store, trained):
    answer = trace_step(store, RUN, 70, EVER, zone=UTC)
    ends = {
        span["rank"]: us(span["start_ms"] + span["duration_ms"]) for span in answer["spans"] if span["name"] == "sync"
    }
    assert len(set(ends.values())) == 1
    shift = {row["rank"]: us(row["clock_shift_ms"]) for row in answer["ranks"]}
    assert shift[0] - shift[1] == trained.training.skew_us
    assert us(answer["duration_ms"]) == traced_run.STEP_US - 1_000


def test_trace_has_the_batches_of_its_spans(store, trained):
    answer = trace_step(store, RUN, 70, EVER, zone=UTC)
    for row in answer["ranks"]:
        assert [[int(s) for s in one["samples"]] for one in row["batches"]] == trained.consumed[2, 70][row["rank"]]
        for name in ("data", "copy", "forward", "backward"):
            spans = [s for s in answer["spans"] if s["rank"] == row["rank"] and s["name"] == name]
            assert [s["batch"] for s in spans] == [one["batch"] for one in row["batches"]]
            assert [s["micro_batch"] for s in spans] == [0, 1, 2, 3]


def test_trace_is_of_one_attempt(store):
    lost = trace_step(store, RUN, 70, EVER, zone=UTC, attempt=1)
    assert lost["lost"]
    assert lost["trace_id"] != trace_step(store, RUN, 70, EVER, zone=UTC)["trace_id"]


@pytest.mark.parametrize(
    ("step", "attempt", "near", "done"),
    [(75, None, [60, 70, 80, 90], True), (999, None, [90, 100, 110, 120], False), (120, 1, [40, 50, 60, 70], True)],
)
def test_untraced_step_suggests_near_steps(store, step, attempt, near, done):
    answer = trace_step(store, RUN, step, EVER, zone=UTC, attempt=attempt)
    assert (answer["spans"], answer["critical_path"], answer["trace_id"]) == ([], [], None)
    assert (answer["nearest"], answer["done"]) == (near, done)


def test_trace_of_one_rank_has_no_awaited_rank(tmp_path):
    with TrainingRecords(ranks=1, attempts=((0, 20),)).store(tmp_path / "data") as store:
        answer = trace_step(store, RUN, 10, EVER, zone=UTC)
    assert answer["waited_for"] is None
    assert answer["ranks"][0]["waited_ms"] is None
    assert answer["critical_path"][-1]["name"] == "optimizer"
    assert perfetto_trace(answer)["traceEvents"]


def test_times_in_milliseconds_stay_in_order():
    """As an SDK without `after_us` sends them: the phases of a step of half a millisecond each."""
    spans = [
        tracing.TraceSpan(0, name, 1_000 * (number // 2), 500, f"{number}", None, {}, False)
        for number, name in enumerate(("data", "copy", "forward", "backward"))
    ]
    placed = tracing._by_rank(spans)[0]
    assert [(span.name, span.start_us) for span in placed] == [
        ("data", 0),
        ("copy", 500),
        ("forward", 1_000),
        ("backward", 1_500),
    ]


def test_trace_of_an_unknown_run_is_rejected(store):
    with pytest.raises(RunNotFoundError):
        trace_step(store, "nobody", 1, EVER, zone=UTC)


# -- a sample ---------------------------------------------------------------------------------------------------------


def test_sample_is_followed_from_its_batch_to_a_checkpoint(store, trained):
    sample = str(trained.consumed[1, 40][3][2][1])
    answer = trace_sample(store, RUN, sample, EVER, zone=UTC)
    (way,) = (way for way in answer["ways"] if (way["attempt"], way["step"]) == (1, 40))
    assert (way["rank"], way["micro_batch"]) == (3, 2)
    assert [span["name"] for span in way["spans"]] == ["data", "copy", "forward", "backward", "sync", "optimizer"]
    assert way["checkpoint"]["step"] == 60
    assert {span["batch"] for span in way["spans"] if span["name"] == "forward"} == {way["batch"]}
    assert len(answer["ways"]) == sum(int(sample) in trained.samples(*place) for place in trained.consumed)


# -- the run ----------------------------------------------------------------------------------------------------------


# -- OpenTelemetry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["step", "run", "sample"])
def test_otlp_export_is_readable_by_opentelemetry(store, trained, what):
    collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    from google.protobuf import json_format

    answers = {
        "step": lambda: trace_step(store, RUN, 70, EVER, zone=UTC),
        "run": lambda: trace_run(store, RUN, EVER, zone=UTC),
        "sample": lambda: trace_sample(store, RUN, str(trained.consumed[1, 40][0][0][0]), EVER, zone=UTC),
    }
    answer = answers[what]()
    # OTLP's JSON has ids in hexadecimal where protobuf's own JSON has base64: everything else is protobuf's.
    text = json.dumps(otlp_trace(answer), allow_nan=False)
    read = json_format.Parse(json.dumps(_in_base64(json.loads(text))), collector.ExportTraceServiceRequest())
    spans = {
        span.span_id.hex(): span
        for resource in read.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert len(spans) == len(answer["spans"]) > 0
    for expected in answer["spans"]:
        span = spans[expected["span_id"]]
        assert (span.name, span.parent_span_id.hex()) == (expected["name"], expected["parent_id"] or "")
        assert span.trace_id.hex() == expected.get("trace_id", answer["trace_id"])
        assert span.start_time_unix_nano == us(expected["start_ms"]) * 1000
        assert span.end_time_unix_nano - span.start_time_unix_nano == us(expected["duration_ms"]) * 1000
        attributes = {one.key: one.value for one in span.attributes}
        if expected.get("batch"):
            assert attributes["pyrometer.batch"].string_value == expected["batch"]


def _in_base64(value):
    import base64

    if isinstance(value, dict):
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(one)).decode() if key in ids else _in_base64(one)
            for key, one in value.items()
        }
    return [_in_base64(one) for one in value] if isinstance(value, list) else value


def test_batch_with_unknown_samples_is_in_the_trace(tmp_path):
    trained = TrainingRecords(attempts=((0, 11),))
    trained.records = [
        one._replace(rows=None) if isinstance(one, Batch) and (one.rank, one.micro_batch) == (1, 2) else one
        for one in trained.records
    ]
    with trained.store(tmp_path / "data") as store:
        answer = trace_step(store, RUN, 10, EVER, zone=UTC)
    (row,) = (row for row in answer["ranks"] if row["rank"] == 1)
    assert [one["samples"] is None for one in row["batches"]] == [False, False, True, False]
