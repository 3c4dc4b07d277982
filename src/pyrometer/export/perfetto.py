"""Traces in the JSON trace event format, for ui.perfetto.dev and chrome://tracing.

Each rank is a process (in the trace of a run, each attempt). Phases are on one track, and the program's own spans on
another. Arrows lead from the moment the last rank was ready to the waiting time of the other ranks.
"""

from __future__ import annotations

from typing import Any

from pyrometer.answers.runs.trace import PHASES

_PHASES, _OWN_SPANS = 0, 1  # tracks
_STEP = "step"


def perfetto_trace(trace: dict[str, Any]) -> dict[str, Any]:
    """Converts the trace of a step, a sample or a run."""
    rows = sorted({_process(span) for span in trace["spans"]})
    meta = [event for number in rows for event in _process_metadata(number, _title(trace, number))]
    spans = [_slice(trace, span) for span in trace["spans"]]
    return {
        "displayTimeUnit": "ms",
        "otherData": {name: str(trace[name]) for name in ("run", "step", "trace_id") if trace[name] is not None},
        "traceEvents": [*meta, *spans, *_arrows(trace)],
    }


def _process(span: dict[str, Any]) -> int:
    """The process of a span: its rank or its attempt; -1 for the whole run."""
    number = span["rank"] if span["rank"] is not None else span.get("attempt")
    return -1 if number is None else int(number)


def _title(trace: dict[str, Any], number: int) -> str:
    if "attempts" in trace and trace["step"] is None:
        return f"run {trace['run']}" if number < 0 else f"attempt {number}"
    return f"rank {number}"


def _process_metadata(number: int, title: str) -> list[dict[str, Any]]:
    order = {"ph": "M", "name": "process_sort_index", "pid": number, "tid": _PHASES, "args": {"sort_index": number}}
    return [
        {"ph": "M", "name": "process_name", "pid": number, "tid": _PHASES, "args": {"name": title}},
        order,
        {"ph": "M", "name": "thread_name", "pid": number, "tid": _PHASES, "args": {"name": "phases"}},
        {"ph": "M", "name": "thread_name", "pid": number, "tid": _OWN_SPANS, "args": {"name": "own spans"}},
    ]


def _slice(trace: dict[str, Any], span: dict[str, Any]) -> dict[str, Any]:
    arguments = {name: span.get(name) for name in ("batch", "micro_batch", "step", "attempt", "span_id")}
    of_steps = span["rank"] is not None
    own = of_steps and span["name"] not in (*PHASES, _STEP)
    return {
        "ph": "X",
        "name": span["name"],
        "cat": "own" if own else "phase",
        "ts": microseconds(span["start_ms"]),
        "dur": microseconds(span["duration_ms"]),
        "pid": _process(span),
        "tid": _OWN_SPANS if own else _PHASES,
        "args": {**{name: value for name, value in arguments.items() if value is not None}, **span["attributes"]},
    }


def _arrows(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Arrows from the synchronization of the rank that was ready last to that of each other rank."""
    synced = {span["rank"]: span for span in trace["spans"] if span["name"] == "sync"}
    last = trace["critical_path"][0]["rank"] if trace["critical_path"] else None
    if last not in synced:
        return []
    ready_us = microseconds(synced[last]["start_ms"])
    arrows = []
    for rank, span in synced.items():
        if rank == last:
            continue
        flow = {"name": "waited for", "cat": "wait", "id": f"{trace['trace_id']}/{rank}"}
        begin_us, end_us = microseconds(span["start_ms"]), microseconds(span["start_ms"] + span["duration_ms"])
        arrows.append({**flow, "ph": "s", "ts": ready_us, "pid": last, "tid": _PHASES})
        at_us = min(max(ready_us, begin_us), end_us)
        arrows.append({**flow, "ph": "f", "bp": "e", "ts": at_us, "pid": rank, "tid": _PHASES})
    return arrows


def microseconds(ms: float) -> int:
    """Converts milliseconds to whole microseconds, the resolution of answers."""
    return round(ms * 1000)
