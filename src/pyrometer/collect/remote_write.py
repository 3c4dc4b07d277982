"""What a Prometheus sends by remote write (1.0): packed bytes in, values of GPUs out.

Snappy is pyarrow's, which the store has anyway: no package more (`cramjam` is 5 MB). Messages are read by `protobuf`
(3 MB, seven times as fast as a reader in Python), by a description of the few fields that are read. It takes labels for
bytes, which on the wire they are: the same ones come again with every scrape, and are made sense of once.

The body itself is taken apart here, one series at a time: as a list, 64 MiB of empty series would take 1.3 GB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pyrometer.collect.dcgm import NAMES, Place, measure_of, place_of
from pyrometer.collect.wire import messages, varint
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR

MOST_PACKED_BYTES = 16 * 2**20  # Prometheus sends 2,000 samples at a time, some 100 kB; vmagent up to 8 MiB
MOST_BYTES = 64 * 2**20
MOST_SERIES = MOST_SAMPLES = 250_000
MOST_SERIES_BYTES = 2**20
MOST_LABEL_BYTES = 16 * 2**10  # of one series
MOST_KEPT_BYTES = 64 * 2**20  # of labels: 50,000 devices and more
KEPT_BESIDE_BYTES = 2**10  # what is made of one set of labels, about
# Times that are further from ours are those of a wrong clock. A sender that was cut off may be days behind.
MOST_BEHIND_MS = 31 * MS_PER_DAY
MOST_AHEAD_MS = MS_PER_HOUR

OTHER, NO_DEVICE, NO_VALUE, WRONG_TIME = "other metric", "no device", "no value", "wrong time"
MALFORMED = "malformed"  # series, not samples: nobody knows how many it has


class RemoteWriteError(Exception):
    """A body that cannot be read; the text is one sentence."""


class TooLargeError(RemoteWriteError):
    """A body that holds more than is read at a time."""


class Received(NamedTuple):
    """The values of GPUs in a body, and how many others it had, by what they are."""

    samples: list[tuple[int, Place, float, int]]  # measure, place, value, time in ms
    left_out: Counter[str]


class Reader:
    """Reads bodies, one after the other, and remembers what their labels mean."""

    def __init__(self, most_kept_bytes: int = MOST_KEPT_BYTES) -> None:
        self._places: dict[bytes, Place | None] = {}
        self._most_kept_bytes = most_kept_bytes
        self._kept_bytes = 0

    def read(self, packed: bytes, now_ms: int) -> Received:
        """The values of a body. NaN is none; the mark of Prometheus that a series has ended is one, too."""
        try:
            return self._read(_unpacked(packed), now_ms)
        except (DecodeError, ValueError):
            raise RemoteWriteError(
                f"The body of {len(packed)} bytes is no WriteRequest of remote write 1.0: protobuf, packed with snappy."
            ) from None

    def _read(self, body: bytes, now_ms: int) -> Received:
        samples: list[tuple[int, Place, float, int]] = []
        left_out: Counter[str] = Counter()
        oldest_ms, newest_ms = now_ms - MOST_BEHIND_MS, now_ms + MOST_AHEAD_MS
        count = 0
        for number, one in enumerate(_series(body)):
            try:
                series = _TIME_SERIES.FromString(one)
            except DecodeError:
                left_out[MALFORMED] += 1
                continue
            count += len(series.samples)
            if number >= MOST_SERIES or count > MOST_SAMPLES:
                raise TooLargeError(
                    f"The body has more than {MOST_SAMPLES} samples: send fewer at a time (max_samples_per_send)."
                )
            labels = list(series.labels)
            name = next(filter(_MEASURES.__contains__, labels), None)
            if name is None:
                left_out[OTHER] += len(series.samples)
                continue
            labels.remove(name)
            try:
                measure, place = _MEASURES[name], self._place(labels)
            except DecodeError:  # a text that is no UTF-8
                left_out[MALFORMED] += 1
                continue
            if place is None:
                left_out[NO_DEVICE] += len(series.samples)
                continue
            for sample in series.samples:
                value, time_ms = sample.value, sample.timestamp
                if value != value:
                    left_out[NO_VALUE] += 1
                elif oldest_ms <= time_ms <= newest_ms:
                    samples.append((measure, place, value, time_ms))
                else:
                    left_out[WRONG_TIME] += 1
        if left_out.keys() == {MALFORMED} and not samples:  # it is something else
            raise ValueError("no series")
        return Received(samples, left_out)

    def _place(self, labels: list[bytes]) -> Place | None:
        """The device that labels are about. All metrics of a device have one place between them."""
        key = b"".join(labels)
        if key not in self._places:
            if len(key) > MOST_LABEL_BYTES:
                return None
            if self._kept_bytes > self._most_kept_bytes:  # of pods that are gone: what is still there comes again
                self._places.clear()
                self._kept_bytes = 0
            self._kept_bytes += len(key) + KEPT_BESIDE_BYTES
            read = map(_LABEL.FromString, labels)
            self._places[key] = place_of({label.name: label.value for label in read})
        return self._places[key]


def _unpacked(packed: bytes) -> bytes:
    """The body behind snappy's block format, which begins with the length that it will have."""
    if len(packed) > MOST_PACKED_BYTES:
        raise TooLargeError(f"The body is larger than {MOST_PACKED_BYTES >> 20} MiB: send fewer samples at a time.")
    length, _ = varint(packed, 0)
    if length > MOST_BYTES:
        raise TooLargeError(
            f"The body has {length} bytes unpacked, more than {MOST_BYTES >> 20} MiB: send fewer samples at a time."
        )
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(packed, length, asbytes=True)
    except OSError as error:  # pyarrow's word for it
        raise ValueError(str(error)) from None
    return unpacked


