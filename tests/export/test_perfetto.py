"""Traces for Perfetto: processes, tracks, spans and arrows."""

from __future__ import annotations

from pyrometer.export.perfetto import microseconds, perfetto_trace


def span(rank: int | None, name: str, start_ms: float, duration_ms: float, **more):
    return {"rank": rank, "name": name, "start_ms": start_ms, "duration_ms": duration_ms, "attributes": {}, **more}


def step_trace(*spans, last: int | None = None):
    path = [] if last is None else [{"rank": last}]
    return {"run": "llama", "step": 7, "trace_id": "ab", "spans": list(spans), "critical_path": path}


def test_each_rank_is_a_process_with_two_tracks():
    made = perfetto_trace(step_trace(span(0, "forward", 1.0, 2.0, step=7), span(1, "augment", 1.5, 0.25)))
    slices = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [(one["pid"], one["tid"], one["cat"], one["ts"], one["dur"]) for one in slices] == [
        (0, 0, "phase", 1000, 2000),
        (1, 1, "own", 1500, 250),
    ]
    assert slices[0]["args"] == {"step": 7}
    names = [event["args"]["name"] for event in made["traceEvents"] if event["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]
    assert made["otherData"] == {"run": "llama", "step": "7", "trace_id": "ab"}


def test_arrows_lead_from_the_last_rank_to_the_waiting_ranks():
    spans = [span(0, "sync", 10.0, 30.0), span(1, "sync", 35.0, 5.0), span(2, "sync", 36.0, 4.0)]
    made = perfetto_trace(step_trace(*spans, last=1))
    starts = [event for event in made["traceEvents"] if event["ph"] == "s"]
    ends = [event for event in made["traceEvents"] if event["ph"] == "f"]
    assert [(one["pid"], one["ts"]) for one in starts] == [(1, 35_000)] * 2
    assert [(one["pid"], one["ts"]) for one in ends] == [(0, 35_000), (2, 36_000)]


def test_trace_without_a_last_rank_has_no_arrows():
    assert not [e for e in perfetto_trace(step_trace(span(0, "sync", 0.0, 1.0)))["traceEvents"] if e["ph"] in "sf"]


def test_trace_of_a_run_has_one_process_per_attempt():
    trace = step_trace(span(None, "run", 0.0, 9.0), span(None, "attempt", 0.0, 4.0, attempt=1))
    made = perfetto_trace(trace | {"step": None, "attempts": [1]})
    names = [event["args"]["name"] for event in made["traceEvents"] if event["name"] == "process_name"]
    assert names == ["run llama", "attempt 1"]


def test_microseconds_are_rounded_to_whole_numbers():
    assert microseconds(0.0015) == 2
    assert microseconds(1234.567) == 1_234_567
