"""OTLP/HTTP, as protobuf or JSON: bodies in, what training processes said out.

JSON is decoded by msgspec, which the server has anyway, and which looks only at the fields that are read; messages of
protobuf are those of `opentelemetry-proto` (1 MB), one record at a time. Both have the same names for the same fields,
so that one piece of code reads either.

What others send over OTLP is passed over and counted. Gauges in dcgm-exporter's names, and those of OpenTelemetry's
conventions for hardware (`hw.gpu.*`), are samples of GPUs, whoever sends them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pyrometer.collect.dcgm import measure_of, slot_address_of
from pyrometer.collect.gpu_device import SlotAddress
from pyrometer.collect.gpu_samples import Sample
from pyrometer.collect.said import (
    OUTCOMES,
    TOO_LONG,
    WRONG_TIME,
    WRONG_VALUE,
    Drawn,
    Happened,
    Message,
    News,
    Piece,
    RefusedError,
    Said,
    Value,
    Who,
    Window,
    reading,
)
from pyrometer.collect.wire import messages
from pyrometer.model.records import named_samples
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store.batches import OLDEST_MS

SIGNALS = ("logs", "traces", "metrics")
MOST_PACKED_BYTES = 16 * 2**20
MOST_BYTES = 64 * 2**20  # 20,000 windows of steps
MOST_OBJECTS = 2**21  # of JSON: they take a hundred bytes each, however small
MOST_PARTS = 2**18  # of protobuf: resources, scopes and records
MOST_RESOURCE_BYTES, MOST_RECORD_BYTES = 64 * 2**10, 2 * 2**20  # likewise
MOST_SAMPLES_BYTES = 2**20  # ids of the samples of one batch
MAX_STEP_LENGTHS_BYTES = 2**15  # lengths of the steps of one window; the SDK sends 15 kB at most
MOST_ATTRIBUTES, MOST_ATTRIBUTE = 64, 4096  # of a span: how many, and their length
MOST_AHEAD_MS = MS_PER_HOUR  # times that are further ahead are those of a wrong clock

FOREIGN, NO_VALUE, NO_DEVICE, MALFORMED = "foreign", "no value", "no device", "malformed"
NAMESPACE = "pyrometer."
_RESOURCE = {  # of several, the last: the name of a pod's host is the pod's, as a rule
    "host.name": "host", "k8s.node.name": "host",
    "k8s.pod.uid": "pod_uid", "k8s.pod.name": "pod_name", "k8s.namespace.name": "namespace",
}  # fmt: skip
_NO_VALUE_FLAG = 1
# OpenTelemetry's names for what a GPU does: dcgm-exporter's, and how much of its unit one is.
_HARDWARE = {
    "hw.gpu.utilization": ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "hw.gpu.memory.usage": ("DCGM_FI_DEV_FB_USED_BYTES", 1.0),
    "hw.power": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "hw.energy": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1.0),
    "hw.temperature": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
}
_OF_A_GPU = "hw.gpu."  # else it may be of anything, and says what of
_DEVICE_NUMBER = re.compile(r"(?:gpu|nvidia|cuda)[ :_#-]{0,2}(\d{1,4})\b", re.IGNORECASE)  # in a name for people

Attributes = dict[str, Any]


class OtlpError(Exception):
    """A body that cannot be read; the text is one sentence."""


class TooLargeError(OtlpError):
    """A body that holds more than is read at a time."""


class Received(NamedTuple):
    """What a body says; and how many records are not for us, or were refused, by reason."""

    said: list[Said]
    samples: list[Sample]
    left_out: Counter[str]
    refused: Counter[str]
    body_bytes: int = 0  # about what it takes in memory

    @property
    def size(self) -> int:
        """How many things it says."""
        return len(self.samples) + sum(len(what) for _, what in self.said)


def unpacked(packed: bytes, encoding: str) -> bytes:
    """The body behind its Content-Encoding; one that would be too large is not unpacked to its end."""
    if len(packed) > MOST_PACKED_BYTES:
        raise TooLargeError(f"The body is larger than {MOST_PACKED_BYTES >> 20} MiB: send less at a time.")
    if encoding != "gzip":
        return packed
    try:
        unpack = zlib.decompressobj(wbits=31)
        body = unpack.decompress(packed, MOST_BYTES + 1)
        if not unpack.eof or unpack.unused_data:  # several pieces, something behind it, too large, or cut short
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                body = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise OtlpError(f"The body of {len(packed)} bytes is not gzip, as its Content-Encoding says.") from None
    if len(body) > MOST_BYTES:
        raise TooLargeError(f"The body has more than {MOST_BYTES >> 20} MiB unpacked: send less at a time.")
    return body


def read(signal: str, body: bytes, *, is_json: bool, now_ms: int) -> Received:
    """What an export request of that signal says."""
    signal_of = _SIGNALS[signal]
    found = Received([], [], Counter(), Counter(), len(body))
    into = signal_of.reader(found, now_ms + MOST_AHEAD_MS)
    try:
        for attributes, records in (_of_json if is_json else _of_protobuf)(signal_of, body):
            into.take(attributes, records)
    except (msgspec.MsgspecError, DecodeError, ValueError, RecursionError, UnicodeError):
        form = "JSON" if is_json else "protobuf"
        raise OtlpError(f"The body of {len(body)} bytes is no export request of {signal} in OTLP's {form}.") from None
    return found


# -- forms: each gives the attributes of a resource and its records; one that cannot be read is None ------------------

_Resources = Iterator[tuple[Attributes | msgspec.Raw, Iterable[Any]]]  # of JSON, a resource as it is written


def _of_protobuf(signal: _Signal, body: bytes) -> _Resources:
    """Requests, resources and scopes are messages of messages. A resource's own field is 1, its records are in 2."""
    counted = itertools.count(1)

    def parts(message: bytes) -> Iterator[tuple[int, bytes]]:
        for part in messages(message):
            if next(counted) > MOST_PARTS:
                raise TooLargeError(f"The body has more than {MOST_PARTS} parts: send fewer records at a time.")
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
                    if len(field) > MOST_RESOURCE_BYTES:
                        raise TooLargeError(
                            f"A resource has {len(field)} bytes, {MOST_RESOURCE_BYTES >> 10} KiB at most."
                        )
                    resource.MergeFromString(field)
                elif part == 2:
                    scopes.append(field)
            yield _of_messages(resource.attributes), records(scopes)


