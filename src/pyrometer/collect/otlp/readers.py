"""Log records and spans of training processes, as messages. Records of other senders are skipped and counted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.gpu.samples import Sample
from pyrometer.collect.otlp.forms import (
    NAMESPACE,
    UNREADABLE,
    Attributes,
    attributes_of,
    int_of,
    own_attributes,
    own_namespace,
    resource_attributes,
)
from pyrometer.collect.otlp.messages import (
    OUTCOMES,
    TOO_LONG,
    WRONG_TIME,
    WRONG_VALUE,
    BatchMessage,
    EventMessage,
    Message,
    RankIdentity,
    RankMessages,
    RankStatus,
    RejectedMessageError,
    SpanMessage,
    WindowMessage,
    parser_of,
)
from pyrometer.model.records import named_samples

FOREIGN, MALFORMED = "foreign", "malformed"  # reasons by which skipped records are counted
MAX_SAMPLES_BYTES = 2**20  # ids of the samples of one batch
MAX_STEP_LENGTHS_BYTES = 2**15  # lengths of the steps of one window; the SDK sends 15 kB at most
MAX_ATTRIBUTES, MAX_ATTRIBUTE_CHARS = 64, 4096  # of a span
MAX_SENDERS = 2**18  # 100 bytes each
_RESOURCE_FIELDS = {  # the last one counts: the host name of a pod is usually the name of the pod
    "host.name": "host",
    "k8s.node.name": "host",
    "k8s.pod.uid": "pod_uid",
    "k8s.pod.name": "pod_name",
    "k8s.namespace.name": "namespace",
}


class OtlpBody(NamedTuple):
    """The contents of a body, and how many records were skipped or rejected, by reason."""

    messages: list[RankMessages]
    samples: list[Sample]
    left_out: Counter[str]
    refused: Counter[str]
    body_bytes: int = 0  # roughly the memory that it takes

    @property
    def size(self) -> int:
        """The number of messages and samples."""
        return len(self.samples) + sum(len(of_rank) for _, of_rank in self.messages)


_who = parser_of(RankIdentity)


class SignalReader:
    """Reads the records of one body."""

    def __init__(self, found: OtlpBody, newest_ms: int) -> None:
        self.found = found
        self.newest_ms = newest_ms

    def take(self, resource: Attributes | msgspec.Raw, records: Iterable[Any]) -> None:
        """Reads one resource."""
        messages: list[Message] = []
        refused: str | None = None
        who: RankIdentity | None = None
        about: Attributes = {}
        try:
            about = self.about(resource)
            who = self.sender(resource, about)
        except RejectedMessageError as error:
            refused = str(error)
        except UNREADABLE:  # the whole resource is unusable
            self.found.refused[MALFORMED] += 1
            return
        for record in records:
            try:
                if record is None:
                    raise RejectedMessageError(MALFORMED)
                for message in self.of(record, about, who, refused):
                    if message.time_ms > self.newest_ms:
                        raise RejectedMessageError(WRONG_TIME)
                    messages.append(message)
            except RejectedMessageError as error:
                self.found.refused[str(error)] += 1
        if who is not None and messages:
            self.found.messages.append((who, messages))

    def about(self, resource: Attributes | msgspec.Raw) -> Attributes:
        """The attributes of a resource, if the reader needs them or they are decoded anyway."""
        return {} if isinstance(resource, msgspec.Raw) else resource

    def sender(self, resource: Attributes | msgspec.Raw, about: Attributes) -> RankIdentity | None:
        """The sending process. Its description is the same in every body, so it is decoded once."""
        if about or not isinstance(resource, msgspec.Raw):
            return _sender(about)
        known = hashlib.blake2b(resource, digest_size=16).digest()
        who = _SENDERS.get(known)
        if who is None:
            who = _sender(resource_attributes(resource))
            if who is not None:
                if len(_SENDERS) >= MAX_SENDERS:
                    _SENDERS.clear()
                _SENDERS[known] = who
        return who

    def of(self, record: Any, resource: Attributes, who: RankIdentity | None, refused: str | None) -> Iterator[Message]:
        """The messages of one record."""
        if refused is not None:
            raise RejectedMessageError(refused)
        if who is None:
            self.found.left_out[FOREIGN] += 1
        else:
            yield from self.messages_of(record)

    def messages_of(self, record: Any) -> Iterator[Message]:
        """The messages of one Pyrometer record."""
        raise NotImplementedError


_SENDERS: dict[bytes, RankIdentity] = {}  # by a digest of their resource


def _sender(resource: Attributes) -> RankIdentity | None:
    return _who(_identity(resource)) if resource.get(NAMESPACE + "launch") else None


def _identity(resource: Attributes) -> Attributes:
    found = {name: resource[key] for key, name in _RESOURCE_FIELDS.items() if key in resource}
    return found | own_namespace(resource)


class LogReader(SignalReader):
    """Reads log records: the status of a rank, step windows, batches, events."""

    def messages_of(self, record: Any) -> Iterator[Message]:
        """The message of a log record."""
        name = record.event_name or attributes_of(record).get("event.name")
        reads = _EVENTS.get(name) if isinstance(name, str) else None
        if reads is None:
            self.found.left_out[FOREIGN] += 1
            return
        values = own_attributes(record)
        values["time_ms"] = int_of(record.time_unix_nano or record.observed_time_unix_nano) // 1_000_000
        yield reads(values)


_status, _window, _batch, _event = (
    parser_of(RankStatus),
    parser_of(WindowMessage),
    parser_of(BatchMessage),
    parser_of(EventMessage),
)
_ids = msgspec.json.Decoder(list[int | str])
_numbers = msgspec.json.Decoder(tuple[int, ...])


def _checked_status(values: Attributes) -> RankStatus:
    status = _status(values)
    if status.outcome is not None and status.outcome not in OUTCOMES:
        raise RejectedMessageError(WRONG_VALUE)
    return status


def _checked_window(values: Attributes) -> WindowMessage:
    window = _window(values)
    if window.to_ms < window.time_ms:
        raise RejectedMessageError(WRONG_TIME)
    listed = values.get("step_lengths")
    return window if listed is None else window._replace(step_lengths=_step_lengths(listed, window.steps))


def _step_lengths(listed: Any, steps: int) -> tuple[int, ...]:
    """Pairs of a length in microseconds and a number of steps. They must cover all steps of the window."""
    if not isinstance(listed, str):
        raise RejectedMessageError(WRONG_VALUE)
    if len(listed) > MAX_STEP_LENGTHS_BYTES:
        raise RejectedMessageError(TOO_LONG)
    try:
        lengths = _numbers.decode(listed)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise RejectedMessageError(WRONG_VALUE) from None
    possible = min(lengths, default=1) > 0 and max(lengths, default=1) < 2**63
    if len(lengths) % 2 or not possible or sum(lengths[1::2]) != steps:
        raise RejectedMessageError(WRONG_VALUE)
    return lengths


def _checked_batch(values: Attributes) -> BatchMessage:
    listed = values.get("samples")
    if listed is None:
        return _batch(values)
    if not isinstance(listed, str):
        raise RejectedMessageError(WRONG_VALUE)
    if len(listed) > MAX_SAMPLES_BYTES:
        raise RejectedMessageError(TOO_LONG)
    try:
        samples = named_samples(_ids.decode(listed))
    except (msgspec.MsgspecError, RecursionError, ValueError):  # a number with too many digits is a ValueError
        raise RejectedMessageError(WRONG_VALUE) from None
    return _batch(values)._replace(**samples)


_EVENTS: dict[str, Callable[[Attributes], Message]] = {
    "pyrometer.run": _checked_status,
    "pyrometer.window": _checked_window,
    "pyrometer.batch": _checked_batch,
    "pyrometer.event": _event,
}


class TraceReader(SignalReader):
    """Reads spans of steps."""

    def messages_of(self, record: Any) -> Iterator[Message]:
        """The span of a step."""
        attributes = attributes_of(record)
        step = attributes.pop(NAMESPACE + "step", None)
        start_ns, end_ns = int_of(record.start_time_unix_nano), int_of(record.end_time_unix_nano)
        yield _span(
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


_span = parser_of(SpanMessage)


def _id(value: str | bytes, length: int) -> str:
    text = value.hex() if isinstance(value, bytes) else value.lower()
    if len(text) != length or not set(text) <= _HEX:
        raise RejectedMessageError(WRONG_VALUE)
    return text


_HEX = frozenset("0123456789abcdef")


def _json_of(attributes: Attributes) -> str | None:
    """Attributes as JSON, sorted by name. NaN and the infinities become strings."""
    if not attributes:
        return None
    if len(attributes) > MAX_ATTRIBUTES or any(
        len(str(part)) > MAX_ATTRIBUTE_CHARS for both in attributes.items() for part in both
    ):
        raise RejectedMessageError(TOO_LONG)
    shown = {
        name: str(value) if isinstance(value, float) and value - value != 0 else value
        for name, value in sorted(attributes.items())
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
