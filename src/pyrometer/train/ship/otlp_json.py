"""Messages of ranks as OpenTelemetry's JSON, which any collector can receive, split, merge and forward.

Runs, windows, batches and events are log records, spans are spans, metrics and GPU samples are gauges. The identity of
a rank becomes the attributes of the resource. Redaction happens before a body is built.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyrometer.train.ship.spool import Identity, Message

BODY_BYTES = 2**20  # uncompressed; a single record may be larger
TEXT_CHARACTERS = 65_536  # of a text such as a stack or a message
SAMPLES_CHARACTERS = 2**20  # of the sample IDs of one batch

LOGS, TRACES, METRICS = "logs", "traces", "metrics"
REDACTED = "redacted"
REDACTIONS = ("stacks", "samples", "exceptions", "paths")

_RESOURCE = {
    "host": "host.name",
    "pid": "process.pid",
    "pod_uid": "k8s.pod.uid",
    "pod_name": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
    "node_name": "k8s.node.name",
}
_INFO, _WARN, _ERROR = (9, "INFO"), (13, "WARN"), (17, "ERROR")
_SEVERITY = {
    "stuck": _WARN,
    "nonfinite_loss": _WARN,
    "telemetry_dropped": _WARN,
    "exception": _ERROR,
    "out_of_memory": _ERROR,
    "oom_killed": _ERROR,
}
_INTERNAL = 1  # the kind of a span
_PATH = re.compile(r"(?<![\w/])(?:[A-Za-z][\w+.-]*:/|~|\.{0,2})/[^\s\"',;:()<>\[\]]+")
_METRIC_ATTRIBUTES = ("step", "goal", "source", "first_step", "last_step")
_SAMPLES = "pyrometer.samples"  # a list as JSON: it has a limit of its own, because a truncated list is not valid JSON
_MAX_INT, _MIN_INT = 2**63 - 1, -(2**63)


# -- Bodies ------------------------------------------------------------------------------------------------------------


class Bodies:
    """Encodes messages as bodies. `unreadable` counts malformed messages, which are skipped."""

    def __init__(self, redact: Iterable[str] = (), *, version: str = "", limit_bytes: int = BODY_BYTES) -> None:
        self._redact = frozenset(redact)
        self._scope = f'"scope":{_json({"name": "pyrometer.train", "version": version})}'
        self._limit_bytes = limit_bytes
        self.unreadable = 0

    def of(self, parts: Iterable[tuple[Identity, Iterable[Message]]]) -> Iterator[tuple[str, bytes]]:
        """Signals and their bodies, in an order that keeps the messages of each rank in sequence."""
        open_bodies = {signal: _Body(signal, self._scope) for signal in (LOGS, TRACES, METRICS)}
        for identity, messages in parts:
            resource = f'"resource":{_json({"attributes": _attributes(_resource(identity))})}'
            for message in messages:
                try:
                    signal, records = self._records(identity, message)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
                    self.unreadable += 1
                    continue
                body = open_bodies[signal]
                for name, record in records:
                    if body.size and body.size + len(record) > self._limit_bytes:
                        yield signal, body.take()
                    body.add(resource, name, record)
        for signal, body in open_bodies.items():
            if body.size:
                yield signal, body.take()

    def _records(self, identity: Identity, message: Message) -> tuple[str, list[tuple[str, str]]]:
        """The signal of a message, and its records as JSON with the name of their metric."""
        kind, fields = message
        if kind == "span":
            return TRACES, [("", _json(_span(self._clean(fields))))]
        if kind == "metric":
            point = _point(fields["time_ms"], fields["value"], _prefixed(fields, _METRIC_ATTRIBUTES))
            return METRICS, [(_text(str(fields["name"])), _json(point))]
        if kind == "gpu":
            return METRICS, [(name, _json(point)) for name, point in _gauges(identity, fields)]
        return LOGS, [("", _json(_LOGS[kind](self._clean(fields))))]

    def _clean(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields without what is redacted."""
        if not self._redact:
            return fields
        if "samples" in self._redact and isinstance(fields.get("samples"), (list, tuple)):
            fields = {**fields, "samples": None, "sample_count": len(fields["samples"])}
        hidden = {"stuck": "stacks", "exception": "exceptions", "out_of_memory": "exceptions"}.get(
            str(fields.get("kind"))
        )
        if hidden in self._redact and fields.get("message") is not None:
            fields = {**fields, "message": REDACTED}
        attributes = fields.get("attributes")
        if attributes:
            fields = {
                **fields,
                "attributes": {name: self._attribute(name, value) for name, value in attributes.items()},
            }
        if "paths" in self._redact:
            fields = {name: _without_paths(value) for name, value in fields.items()}
        return fields

    def _attribute(self, name: str, value: Any) -> Any:
        """Redacts the attributes that OpenTelemetry uses for the texts of exceptions."""
        if name == "exception.stacktrace" and self._redact & {"stacks", "exceptions"}:
            return REDACTED
        return REDACTED if name == "exception.message" and "exceptions" in self._redact else value