def _record(signal: _Signal, record: bytes) -> Any:
    if len(record) > MOST_RECORD_BYTES:
        return None
    try:
        return signal.message.FromString(record)
    except DecodeError:
        return None


def _of_messages(attributes: Iterable[Any]) -> Attributes:
    found: Attributes = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        if kind in _SCALARS:
            found[attribute.key] = getattr(attribute.value, kind)
    return found


_SCALARS = frozenset(("string_value", "int_value", "double_value", "bool_value"))


class _Struct(msgspec.Struct, rename="camel", gc=False):
    """An object of OTLP's JSON: what is null is absent, whole numbers may be texts."""


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


# Half of a character that takes two escapes: a text that was cut in its middle. JavaScript and Python write it so;
# msgspec takes no body with one.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def _whole_escape(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if found[1] else found[0]


# What msgspec says of a record that is no JSON; of texts that are no UTF-8, Python's own word.
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def _of_json(signal: _Signal, body: bytes) -> _Resources:
    """All at once; one resource at a time where that fails, since something in it is not as it should be."""
    if body.count(b"{") > MOST_OBJECTS:
        raise TooLargeError(f"The body has more than {MOST_OBJECTS} objects: send fewer records at a time.")
    try:
        request = signal.request.decode(body)
    except _UNREADABLE:
        yield from _piece_by_piece(signal, body)
        return
    for of_resource in request.resources or ():
        records = [record for scope in of_resource.scopes or () for record in scope.records or ()]
        yield of_resource.resource or msgspec.Raw(b"{}"), records


def _piece_by_piece(signal: _Signal, body: bytes) -> _Resources:
    try:
        request = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        request = msgspec.json.decode(_ESCAPE.sub(_whole_escape, body), type=dict[str, msgspec.Raw])
    for raw in _field(request, signal.resources, list[msgspec.Raw]):
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            yield _resource(fields.get("resource", msgspec.Raw(b"{}"))), _json_records(signal, fields)
        except _UNREADABLE:  # not one word of it
            yield {}, [None]


