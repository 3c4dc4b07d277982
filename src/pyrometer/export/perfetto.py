"""A trace as ui.perfetto.dev and chrome://tracing open it: the JSON trace event format.

A rank is a process (in the trace of a run, an attempt is): its phases on one track, what the program named itself on
another. Arrows lead from where the last rank was ready to the waiting of the others.
"""

from __future__ import annotations

from typing import Any

from pyrometer.answers.runs.trace import PHASES

_PHASES, _OWN = 0, 1  # tracks
_STEP = "step"


def perfetto(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace of a step, a sample or a run."""
    rows = sorted({_process(span) for span in trace["spans"]})
    meta = [event for number in rows for event in _named(number, _title(trace, number))]
    spans = [_slice(trace, span) for span in trace["spans"]]
    return {
        "displayTimeUnit": "ms",
        "otherData": {name: str(trace[name]) for name in ("run", "step", "trace_id") if trace[name] is not None},
        "traceEvents": [*meta, *spans, *_arrows(trace)],
    }


def _process(span: dict[str, Any]) -> int:
    """Which process a span belongs to: its rank, its attempt, or, of a whole run, none of them."""
    number = span["rank"] if span["rank"] is not None else span.get("attempt")
    return -1 if number is None else int(number)


def _title(trace: dict[str, Any], number: int) -> str:
    if "attempts" in trace and trace["step"] is None:
        return f"run {trace['run']}" if number < 0 else f"attempt {number}"
    return f"rank {number}"


def _named(number: int, title: str) -> list[dict[str, Any]]:
    order = {"ph": "M", "name": "process_sort_index", "pid": number, "tid": _PHASES, "args": {"sort_index": number}}
    return [
        {"ph": "M", "name": "process_name", "pid": number, "tid": _PHASES, "args": {"name": title}},
        order,
        {"ph": "M", "name": "thread_name", "pid": number, "tid": _PHASES, "args": {"name": "phases"}},
        {"ph": "M", "name": "thread_name", "pid": number, "tid": _OWN, "args": {"name": "own spans"}},
    ]


def _slice(trace: dict[str, Any], span: dict[str, Any]) -> dict[str, Any]:
    said = {name: span.get(name) for name in ("batch", "micro_batch", "step", "attempt", "span_id")}
    of_steps = span["rank"] is not None
    own = of_steps and span["name"] not in (*PHASES, _STEP)
    return {
        "ph": "X",
        "name": span["name"],
        "cat": "own" if own else "phase",
        "ts": microseconds(span["start_ms"]),
        "dur": microseconds(span["duration_ms"]),
        "pid": _process(span),
        "tid": _OWN if own else _PHASES,
        "args": {**{name: value for name, value in said.items() if value is not None}, **span["attributes"]},
    }


def _arrows(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """From the synchronisation of the rank that was ready last to that of every other."""
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
    """Milliseconds with three places as whole microseconds: answers have no finer ones."""
    return round(ms * 1000)
