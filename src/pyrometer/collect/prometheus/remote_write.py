"""Reads Prometheus remote write 1.0: compressed bodies in, GPU values out.

Nearly every series has the same bytes in every scrape: its labels, followed by one sample of 18 bytes (9 if the value
is zero). It also follows the same series as the last time. So the reader steps from one expected series to the next and
decodes their samples together, as columns. New series and other forms (several samples, exemplars, another order) are
decoded with `protobuf`, with a descriptor of the few needed fields that treats labels as bytes.

Snappy comes from pyarrow, which the store needs anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pyrometer.collect.gpu.dcgm import NAMES, measure_of, slot_address_of
from pyrometer.collect.gpu.device import SlotAddress
from pyrometer.collect.gpu.samples import Integers, Numbers, Values
from pyrometer.collect.prometheus.protobuf_wire import message_at, varint
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR

MAX_PACKED_BYTES = 16 * 2**20  # Prometheus sends 2,000 samples at a time, about 100 kB; vmagent up to 8 MiB
MAX_BYTES = 64 * 2**20
MAX_SERIES = MAX_SAMPLES = 250_000
MAX_SERIES_BYTES = 2**20
MAX_LABEL_BYTES = 16 * 2**10  # of one series
MAX_KEPT_BYTES = 256 * 2**20  # of labels: those of 400,000 series, more than 20,000 devices
BYTES_PER_SERIES, BYTES_PER_ADDRESS = 2**8, 2**10  # in addition to the labels, approximately
# Times that differ more come from a wrong clock. A sender that was disconnected may be days behind.
MAX_BEHIND_MS = 31 * MS_PER_DAY
MAX_AHEAD_MS = MS_PER_HOUR

OTHER, NO_DEVICE, NO_VALUE, WRONG_TIME = "other metric", "no device", "no value", "wrong time"
MALFORMED = "malformed"


class RemoteWriteError(Exception):
    """A body that cannot be read. The message is one sentence."""


class RemoteWriteTooLargeError(RemoteWriteError):
    """A body that exceeds a limit."""


class RemoteWriteBody(NamedTuple):
    """The GPU values in a body, and the number of skipped values by reason."""

    samples: Values
    left_out: Counter[str]


class _Rows(NamedTuple):
    """Samples as columns: codes of their series, values, times."""

    code: Integers
    value: Numbers
    time_ms: Integers


# The code of a used series is: number of its address × number of measures + measure.
_OTHER, _NO_DEVICE, _MALFORMED = -1, -2, -3


class _Series:
    """A known series: the bytes before its sample, its size including the sample, and its number.

    `after` has these of the series that followed it the last time, unpacked because every sample needs them.
    """

    __slots__ = ("after", "head", "number", "size")

    def __init__(self, head: bytes | tuple[()], size: int, number: int) -> None:
        self.head = head
        self.size = size
        self.number = number
        self.after: tuple[bytes | tuple[()], int, int, _Series] = (head, size, number, self)

    def expect_next(self, other: _Series) -> None:
        """Sets the series to expect next."""
        self.after = (other.head, other.size, other.number, other)


class _GrowingArray:
    """An integer array that grows."""

    def __init__(self) -> None:
        self._kept = np.empty(1024, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, number: int) -> None:
        if self._count == len(self._kept):
            self._kept = np.concatenate([self._kept, np.empty_like(self._kept)])
        self._kept[self._count] = number
        self._count += 1

    def at(self, positions: Integers) -> Integers:
        """The numbers at some positions."""
        found: Integers = self._kept[positions]
        return found


class RemoteWriteReader:
    """Reads bodies one after the other and caches the meaning of their labels."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._forget()

    def _forget(self) -> None:
        self._series: dict[bytes, _Series] = {}  # by their heads
        self._codes, self._sizes = _GrowingArray(), _GrowingArray()  # by number of the series
        self._last = _Series((), 0, -1)  # bytes never start with an empty tuple, so this matches nothing
        self._numbers: dict[bytes, int] = {}  # of addresses, by labels without the name
        self._addresses: list[SlotAddress] = []  # returned values keep a reference to the list
        self._kept_bytes = 0

    def read(self, packed: bytes, now_ms: int) -> RemoteWriteBody:
        """Reads a body. NaN is an absent value, which includes Prometheus' staleness marker."""
        if self._kept_bytes > self._max_kept_bytes:  # drops entries of old pods; current ones are cached again
            self._forget()
        try:
            rows = self._rows(_unpacked(packed))
            if len(rows.code) and (rows.code == _MALFORMED).all():
                raise ValueError("no series")  # another format
        except (DecodeError, ValueError, IndexError):
            raise RemoteWriteError(
                f"The body of {len(packed)} bytes is not a WriteRequest of remote write 1.0 (protobuf with snappy)."
            ) from None
        useful, left_out = np.ones(len(rows.code), bool), Counter[str]()
        for reason, matches in (
            (MALFORMED, rows.code == _MALFORMED),
            (OTHER, rows.code == _OTHER),
            (NO_DEVICE, rows.code == _NO_DEVICE),
            (NO_VALUE, np.isnan(rows.value)),
            (WRONG_TIME, (rows.time_ms < now_ms - MAX_BEHIND_MS) | (rows.time_ms > now_ms + MAX_AHEAD_MS)),
        ):
            if count := int(np.count_nonzero(useful & matches)):
                left_out[reason] = count
                useful &= ~matches
        address, measure = np.divmod(rows.code[useful], len(NAMES))
        return RemoteWriteBody(
            Values(self._addresses, address, measure, rows.value[useful], rows.time_ms[useful]), left_out
        )

    def _rows(self, body: bytes) -> _Rows:
        """Decodes all samples: those in the usual form together, then the others."""
        found: list[int] = []  # numbers of series
        others: list[bytes] = []
        between = [(0, 0)]  # index in `found`, and the bytes of other fields before it
        last, at, size, begins_with = self._last, 0, len(body), body.startswith
        while at < size:
            head, length, number, series = last.after
            if begins_with(head, at):
                last, at = series, at + length
                found.append(number)
                continue
            field, begin, end = message_at(body, at)
            known = self._known(body, at, begin, end) if field == 1 else None
            if known is not None:
                last.expect_next(known)
                last = known
                found.append(known.number)
            else:
                between.append((len(found), end - at))
                if field == 1:  # a series; metadata is skipped
                    others.append(body[begin:end])
            if len(found) + len(others) > MAX_SERIES:
                raise _too_many()
            at = end
        self._last = last
        if at > size:
            raise ValueError("a series without an end")
        if len(found) + len(others) > MAX_SERIES:
            raise _too_many()
        numbers = np.array(found, np.int64)
        sizes, skipped = self._sizes.at(numbers), np.zeros(len(found) + 1, np.int64)
        np.add.at(skipped, *np.array(between).T)
        ends = np.cumsum(sizes + skipped[:-1])
        code = self._codes.at(numbers)
        value, time_ms, usual = _last_samples(body, ends)
        for number in np.flatnonzero(~usual).tolist():
            _, begin, end = message_at(body, int(ends[number] - sizes[number]))
            others.append(body[begin:end])
        if not others:
            return _Rows(code, value, time_ms)
        rest = self._one_by_one(others, MAX_SAMPLES - len(code))
        columns = zip((code[usual], value[usual], time_ms[usual]), rest, strict=True)
        return _Rows(*(np.concatenate(both) for both in columns))

    def _known(self, body: bytes, at: int, begin: int, end: int) -> _Series | None:
        """The series at an offset, with content from `begin` to `end`; None if too short or of another form."""
        length = end - begin
        if length > MAX_SERIES_BYTES:
            raise RemoteWriteTooLargeError(f"A series has {length} bytes; the limit is {MAX_SERIES_BYTES >> 20} MiB.")
        if length < 18:
            return None
        # a guess by two bytes; all samples are verified together later
        until = end - (18 if body[end - 18] == 0x12 and body[end - 17] == 0x10 else 9)
        head = body[at:until]
        series = self._series.get(head)
        if series is None:
            labels = _labels(body[begin:until])
            if labels is not None:
                series = self._series[head] = _Series(head, end - at, len(self._codes))
                self._codes.append(self._code(labels))
                self._sizes.append(end - at)
                self._kept_bytes += len(head) + BYTES_PER_SERIES
        return series

    def _one_by_one(self, series: list[bytes], max_samples: int) -> _Rows:
        """Decodes series of any form."""
        rows: list[tuple[int, float, int]] = []
        for message in series:
            try:
                one = _TIME_SERIES.FromString(message)
            except DecodeError:  # counted as one sample, because their number is unknown
                rows.append((_MALFORMED, 0.0, 0))
                continue
            if len(rows) + len(one.samples) > max_samples:
                raise _too_many()
            code = self._code(list(one.labels))
            samples = [(code, sample.value, sample.timestamp) for sample in one.samples]
            rows += samples if code != _MALFORMED else [(_MALFORMED, 0.0, 0)]
        codes, values, times = zip(*rows, strict=True) if rows else ((), (), ())
        return _Rows(np.array(codes, np.int64), np.array(values, float), np.array(times, np.int64))

    def _code(self, labels: list[bytes]) -> int:
        """The code of labels. All metrics of a device share one address."""
        name = next(filter(_MEASURES.__contains__, labels), None)
        if name is None:
            return _OTHER
        labels.remove(name)
        key = b"".join(labels)
        number = self._numbers.get(key)
        if number is None:
            address = None
            if len(key) <= MAX_LABEL_BYTES:
                try:
                    read = [_LABEL.FromString(label) for label in labels]
                except DecodeError:  # a string that is not UTF-8
                    return _MALFORMED
                address = slot_address_of({label.name: label.value for label in read})
            if address is None:
                return _NO_DEVICE
            number = self._numbers[key] = len(self._addresses)
            self._addresses.append(address)
            self._kept_bytes += len(key) + BYTES_PER_ADDRESS
        return number * len(NAMES) + _MEASURES[name]