def _resource(raw: msgspec.Raw) -> Attributes:
    resource = _RESOURCE_STRUCT.decode(raw)
    try:
        return _of_structs(resource.attributes if resource else None)
    except RefusedError as error:
        raise msgspec.ValidationError(str(error)) from None


_RESOURCE_STRUCT = msgspec.json.Decoder(_Resource | None)


def _field(fields: dict[str, msgspec.Raw], name: str, kind: Any) -> Any:
    found = msgspec.json.decode(fields[name], type=kind | None) if name in fields else None
    return [] if found is None and kind == list[msgspec.Raw] else found


def _json_records(signal: _Signal, fields: dict[str, msgspec.Raw]) -> list[Any]:
    """The records of a resource: all at once, and one by one where that fails."""
    found: list[Any] = []
    for scope in _field(fields, signal.scopes, list[msgspec.Raw]):
        records = msgspec.json.decode(scope, type=dict[str, msgspec.Raw]).get(signal.records)
        if records is None:
            continue
        try:
            found += signal.whole.decode(records) or []
        except _UNREADABLE:
            found += [_json_record(signal, record) for record in signal.raw.decode(records) or []]
    return found


def _json_record(signal: _Signal, record: msgspec.Raw) -> Any:
    try:
        return signal.one.decode(record)
    except _UNREADABLE:
        return None


def _of_structs(attributes: Iterable[_KeyValue] | None, within: str = "") -> Attributes:
    """Attributes by name; `within` a namespace, only those, without its name."""
    found: Attributes = {}
    skip = len(within)
    for attribute in attributes or ():
        value = attribute.value
        if value is None or not attribute.key.startswith(within):
            continue
        if (whole := value.int_value) is not None and value.string_value is None:
            found[attribute.key[skip:]] = whole if type(whole) is int else _int(whole)
        elif value.string_value is not None:
            found[attribute.key[skip:]] = value.string_value
        elif value.double_value is not None:
            found[attribute.key[skip:]] = _float(value.double_value)
        elif value.bool_value is not None:
            found[attribute.key[skip:]] = value.bool_value
    return found


def _int(value: int | str | None) -> int:
    """A whole number of 64 bits as JSON has it: as a number or as a text."""
    if isinstance(value, int):
        return value
    try:
        return int(value) if value is not None and len(value) <= 20 else -1
    except ValueError:
        raise RefusedError(WRONG_VALUE) from None


