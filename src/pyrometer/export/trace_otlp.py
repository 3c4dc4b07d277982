"""Traces as OTLP ExportTraceServiceRequests: as protobuf messages, and as OTLP JSON for files and collectors."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pyrometer import __version__

_NS_PER_US = 1_000
_IDS = ("traceId", "spanId", "parentSpanId")

Attributes = Mapping[str, Any]


def otlp_trace(trace: dict[str, Any]) -> dict[str, Any]:
    """Converts the trace of a step, a sample or a run to OTLP JSON, with one resource per rank or one per run."""
    request = {"resourceSpans": [], **MessageToDict(trace_request(trace), use_integers_for_enums=True)}
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span.setdefault("attributes", [])
                for name in _IDS:
                    if name in span:  # OTLP's JSON has hexadecimal where protobuf's JSON has base64
                        span[name] = base64.b64decode(span[name]).hex()
    return request


def trace_request(trace: dict[str, Any]) -> ExportTraceServiceRequest:
    """Converts the trace of a step, a sample or a run to a protobuf message."""
    request = ExportTraceServiceRequest()
    spans = sorted(trace["spans"], key=lambda span: -1 if span["rank"] is None else span["rank"])
    for rank, spans_of_rank in groupby(spans, key=lambda span: span["rank"]):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.extend(key_values(_resource(trace, rank)))
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name, scope_spans.scope.version = "pyrometer", __version__
        scope_spans.spans.extend(_span(trace, span) for span in spans_of_rank)
    return request


def key_values(attributes: Attributes) -> Iterator[KeyValue]:
    """Converts attributes to messages and skips absent values. Integers that do not fit into 64 bits become text."""
    for key, value in attributes.items():
        if value is None:
            continue
        made = KeyValue(key=key)
        if isinstance(value, bool):
            made.value.bool_value = value
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            made.value.int_value = value
        elif isinstance(value, float):
            made.value.double_value = value
        else:
            made.value.string_value = str(value).encode(errors="replace").decode()
        yield made


def _resource(trace: dict[str, Any], rank: int | None) -> Attributes:
    attributes = {"service.name": "training", "pyrometer.run": trace["run"]}
    if rank is not None:
        attributes |= {"pyrometer.rank": rank, "service.instance.id": f"{trace['run']}/{rank}"}
    return attributes


def _span(trace: dict[str, Any], span: dict[str, Any]) -> Span:
    start_us, duration_us = round(span["start_ms"] * 1000), round(span["duration_ms"] * 1000)
    own = {name: span.get(name, trace.get(name)) for name in ("step", "attempt", "batch", "micro_batch")}
    named = {f"pyrometer.{name}": value for name, value in own.items() if isinstance(value, int | str)}
    return Span(
        trace_id=bytes.fromhex(span.get("trace_id") or trace["trace_id"]),
        span_id=bytes.fromhex(span["span_id"]),
        parent_span_id=bytes.fromhex(span["parent_id"] or ""),
        name=span["name"],
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_us * _NS_PER_US,
        end_time_unix_nano=(start_us + duration_us) * _NS_PER_US,
        attributes=key_values({**named, **span["attributes"]}),
    )
