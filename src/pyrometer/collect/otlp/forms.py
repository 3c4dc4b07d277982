"""The two forms of OTLP bodies, protobuf and JSON: each gives resources with their records.

JSON is decoded by msgspec, which looks only at the fields that are read. Protobuf messages are those of
`opentelemetry-proto`, decoded one record at a time. Fields have the same names in both forms, so that one reader reads
either. Records that cannot be decoded become None.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pyrometer.collect.otlp.messages import WRONG_VALUE, RejectedMessageError
from pyrometer.collect.prometheus.protobuf_wire import messages

MAX_OBJECTS = 2**21  # in JSON: an object takes a hundred bytes, however small it is
MAX_PARTS = 2**18  # in protobuf: resources, scopes and records
MAX_RESOURCE_BYTES, MAX_RECORD_BYTES = 64 * 2**10, 2 * 2**20  # in protobuf
NAMESPACE = "pyrometer."  # prefix of our own attributes
_NO_VALUE_FLAG = 1

Attributes = dict[str, Any]
Resources = Iterator[tuple[Attributes | msgspec.Raw, Iterable[Any]]]  # a resource of JSON may come undecoded


class OtlpError(Exception):
    """A body that cannot be read; the message is one sentence."""


class OtlpTooLargeError(OtlpError):
    """A body that is larger than the limit."""


def protobuf_resources(signal: SignalForm, body: bytes) -> Resources:
    """The resources of a protobuf body: in a resource, field 1 describes it and field 2 has its scopes."""
    counted = itertools.count(1)

    def parts(message: bytes) -> Iterator[tuple[int, bytes]]:
        for part in messages(message):
            if next(counted) > MAX_PARTS:
                raise OtlpTooLargeError(f"The body has more than {MAX_PARTS} parts. Send fewer records at a time.")
            yield part

    def records(scopes: list[bytes]) -> Iterator[Any]:
        for scope in scopes:
            for number, record in parts(scope):
                if number == 2:
                    yield _record(signal, record)

    for number, of_resource in parts(body):
        if number == 1:
            resource, scopes = Resource(), []
            for part, field in parts(of_resource):
                if part == 1:
                    if len(field) > MAX_RESOURCE_BYTES:
                        raise OtlpTooLargeError(
                            f"A resource has {len(field)} bytes; the limit is {MAX_RESOURCE_BYTES >> 10} KiB."
                        )
                    resource.MergeFromString(field)
                elif part == 2:
                    scopes.append(field)
            yield _message_attributes(resource.attributes), records(scopes)


def _record(signal: SignalForm, record: bytes) -> Any:
    if len(record) > MAX_RECORD_BYTES:
        return None
    try:
        return signal.message.FromString(record)
    except DecodeError:
        return None


def _message_attributes(attributes: Iterable[Any]) -> Attributes:
    found: Attributes = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        if kind in _SCALARS:
            found[attribute.key] = getattr(attribute.value, kind)
    return found


_SCALARS = frozenset(("string_value", "int_value", "double_value", "bool_value"))


class _Struct(msgspec.Struct, rename="camel", gc=False):
    """An object of OTLP's JSON: null means absent, and integers may be strings."""


class _Any(_Struct):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | int | str | None = None
    bool_value: bool | None = None


class _KeyValue(_Struct):
    key: str = ""
    value: _Any | None = None


class _Resource(_Struct):
    attributes: list[_KeyValue] | None = None


class _LogRecord(_Struct):
    time_unix_nano: int | str | None = None
    observed_time_unix_nano: int | str | None = None
    attributes: list[_KeyValue] | None = None
    event_name: str | None = None


class _Span(_Struct):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str = ""
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: list[_KeyValue] | None = None


class _Point(_Struct):
    time_unix_nano: int | str | None = None
    attributes: list[_KeyValue] | None = None
    as_double: float | int | str | None = None
    as_int: int | str | None = None
    flags: int | None = None


class _Points(_Struct):
    data_points: list[_Point] | None = None


class _Metric(_Struct):
    name: str = ""
    gauge: _Points | None = None
    sum: _Points | None = None


# Half of a character that takes two escapes, from a text that was cut in the middle. JavaScript and Python write it
# like this, and msgspec rejects the body.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def _whole_escape(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if found[1] else found[0]


# Raised by msgspec for a record that is not JSON, and by Python for a text that is not UTF-8.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def json_resources(signal: SignalForm, body: bytes) -> Resources:
    """The resources of a JSON body: decoded at once, or one at a time if something in the body is malformed."""
    if body.count(b"{") > MAX_OBJECTS:
        raise OtlpTooLargeError(f"The body has more than {MAX_OBJECTS} objects. Send fewer records at a time.")
    try:
        request = signal.request.decode(body)
    except UNREADABLE:
        yield from _json_resources_one_by_one(signal, body)
        return
    for of_resource in request.resources or ():
        records = [record for scope in of_resource.scopes or () for record in scope.records or ()]
        yield of_resource.resource or msgspec.Raw(b"{}"), records


def _json_resources_one_by_one(signal: SignalForm, body: bytes) -> Resources:
    try:
        request = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        request = msgspec.json.decode(_ESCAPE.sub(_whole_escape, body), type=dict[str, msgspec.Raw])
    for raw in _field(request, signal.resources, list[msgspec.Raw]):
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            yield resource_attributes(fields.get("resource", msgspec.Raw(b"{}"))), _json_records(signal, fields)
        except UNREADABLE:  # the whole resource is unusable
            yield {}, [None]


def resource_attributes(raw: msgspec.Raw) -> Attributes:
    """The attributes of an undecoded resource of JSON."""
    resource = _RESOURCE_DECODER.decode(raw)
    try:
        return _struct_attributes(resource.attributes if resource else None)
    except RejectedMessageError as error:
        raise msgspec.ValidationError(str(error)) from None