class _Body:
    """Records of one signal as JSON, by resource and metric name."""

    def __init__(self, signal: str, scope: str) -> None:
        self._signal, self._scope = signal, scope
        self._records: dict[str, dict[str, list[str]]] = {}
        self.size = 0

    def add(self, resource: str, name: str, record: str) -> None:
        if resource not in self._records:
            self.size += len(resource) + len(self._scope)
        self._records.setdefault(resource, {}).setdefault(name, []).append(record)
        self.size += len(record) + 1

    def take(self) -> bytes:
        """Returns the body and begins a new one."""
        plural = {LOGS: "Logs", TRACES: "Spans", METRICS: "Metrics"}[self._signal]
        resources = (
            f'{{{resource},"scope{plural}":[{{{self._scope},{self._inside(records)}}}]}}'
            for resource, records in self._records.items()
        )
        body = f'{{"resource{plural}":[{",".join(resources)}]}}'.encode()
        self._records, self.size = {}, 0
        return body

    def _inside(self, records: dict[str, list[str]]) -> str:
        if self._signal == METRICS:
            metrics = (
                f'{{"name":{_json(name)},"gauge":{{"dataPoints":[{",".join(points)}]}}}}'
                for name, points in records.items()
            )
            return f'"metrics":[{",".join(metrics)}]'
        name = "logRecords" if self._signal == LOGS else "spans"
        return f'"{name}":[{",".join(records[""])}]'


# -- Records -----------------------------------------------------------------------------------------------------------


def _resource(identity: Identity) -> dict[str, Any]:
    known = {name: value for name, value in identity.items() if value is not None}
    attributes: dict[str, Any] = {"service.name": "training", **known.pop("resource", {})}
    if "experiment" in known:
        attributes["service.name"] = str(known["experiment"])
    if known.get("gpu_uuid"):
        hardware = {"id": known["gpu_uuid"], "type": "gpu", "name": f"GPU {known.get('gpu_index', '')}".strip()}
        attributes.update((f"hw.{name}", value) for name, value in hardware.items())
        attributes["hw.model"] = known.get("gpu_model")
    if "launch" in known:
        attributes["service.instance.id"] = f"{known['launch']}/{known.get('rank', 0)}"
    attributes.update((_RESOURCE.get(name, f"pyrometer.{name}"), value) for name, value in known.items())
    return attributes


def _log(name: str, sentence: str, fields: dict[str, Any], severity: tuple[int, str] = _INFO) -> dict[str, Any]:
    attributes = {"event.name": f"pyrometer.{name}", **_prefixed(fields, (key for key in fields if key != "time_ms"))}
    return {
        "timeUnixNano": str(int(fields["time_ms"]) * 1_000_000),
        "severityNumber": severity[0],
        "severityText": severity[1],
        "eventName": f"pyrometer.{name}",
        "body": {"stringValue": _text(sentence)},
        "attributes": _attributes(attributes),
    }


def _run(fields: dict[str, Any]) -> dict[str, Any]:
    if "outcome" in fields:
        sentence = f"The rank ended: {fields['outcome']}."
    else:
        sentence = "The first step is complete." if "first_step_ms" in fields else "The rank is running."
    return _log("run", sentence, fields)