def _unpacked(packed: bytes) -> bytes:
    """Decompresses snappy's block format, which starts with the uncompressed length."""
    if len(packed) > MAX_PACKED_BYTES:
        raise RemoteWriteTooLargeError(
            f"The body is larger than {MAX_PACKED_BYTES >> 20} MiB. Send fewer samples at a time."
        )
    length, _ = varint(packed, 0)
    if length > MAX_BYTES:
        raise RemoteWriteTooLargeError(
            f"The body has {length} bytes unpacked; the limit is {MAX_BYTES >> 20} MiB. Send fewer samples at a time."
        )
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(packed, length, asbytes=True)
    except OSError as error:  # raised by pyarrow for malformed data
        raise ValueError(str(error)) from None
    return unpacked


def _labels(message: bytes) -> list[bytes] | None:
    """The labels of a series without samples; None if it is malformed or has other fields."""
    if len(message) > MAX_LABEL_BYTES:
        return None
    try:
        labels = list(_TIME_SERIES.FromString(message).labels)
    except DecodeError:
        return None
    return labels if _TIME_SERIES(labels=labels).SerializeToString() == message else None


def _last_samples(body: bytes, ends: Integers) -> tuple[Numbers, Integers, npt.NDArray[np.bool_]]:
    """Decodes the samples at the ends of series. Also returns which of them have the usual form.

    The usual form of a sample is 12 10 09 (value: 8 bytes) 10 (time: 6 bytes) or, for zero, 12 07 10 (time).
    """
    if not len(ends):
        return np.empty(0), ends, np.empty(0, bool)
    words: npt.NDArray[np.uint64] = np.ndarray(len(body) - 7, "<u8", body, strides=(1,))  # one starting at each byte
    first, zero, last = words[ends - 18], words[ends - 9], words[ends - 8]
    full = first & 0xFFFF == 0x1012
    form = np.where(full, first & 0xFF0000 == 0x090000, zero & 0xFFFF == 0x0712)
    usual = form & (last & 0x80808080_8080FF00 == 0x00808080_80801000)  # a time, of six bytes
    value = np.where(full, words[ends - 15].view("<f8"), 0.0)
    time_ms = sum((last >> 16 + 8 * byte & 0x7F) << 7 * byte for byte in range(6))
    return value, np.asarray(time_ms).astype(np.int64), usual