def _series(body: bytes) -> Iterator[bytes]:
    """The series of a WriteRequest, one by one: its field 1. All that it has are messages; metadata is passed over."""
    for number, one in messages(body):
        if number == 1:
            if len(one) > MOST_SERIES_BYTES:
                raise TooLargeError(f"A series has {len(one)} bytes, {MOST_SERIES_BYTES >> 20} MiB at most.")
            yield one


def _messages() -> Iterator[Any]:
    """Label and TimeSeries of prometheus/prompb/types.proto: what is read of them."""
    kind = FieldDescriptorProto
    file = FileDescriptorProto(name="pyrometer/remote_write.proto", package="prometheus", syntax="proto3")
    label, sample, series = (file.message_type.add(name=name) for name in ("Label", "Sample", "TimeSeries"))
    label.field.add(name="name", number=1, type=kind.TYPE_STRING)
    label.field.add(name="value", number=2, type=kind.TYPE_STRING)
    sample.field.add(name="value", number=1, type=kind.TYPE_DOUBLE)
    sample.field.add(name="timestamp", number=2, type=kind.TYPE_INT64)
    series.field.add(name="labels", number=1, type=kind.TYPE_BYTES, label=kind.LABEL_REPEATED)  # unread, see above
    series.field.add(
        name="samples", number=2, type=kind.TYPE_MESSAGE, label=kind.LABEL_REPEATED, type_name=".prometheus.Sample"
    )
    pool = DescriptorPool()  # of our own: another package may bring the whole description
    pool.AddSerializedFile(file.SerializeToString())
    for message in (label, series):
        yield GetMessageClass(pool.FindMessageTypeByName(f"prometheus.{message.name}"))


_LABEL, _TIME_SERIES = _messages()
# The labels that name a metric of use, as they are on the wire.
_MEASURES: dict[bytes, int] = {
    _LABEL(name="__name__", value=name).SerializeToString(): measure
    for name in NAMES
    if (measure := measure_of(name)) is not None
}