_RESOURCE_DECODER = msgspec.json.Decoder(_Resource | None)


def _field(fields: dict[str, msgspec.Raw], name: str, kind: Any) -> Any:
    found = msgspec.json.decode(fields[name], type=kind | None) if name in fields else None
    return [] if found is None and kind == list[msgspec.Raw] else found


def _json_records(signal: SignalForm, fields: dict[str, msgspec.Raw]) -> list[Any]:
    """The records of a resource: decoded at once, or one at a time if one of them is malformed."""
    found: list[Any] = []
    for scope in _field(fields, signal.scopes, list[msgspec.Raw]):
        records = msgspec.json.decode(scope, type=dict[str, msgspec.Raw]).get(signal.records)
        if records is None:
            continue
        try:
            found += signal.whole.decode(records) or []
        except UNREADABLE:
            found += [_json_record(signal, record) for record in signal.raw.decode(records) or []]
    return found


def _json_record(signal: SignalForm, record: msgspec.Raw) -> Any:
    try:
        return signal.one.decode(record)
    except UNREADABLE:
        return None


def _struct_attributes(attributes: Iterable[_KeyValue] | None, within: str = "") -> Attributes:
    """Attributes of JSON by name; with `within`, only those in that namespace, without its prefix."""
    found: Attributes = {}
    skip = len(within)
    for attribute in attributes or ():
        value = attribute.value
        if value is None or not attribute.key.startswith(within):
            continue
        if (whole := value.int_value) is not None and value.string_value is None:
            found[attribute.key[skip:]] = whole if type(whole) is int else int_of(whole)
        elif value.string_value is not None:
            found[attribute.key[skip:]] = value.string_value
        elif value.double_value is not None:
            found[attribute.key[skip:]] = float_of(value.double_value)
        elif value.bool_value is not None:
            found[attribute.key[skip:]] = value.bool_value
    return found


def int_of(value: int | str | None) -> int:
    """A 64-bit integer of JSON: a number or a string."""
    if isinstance(value, int):
        return value
    try:
        return int(value) if value is not None and len(value) <= 20 else -1
    except ValueError:
        raise RejectedMessageError(WRONG_VALUE) from None


def float_of(value: float | str) -> float:
    """A number of JSON: NaN and the infinities are strings."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise RejectedMessageError(WRONG_VALUE) from None


def attributes_of(record: Any) -> Attributes:
    """The attributes of a record by name."""
    if isinstance(record, _Struct):
        return _struct_attributes(record.attributes)  # type: ignore[attr-defined]
    return _message_attributes(record.attributes)


def own_attributes(record: Any) -> Attributes:
    """The attributes of a record in our namespace, without its prefix."""
    if isinstance(record, _Struct):
        return _struct_attributes(record.attributes, NAMESPACE)  # type: ignore[attr-defined]
    return own_namespace(_message_attributes(record.attributes))


def own_namespace(attributes: Attributes) -> Attributes:
    """Those of some attributes that are in our namespace, without its prefix."""
    skip = len(NAMESPACE)
    return {key[skip:]: value for key, value in attributes.items() if key.startswith(NAMESPACE)}


def points_of(metric: Any) -> Sequence[Any]:
    """The points of a gauge or a sum."""
    if isinstance(metric, _Struct):
        points = metric.gauge or metric.sum  # type: ignore[attr-defined]
        return (points.data_points if points else None) or []
    kind = metric.WhichOneof("data")
    found: Sequence[Any] = getattr(metric, kind).data_points if kind in ("gauge", "sum") else []
    return found


def value_of_point(point: Any) -> float | None:
    """The value of a point; None if the point is flagged as having none."""
    if (point.flags or 0) & _NO_VALUE_FLAG:
        return None
    if isinstance(point, _Struct):
        if point.as_double is not None:  # type: ignore[attr-defined]
            return float_of(point.as_double)  # type: ignore[attr-defined]
        return None if point.as_int is None else float_of(int_of(point.as_int))  # type: ignore[attr-defined]
    kind = point.WhichOneof("value")
    return None if kind is None else float(getattr(point, kind))


def _request_of(signal: SignalForm, struct: Any) -> Any:
    """The struct of an export request: resources, their scopes, their records."""
    scope: Any = _defined("Scope", {"records": (signal.records, list[struct] | None)})
    of_resource: Any = _defined(
        "OfResource", {"resource": ("resource", msgspec.Raw), "scopes": (signal.scopes, list[scope] | None)}
    )
    return _defined("Request", {"resources": (signal.resources, list[of_resource] | None)})


def _defined(name: str, fields: dict[str, tuple[str, Any]]) -> Any:
    """A struct whose fields have other names in JSON."""
    return msgspec.defstruct(
        name,
        [(field, kind, msgspec.Raw() if kind is msgspec.Raw else None) for field, (_, kind) in fields.items()],
        rename={field: written for field, (written, _) in fields.items()},
        gc=False,
    )


class SignalForm:
    """The names and decoders of one signal."""

    def __init__(self, name: str, records: str, message: Any, struct: Any) -> None:
        self.resources, self.scopes, self.records = f"resource{name}", f"scope{name}", records
        self.message = message
        self.whole = msgspec.json.Decoder(list[struct] | None)
        self.request = msgspec.json.Decoder(_request_of(self, struct))
        self.raw = msgspec.json.Decoder(list[msgspec.Raw] | None)
        self.one = msgspec.json.Decoder(struct)


FORMS = {
    "logs": SignalForm("Logs", "logRecords", LogRecord, _LogRecord),
    "traces": SignalForm("Spans", "spans", Span, _Span),
    "metrics": SignalForm("Metrics", "metrics", Metric, _Metric),
}