def _too_many() -> RemoteWriteTooLargeError:
    return RemoteWriteTooLargeError(
        f"The body has more than {MAX_SAMPLES} samples. Send fewer at a time (max_samples_per_send)."
    )


def _messages() -> Iterator[Any]:
    """The needed fields of Label and TimeSeries in prometheus/prompb/types.proto."""
    kind = FieldDescriptorProto
    file = FileDescriptorProto(name="pyrometer/remote_write.proto", package="prometheus", syntax="proto3")
    label, sample, series = (file.message_type.add(name=name) for name in ("Label", "Sample", "TimeSeries"))
    label.field.add(name="name", number=1, type=kind.TYPE_STRING)
    label.field.add(name="value", number=2, type=kind.TYPE_STRING)
    sample.field.add(name="value", number=1, type=kind.TYPE_DOUBLE)
    sample.field.add(name="timestamp", number=2, type=kind.TYPE_INT64)
    series.field.add(name="labels", number=1, type=kind.TYPE_BYTES, label=kind.LABEL_REPEATED)  # as bytes, see above
    series.field.add(
        name="samples", number=2, type=kind.TYPE_MESSAGE, label=kind.LABEL_REPEATED, type_name=".prometheus.Sample"
    )
    pool = DescriptorPool()  # separate, because another package may register the full descriptor
    pool.AddSerializedFile(file.SerializeToString())
    for message in (label, series):
        yield GetMessageClass(pool.FindMessageTypeByName(f"prometheus.{message.name}"))


_LABEL, _TIME_SERIES = _messages()
# The encoded labels that name a used metric.
_MEASURES: dict[bytes, int] = {
    _LABEL(name="__name__", value=name).SerializeToString(): measure
    for name in NAMES
    if (measure := measure_of(name)) is not None
}