def _float(value: float | str) -> float:
    """A number as JSON has it: NaN and the infinities are texts."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise RefusedError(WRONG_VALUE) from None


def _attributes(record: Any) -> Attributes:
    if isinstance(record, _Struct):
        return _of_structs(record.attributes)  # type: ignore[attr-defined]
    return _of_messages(record.attributes)


def _our_attributes(record: Any) -> Attributes:
    """Those in our namespace, without its name."""
    if isinstance(record, _Struct):
        return _of_structs(record.attributes, NAMESPACE)  # type: ignore[attr-defined]
    return _ours(_of_messages(record.attributes))


# -- signals: what the records of each say ----------------------------------------------------------------------------

_who = reading(Who)


class _Reader:
    """Takes the records of one body."""

    def __init__(self, found: Received, newest_ms: int) -> None:
        self.found = found
        self.newest_ms = newest_ms

    def take(self, resource: Attributes | msgspec.Raw, records: Iterable[Any]) -> None:
        """What one resource says."""
        said: list[Message] = []
        refused: str | None = None
        who: Who | None = None
        about: Attributes = {}
        try:
            about = self.about(resource)
            who = self.speaker(resource, about)
        except RefusedError as error:
            refused = str(error)
        except _UNREADABLE:  # not one word of it
            self.found.refused[MALFORMED] += 1
            return
        for record in records:
            try:
                if record is None:
                    raise RefusedError(MALFORMED)
                for message in self.of(record, about, who, refused):
                    if message.time_ms > self.newest_ms:
                        raise RefusedError(WRONG_TIME)
                    said.append(message)
            except RefusedError as error:
                self.found.refused[str(error)] += 1
        if who is not None and said:
            self.found.said.append((who, said))

    def about(self, resource: Attributes | msgspec.Raw) -> Attributes:
        """What is said of a resource, where more than who speaks is asked for, or it lies there anyway."""
        return {} if isinstance(resource, msgspec.Raw) else resource

    def speaker(self, resource: Attributes | msgspec.Raw, about: Attributes) -> Who | None:
        """Who speaks. A process says the same of itself in every body, so it is made sense of once."""
        if about or not isinstance(resource, msgspec.Raw):
            return _speaker(about)
        known = hashlib.blake2b(resource, digest_size=16).digest()
        who = _SPEAKERS.get(known)
        if who is None:
            who = _speaker(_resource(resource))
            if who is not None:
                if len(_SPEAKERS) >= MOST_SPEAKERS:
                    _SPEAKERS.clear()
                _SPEAKERS[known] = who
        return who

    def of(self, record: Any, resource: Attributes, who: Who | None, refused: str | None) -> Iterator[Message]:
        """The messages of one record."""
        if refused is not None:
            raise RefusedError(refused)
        if who is None:
            self.found.left_out[FOREIGN] += 1
        else:
            yield from self.said(record)

    def said(self, record: Any) -> Iterator[Message]:
        """The messages of one record of ours."""
        raise NotImplementedError


MOST_SPEAKERS = 2**18  # 100 bytes each, beside what is remembered of ranks anyway
_SPEAKERS: dict[bytes, Who] = {}  # by a digest of what they say of themselves


def _speaker(resource: Attributes) -> Who | None:
    return _who(_identity(resource)) if resource.get(NAMESPACE + "launch") else None


def _identity(resource: Attributes) -> Attributes:
    found = {name: resource[key] for key, name in _RESOURCE.items() if key in resource}
    return found | _ours(resource)


def _ours(attributes: Attributes) -> Attributes:
    """What is in our namespace, without its name."""
    skip = len(NAMESPACE)
    return {key[skip:]: value for key, value in attributes.items() if key.startswith(NAMESPACE)}


class _Logs(_Reader):
    """Log records: news of a rank, windows, batches, events."""

    def said(self, record: Any) -> Iterator[Message]:
        name = record.event_name or _attributes(record).get("event.name")
        reads = _EVENTS.get(name) if isinstance(name, str) else None
        if reads is None:
            self.found.left_out[FOREIGN] += 1
            return
        values = _our_attributes(record)
        values["time_ms"] = _int(record.time_unix_nano or record.observed_time_unix_nano) // 1_000_000
        yield reads(values)


_news, _window, _drawn, _happened = reading(News), reading(Window), reading(Drawn), reading(Happened)
_ids = msgspec.json.Decoder(list[int | str])
_numbers = msgspec.json.Decoder(tuple[int, ...])


def _checked_news(values: Attributes) -> News:
    news = _news(values)
    if news.outcome is not None and news.outcome not in OUTCOMES:
        raise RefusedError(WRONG_VALUE)
    return news


def _checked_window(values: Attributes) -> Window:
    window = _window(values)
    if window.to_ms < window.time_ms:
        raise RefusedError(WRONG_TIME)
    listed = values.get("step_lengths")
    return window if listed is None else window._replace(step_lengths=_step_lengths(listed, window.steps))


def _step_lengths(listed: Any, steps: int) -> tuple[int, ...]:
    """Pairs of a length in microseconds and a number of steps, which must be all steps of the window."""
    if not isinstance(listed, str):
        raise RefusedError(WRONG_VALUE)
    if len(listed) > MAX_STEP_LENGTHS_BYTES:
        raise RefusedError(TOO_LONG)
    try:
        lengths = _numbers.decode(listed)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise RefusedError(WRONG_VALUE) from None
    possible = min(lengths, default=1) > 0 and max(lengths, default=1) < 2**63
    if len(lengths) % 2 or not possible or sum(lengths[1::2]) != steps:
        raise RefusedError(WRONG_VALUE)
    return lengths


def _checked_drawn(values: Attributes) -> Drawn:
    listed = values.get("samples")
    if listed is None:
        return _drawn(values)
    if not isinstance(listed, str):
        raise RefusedError(WRONG_VALUE)
    if len(listed) > MOST_SAMPLES_BYTES:
        raise RefusedError(TOO_LONG)
    try:
        samples = named_samples(_ids.decode(listed))
    except (msgspec.MsgspecError, RecursionError, ValueError):  # a number with too many digits is a ValueError
        raise RefusedError(WRONG_VALUE) from None
    return _drawn(values)._replace(**samples)


_EVENTS: dict[str, Callable[[Attributes], Message]] = {
    "pyrometer.run": _checked_news,
    "pyrometer.window": _checked_window,
    "pyrometer.batch": _checked_drawn,
    "pyrometer.event": _happened,
}


class _Traces(_Reader):
    """Spans: pieces of steps."""

    def said(self, record: Any) -> Iterator[Message]:
        attributes = _attributes(record)
        step = attributes.pop(NAMESPACE + "step", None)
        start_ns, end_ns = _int(record.start_time_unix_nano), _int(record.end_time_unix_nano)
        yield _piece(
            {
                "time_ms": start_ns // 1_000_000,
                "after_us": start_ns // 1000 % 1000,
                "duration_us": (end_ns - start_ns) // 1000,
                "name": record.name,
                "trace_id": _id(record.trace_id, 32),
                "span_id": _id(record.span_id, 16),
                "parent_id": _id(record.parent_span_id, 16) if record.parent_span_id else None,
                "step": step,
            }
        )._replace(attributes_json=_json_of(attributes))


_piece = reading(Piece)


def _id(value: str | bytes, length: int) -> str:
    text = value.hex() if isinstance(value, bytes) else value.lower()
    if len(text) != length or not set(text) <= _HEX:
        raise RefusedError(WRONG_VALUE)
    return text


_HEX = frozenset("0123456789abcdef")


def _json_of(attributes: Attributes) -> str | None:
    """Attributes as JSON, in the order of their names. What JSON has no number for is a text."""
    if not attributes:
        return None
    if len(attributes) > MOST_ATTRIBUTES or any(
        len(str(part)) > MOST_ATTRIBUTE for both in attributes.items() for part in both
    ):
        raise RefusedError(TOO_LONG)
    shown = {
        name: str(value) if isinstance(value, float) and value - value != 0 else value
        for name, value in sorted(attributes.items())
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


class _Metrics(_Reader):
    """Gauges and sums: values that a program reported, and samples of GPUs. Every point counts for itself."""

    def __init__(self, found: Received, newest_ms: int) -> None:
        super().__init__(found, newest_ms)
        self._places: dict[frozenset[tuple[str, Any]], SlotAddress | None] = {}

    def about(self, resource: Attributes | msgspec.Raw) -> Attributes:
        """All of it: it may name a device."""
        return _resource(resource) if isinstance(resource, msgspec.Raw) else resource

    def of(self, record: Any, resource: Attributes, who: Who | None, refused: str | None) -> Iterator[Message]:
        points = _points(record)
        named, factor = _HARDWARE.get(record.name.lower(), (record.name.upper(), 1.0))
        measure = measure_of(named)  # names of instruments are the same in any case
        if factor != 1.0 or named != record.name.upper():
            points = [point for point in points if self._is_of_gpu(record.name.lower(), resource, point)]
        if measure is None and refused is not None:
            self.found.refused[refused] += len(points)
        elif measure is None and who is None:
            self.found.left_out[FOREIGN] += len(points)
        else:
            for point in points:
                try:
                    if measure is not None:
                        self._sample(measure, factor, resource, point)
                    elif (value := self._value(record.name, point)) is not None:
                        yield value
                except RefusedError as error:
                    self.found.refused[str(error)] += 1

    def _value(self, name: str, point: Any) -> Value | None:
        number = _number(point)
        if number is None:
            self.found.left_out[NO_VALUE] += 1
            return None
        values = _our_attributes(point)
        value = _value({**values, "time_ms": _int(point.time_unix_nano) // 1_000_000, "name": name, "value": number})
        if value.time_ms > self.newest_ms:
            raise RefusedError(WRONG_TIME)
        return value

    def _is_of_gpu(self, name: str, resource: Attributes, point: Any) -> bool:
        """Whether a point in the words of the conventions is about a GPU as a whole; what is not is of others."""
        about = resource | _attributes(point)
        whole = about.get("hw.gpu.task", "general") == "general"
        if whole and (name.startswith(_OF_A_GPU) or about.get("hw.type") == "gpu"):
            return True
        self.found.left_out[FOREIGN] += 1
        return False

    def _sample(self, measure: int, factor: float, resource: Attributes, point: Any) -> None:
        number, time_ms = _number(point), _int(point.time_unix_nano) // 1_000_000
        place = self._place(resource, _attributes(point))
        if place is None:
            self.found.left_out[NO_DEVICE] += 1
        elif number is None or number != number:
            self.found.left_out[NO_VALUE] += 1
        else:
            if not OLDEST_MS <= time_ms <= self.newest_ms:
                raise RefusedError(WRONG_TIME)
            self.found.samples.append((measure, place, number * factor, time_ms))

    def _place(self, resource: Attributes, labels: Attributes) -> SlotAddress | None:
        """The device that attributes are about. All metrics of a device have one place between them."""
        host = resource.get("k8s.node.name") or resource.get("host.name")
        labels = _hardware(resource | labels) | {
            name: value for name, value in labels.items() if isinstance(value, str) and len(value) < MOST_ATTRIBUTE
        }
        if isinstance(host, str):
            labels.setdefault("Hostname", host)
        key = frozenset(labels.items())
        if key not in self._places:
            self._places[key] = slot_address_of(labels)
        return self._places[key]


_value = reading(Value)


def _hardware(about: Attributes) -> dict[str, str]:
    """What the conventions say of a device, in dcgm-exporter's words."""
    known, name = about.get("hw.id"), about.get("hw.name")
    found: dict[str, str] = {}
    if isinstance(known, str) and known.startswith("GPU-"):
        found["UUID"] = known
    number = _DEVICE_NUMBER.search(name) if isinstance(name, str) and len(name) < MOST_ATTRIBUTE else None
    if isinstance(known, str) and known.isdecimal():
        found["gpu"] = known
    elif number is not None:
        found["gpu"] = number[1]
    if isinstance(about.get("hw.model"), str):
        found["modelName"] = about["hw.model"]
    return found


