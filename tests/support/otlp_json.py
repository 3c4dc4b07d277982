"""Identities and messages as OTLP JSON, written from the specification without the code of the product."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Identity = dict[str, Any]
Message = tuple[str, dict[str, Any]]
Part = tuple[Identity, list[Message]]

NAMES = {
    "host": "host.name",
    "pid": "process.pid",
    "pod_uid": "k8s.pod.uid",
    "pod_name": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
}
REQUESTS = {
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
LISTS = {"logs": "logRecords", "traces": "spans", "metrics": "metrics"}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value_of(value)} for key, value in values.items() if value is not None]


def value_of(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": double(value)}
    return {"stringValue": value}


def double(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def resource(identity: Identity) -> dict[str, Any]:
    named = {NAMES.get(key, f"pyrometer.{key}"): value for key, value in identity.items()}
    extra = {"service.name": identity.get("experiment", "training")}
    if "launch" in identity:
        extra["service.instance.id"] = f"{identity['launch']}/{identity.get('rank', 0)}"
    return {"attributes": attributes(extra | named)}


def ns(ms: int) -> str:
    return str(ms * 1_000_000)


def record(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    values = {f"pyrometer.{key}": value for key, value in fields.items() if key != "time_ms"}
    if "samples" in fields and kind == "batch":
        values["pyrometer.samples"] = json.dumps(fields["samples"])
    return {
        "timeUnixNano": ns(fields["time_ms"]),
        "severityNumber": 9,
        "eventName": f"pyrometer.{kind}",
        "body": {"stringValue": f"a {kind}"},
        "attributes": attributes({"event.name": f"pyrometer.{kind}"} | values),
    }


def span(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "traceId": fields["trace_id"],
        "spanId": fields["span_id"],
        "parentSpanId": fields.get("parent_id", ""),
        "name": fields["name"],
        "kind": 1,
        "startTimeUnixNano": str(fields["start_ns"]),
        "endTimeUnixNano": str(fields["start_ns"] + fields["duration_ns"]),
        "attributes": attributes({"pyrometer.step": fields.get("step"), **fields.get("attributes", {})}),
    }


def gauge(name: str, time_ms: int, value: float, labels: dict[str, Any]) -> dict[str, Any]:
    point = {"timeUnixNano": ns(time_ms), "asDouble": double(value), "attributes": attributes(labels)}
    return {"name": name, "gauge": {"dataPoints": [point]}}


def gauges(identity: Identity, kind: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if kind == "metric":
        about = {f"pyrometer.{key}": fields.get(key) for key in ("step", "goal", "source", "first_step", "last_step")}
        yield gauge(fields["name"], fields["time_ms"], fields["value"], about)
        return
    labels = {
        "UUID": fields["gpu_uuid"],
        "gpu": str(fields["gpu_index"]),
        "modelName": fields["gpu_model"],
        "Hostname": identity["host"],
    }
    for name, value in fields.items():
        if name.startswith("DCGM_"):
            yield gauge(name, fields["time_ms"], float(value), labels)


def signal_of(kind: str) -> str:
    return {"span": "traces", "metric": "metrics", "gpu": "metrics"}.get(kind, "logs")


def requests(parts: Iterable[Part]) -> dict[str, dict[str, Any]]:
    """The export requests of each signal as JSON values."""
    found: dict[str, list[Any]] = {}
    for identity, messages in parts:
        records: dict[str, list[Any]] = {}
        for kind, fields in messages:
            signal = signal_of(kind)
            made = (
                [span(fields)]
                if kind == "span"
                else [record(kind, fields)]
                if signal == "logs"
                else [*gauges(identity, kind, fields)]
            )
            records.setdefault(signal, []).extend(made)
        for signal, listed in records.items():
            name = {"logs": "Logs", "traces": "Spans", "metrics": "Metrics"}[signal]
            scope = {"scope": {"name": "pyrometer.train", "version": "0"}, LISTS[signal]: listed}
            found.setdefault(signal, []).append({"resource": resource(identity), f"scope{name}": [scope]})
    return {
        signal: {{"logs": "resourceLogs", "traces": "resourceSpans", "metrics": "resourceMetrics"}[signal]: listed}
        for signal, listed in found.items()
    }


def bodies(parts: Iterable[Part]) -> dict[str, bytes]:
    """The same, as bytes."""
    return {signal: json.dumps(request).encode() for signal, request in requests(parts).items()}


def as_protobuf(signal: str, request: dict[str, Any]) -> bytes:
    """The same request in OTLP's protobuf: ids are hex in OTLP's JSON, and base64 in protobuf's own."""
    copy = json.loads(json.dumps(request))
    if signal == "traces":
        import base64

        for of_resource in copy["resourceSpans"]:
            for scope in of_resource["scopeSpans"]:
                for one in scope["spans"]:
                    for key in ("traceId", "spanId", "parentSpanId"):
                        one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()
    return json_format.ParseDict(copy, REQUESTS[signal]()).SerializeToString()


def put_in_inbox(folder: Path, parts: Iterable[Part], name: str) -> None:
    """Writes the bodies into the inbox of a folder, like `pyrometer run --data`."""
    inbox = folder / "inbox" / "otlp"
    inbox.mkdir(parents=True, exist_ok=True)
    for signal, body in bodies(parts).items():
        (inbox / f"{name}.{signal}.json.gz").write_bytes(gzip.compress(body, mtime=0))


# -- a small run ------------------------------------------------------------------------------------------------------


def trace_id(launch: str, step: int) -> str:
    return hashlib.sha256(f"{launch}:{step}".encode()).hexdigest()[:32]


def span_id(launch: str, step: int, rank: int, number: int) -> str:
    return hashlib.sha256(f"{launch}:{step}:{rank}:{number}".encode()).hexdigest()[:16]


def window(from_ms: int, first_step: int, steps: int = 10, lasts_ms: int = 10_000, **more: Any) -> Message:
    amounts = {"data_ms": 500, "forward_ms": 3_000, "backward_ms": 5_000, "comm_ms": 400, "optimizer_ms": 600}
    known = {
        "copy_ms": 100,
        "checkpoint_ms": 0,
        "evaluate_ms": 0,
        "compile_ms": 0,
        "garbage_ms": 20,
        "step_p50_us": lasts_ms * 1000 // steps,
        "step_max_us": lasts_ms * 1500 // steps,
        "samples": 8 * steps,
        "tokens": 4096 * steps,
        "flops": 10**12 * steps,
        "memory_peak_mib": 900,
        "memory_reserved_mib": 1000,
    }
    fields = {"time_ms": from_ms, "to_ms": from_ms + lasts_ms, "first_step": first_step, "steps": steps}
    return "window", {**fields, **amounts, **known, **more}
