"""A trace as OpenTelemetry takes it: an ExportTraceServiceRequest in OTLP's JSON, to be sent to any collector."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from pyrometer import __version__

_INTERNAL = 1  # SPAN_KIND_INTERNAL
_NS_PER_US = 1_000


def otlp(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace of a step, a sample or a run: one resource for each rank (of a run: for the run)."""
    spans = sorted(trace["spans"], key=lambda span: -1 if span["rank"] is None else span["rank"])
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _resource(trace, rank)},
                "scopeSpans": [
                    {
                        "scope": {"name": "pyrometer", "version": __version__},
                        "spans": [_span(trace, span) for span in of_rank],
                    }
                ],
            }
            for rank, of_rank in groupby(spans, key=lambda span: span["rank"])
        ]
    }


def _resource(trace: dict[str, Any], rank: int | None) -> list[dict[str, Any]]:
    said = {"service.name": "training", "pyrometer.run": trace["run"]}
    if rank is not None:
        said |= {"pyrometer.rank": rank, "service.instance.id": f"{trace['run']}/{rank}"}
    return _attributes(said)


def _span(trace: dict[str, Any], span: dict[str, Any]) -> dict[str, Any]:
    start_us, lasted_us = round(span["start_ms"] * 1000), round(span["duration_ms"] * 1000)
    own = {name: span.get(name, trace.get(name)) for name in ("step", "attempt", "batch", "micro_batch")}
    named = {f"pyrometer.{name}": value for name, value in own.items() if isinstance(value, int | str)}
    told = {
        "traceId": span.get("trace_id") or trace["trace_id"],
        "spanId": span["span_id"],
        "name": span["name"],
        "kind": _INTERNAL,
        "startTimeUnixNano": str(start_us * _NS_PER_US),
        "endTimeUnixNano": str((start_us + lasted_us) * _NS_PER_US),
        "attributes": _attributes({**named, **span["attributes"]}),
    }
    return {**told, "parentSpanId": span["parent_id"]} if span["parent_id"] else told


def _attributes(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in said.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64-bit numbers are texts in OTLP's JSON
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