def _points(metric: Any) -> Sequence[Any]:
    if isinstance(metric, _Struct):
        points = metric.gauge or metric.sum  # type: ignore[attr-defined]
        return (points.data_points if points else None) or []
    kind = metric.WhichOneof("data")
    found: Sequence[Any] = getattr(metric, kind).data_points if kind in ("gauge", "sum") else []
    return found


def _number(point: Any) -> float | None:
    """The value of a point; None where it says that it has none."""
    if (point.flags or 0) & _NO_VALUE_FLAG:
        return None
    if isinstance(point, _Struct):
        if point.as_double is not None:  # type: ignore[attr-defined]
            return _float(point.as_double)  # type: ignore[attr-defined]
        return None if point.as_int is None else _float(_int(point.as_int))  # type: ignore[attr-defined]
    kind = point.WhichOneof("value")
    return None if kind is None else float(getattr(point, kind))


def _request_of(signal: _Signal, struct: Any) -> Any:
    """A whole export request: resources, their scopes, their records."""
    scope: Any = _defined("Scope", {"records": (signal.records, list[struct] | None)})
    of_resource: Any = _defined(
        "OfResource", {"resource": ("resource", msgspec.Raw), "scopes": (signal.scopes, list[scope] | None)}
    )
    return _defined("Request", {"resources": (signal.resources, list[of_resource] | None)})


def _defined(name: str, fields: dict[str, tuple[str, Any]]) -> Any:
    """A struct of fields that are called otherwise in JSON."""
    return msgspec.defstruct(
        name,
        [(field, kind, msgspec.Raw() if kind is msgspec.Raw else None) for field, (_, kind) in fields.items()],
        rename={field: written for field, (written, _) in fields.items()},
        gc=False,
    )


class _Signal:
    """How one signal is written, and who reads it."""

    def __init__(self, name: str, records: str, message: Any, struct: Any, reader: type[_Reader]) -> None:
        self.resources, self.scopes, self.records = f"resource{name}", f"scope{name}", records
        self.message = message
        self.reader = reader
        self.whole = msgspec.json.Decoder(list[struct] | None)
        self.request = msgspec.json.Decoder(_request_of(self, struct))
        self.raw = msgspec.json.Decoder(list[msgspec.Raw] | None)
        self.one = msgspec.json.Decoder(struct)


_SIGNALS = {
    "logs": _Signal("Logs", "logRecords", LogRecord, _LogRecord, _Logs),
    "traces": _Signal("Spans", "spans", Span, _Span, _Traces),
    "metrics": _Signal("Metrics", "metrics", Metric, _Metric, _Metrics),
}