def _window(fields: dict[str, Any]) -> dict[str, Any]:
    took = f"{(fields['to_ms'] - fields['time_ms']) / 1000:.1f} s"
    steps = fields.get("steps", 0)
    if "step_lengths" in fields:
        fields = {**fields, "step_lengths": _json(fields["step_lengths"])}
    return _log(
        "window", f"{steps} steps from step {fields.get('first_step', '?')} took {took}." if steps else took, fields
    )


def _batch(fields: dict[str, Any]) -> dict[str, Any]:
    samples = fields.get("samples")
    count = fields.get("sample_count") if samples is None else len(samples)
    if samples is not None:
        text = _json(list(samples))
        fields = {**fields, "samples": text}
        if len(text) > SAMPLES_CHARACTERS:
            fields.update(samples=None, sample_count=count)
    held = f"{count} samples" if count is not None else "unknown samples"
    used = f", used by step {fields['step']}" if fields.get("step") is not None else ""
    return _log("batch", f"Batch {fields.get('send_index')}: {held}{used}.", fields)


def _event(fields: dict[str, Any]) -> dict[str, Any]:
    kind = str(fields["kind"])
    where = f" at step {fields['step']}" if fields.get("step") is not None else ""
    why = f": {fields['reason']}" if fields.get("reason") else ""
    return _log("event", f"{kind}{where}{why}.", fields, _SEVERITY.get(kind, _INFO))


_LOGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "run": _run,
    "window": _window,
    "batch": _batch,
    "event": _event,
}


def _span(fields: dict[str, Any]) -> dict[str, Any]:
    start_ns = int(fields["start_ns"])
    record = {
        "traceId": str(fields["trace_id"]),
        "spanId": str(fields["span_id"]),
        "name": _text(str(fields["name"])),
        "kind": _INTERNAL,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + max(int(fields["duration_ns"]), 0)),
        "attributes": _attributes({**_prefixed(fields, ("step",)), **(fields.get("attributes") or {})}),
    }
    if fields.get("parent_id"):
        record["parentSpanId"] = str(fields["parent_id"])
    return record


def _point(time_ms: int, value: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "timeUnixNano": str(int(time_ms) * 1_000_000),
        "asDouble": _double(float(value)),
        "attributes": _attributes(attributes),
    }


def _gauges(identity: Identity, fields: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    labels = {
        "UUID": fields.get("gpu_uuid"),
        "gpu": str(fields["gpu_index"]),
        "modelName": fields.get("gpu_model"),
        "Hostname": identity.get("host"),
    }
    for name, value in fields.items():
        if name.startswith("DCGM_") and value is not None:
            yield name, _point(fields["time_ms"], value, labels)


# -- Values ------------------------------------------------------------------------------------------------------------


def _prefixed(fields: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {f"pyrometer.{name}": fields[name] for name in names if fields.get(name) is not None}


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": _text(str(key)), "value": _any_value(_cut(value) if type(value) is str and key != _SAMPLES else value)}
        for key, value in values.items()
        if value is not None
    ]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and _MIN_INT <= value <= _MAX_INT:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    return {"stringValue": _text(value if isinstance(value, str) else str(value))}


def _double(value: float) -> float | str:
    """A number for JSON. OpenTelemetry defines names for the values that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: str) -> str:
    """Text that can be encoded as UTF-8."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _cut(value: str) -> str:
    """The first and the last part of a text that is too long."""
    half = TEXT_CHARACTERS // 2
    left_out = len(value) - 2 * half
    return value if left_out <= 0 else f"{value[:half]}\n… {left_out} characters omitted …\n{value[-half:]}"


def _without_paths(value: Any) -> Any:
    if isinstance(value, str):
        return _PATH.sub(REDACTED, value)
    if isinstance(value, (list, tuple)):
        return [_without_paths(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_paths(item) for name, item in value.items()}
    return value


# Created once, because `json.dumps` creates an encoder in every call. Values are flat, so there are no circles.
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode
