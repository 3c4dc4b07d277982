"""What a Prometheus sends by remote write (1.0): packed bytes in, values of GPUs out.

Nearly every series is the same bytes at every scrape, its labels, and behind them one sample of 18 bytes (of 9 when it
is zero); and it comes after the same one as the last time. So a body is walked from one expected series to the next,
and the samples behind them are read together, as columns. What is new, and what has another form (several samples,
exemplars, another order), is read by `protobuf` (3 MB), by a description of the few fields that are read. It takes
labels for bytes, which on the wire they are.

Snappy is pyarrow's, which the store has anyway: no package more (`cramjam` is 5 MB).
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

MOST_PACKED_BYTES = 16 * 2**20  # Prometheus sends 2,000 samples at a time, some 100 kB; vmagent up to 8 MiB
MOST_BYTES = 64 * 2**20
MOST_SERIES = MOST_SAMPLES = 250_000
MOST_SERIES_BYTES = 2**20
MOST_LABEL_BYTES = 16 * 2**10  # of one series
MOST_KEPT_BYTES = 256 * 2**20  # of labels: 400,000 series, 20,000 devices and more
KEPT_OF_SERIES_BYTES, KEPT_OF_PLACE_BYTES = 2**8, 2**10  # beside the labels, about
# Times that are further from ours are those of a wrong clock. A sender that was cut off may be days behind.
MOST_BEHIND_MS = 31 * MS_PER_DAY
MOST_AHEAD_MS = MS_PER_HOUR

OTHER, NO_DEVICE, NO_VALUE, WRONG_TIME = "other metric", "no device", "no value", "wrong time"
MALFORMED = "malformed"


class RemoteWriteError(Exception):
    """A body that cannot be read; the text is one sentence."""


class RemoteWriteTooLargeError(RemoteWriteError):
    """A body that holds more than is read at a time."""


class RemoteWriteBody(NamedTuple):
    """The values of GPUs in a body, and how many others it had, by what they are."""

    samples: Values
    left_out: Counter[str]


class _Rows(NamedTuple):
    """Samples side by side: what their labels mean, how much, when."""

    code: Integers
    value: Numbers
    time_ms: Integers


# Of useful series, a code is the number of the place × the number of measures + the measure.
_OTHER, _NO_DEVICE, _MALFORMED = -1, -2, -3


class _Series:
    """A series as it comes again and again: what is before its sample, how many bytes it has with that, its number; and
    the one that came after it the last time, spread out, since that is looked at for every sample that comes."""

    __slots__ = ("after", "head", "number", "size")

    def __init__(self, head: bytes | tuple[()], size: int, number: int) -> None:
        self.head = head
        self.size = size
        self.number = number
        self.after: tuple[bytes | tuple[()], int, int, _Series] = (head, size, number, self)

    def comes_before(self, other: _Series) -> None:
        """What to expect the next time."""
        self.after = (other.head, other.size, other.number, other)


class _Grown:
    """Whole numbers that become more: an array with room for others."""

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

    def at(self, places: Integers) -> Integers:
        """Those at some places."""
        found: Integers = self._kept[places]
        return found


class RemoteWriteReader:
    """Reads bodies, one after the other, and remembers what their labels mean."""

    def __init__(self, most_kept_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_kept_bytes = most_kept_bytes
        self._forget()

    def _forget(self) -> None:
        self._series: dict[bytes, _Series] = {}  # by their heads
        self._codes, self._sizes = _Grown(), _Grown()  # of series, by their numbers
        self._last = _Series((), 0, -1)  # nothing begins with one of no heads
        self._numbers: dict[bytes, int] = {}  # of the labels without the name: which place
        self._places: list[SlotAddress] = []  # values that were handed out keep the list that there was
        self._kept_bytes = 0

    def read(self, packed: bytes, now_ms: int) -> RemoteWriteBody:
        """The values of a body. NaN is none; the mark of Prometheus that a series has ended is one, too."""
        if self._kept_bytes > self._most_kept_bytes:  # of pods that are gone: what is still there comes again
            self._forget()
        try:
            rows = self._rows(_unpacked(packed))
            if len(rows.code) and (rows.code == _MALFORMED).all():
                raise ValueError("no series")  # it is something else
        except (DecodeError, ValueError, IndexError):
            raise RemoteWriteError(
                f"The body of {len(packed)} bytes is no WriteRequest of remote write 1.0: protobuf, packed with snappy."
            ) from None
        useful, left_out = np.ones(len(rows.code), bool), Counter[str]()
        for why, those in (
            (MALFORMED, rows.code == _MALFORMED),
            (OTHER, rows.code == _OTHER),
            (NO_DEVICE, rows.code == _NO_DEVICE),
            (NO_VALUE, np.isnan(rows.value)),
            (WRONG_TIME, (rows.time_ms < now_ms - MOST_BEHIND_MS) | (rows.time_ms > now_ms + MOST_AHEAD_MS)),
        ):
            if count := int(np.count_nonzero(useful & those)):
                left_out[why] = count
                useful &= ~those
        place, measure = np.divmod(rows.code[useful], len(NAMES))
        return RemoteWriteBody(Values(self._places, place, measure, rows.value[useful], rows.time_ms[useful]), left_out)

    def _rows(self, body: bytes) -> _Rows:
        """All samples: those in the usual form together, then the others."""
        found: list[int] = []  # numbers of series
        others: list[bytes] = []
        between = [(0, 0)]  # bytes of others, and before which of those found
        last, at, size, begins_with = self._last, 0, len(body), body.startswith
        while at < size:
            head, length, number, series = last.after
            if begins_with(head, at):
                last, at = series, at + length
                found.append(number)
                continue
            field, begin, end = message_at(body, at)
            met = self._met(body, at, begin, end) if field == 1 else None
            if met is not None:
                last.comes_before(met)
                last = met
                found.append(met.number)
            else:
                between.append((len(found), end - at))
                if field == 1:  # a series; metadata is passed over
                    others.append(body[begin:end])
            if len(found) + len(others) > MOST_SERIES:
                raise _too_many()
            at = end
        self._last = last
        if at > size:
            raise ValueError("a series without an end")
        if len(found) + len(others) > MOST_SERIES:
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
        rest = self._one_by_one(others, MOST_SAMPLES - len(code))
        columns = zip((code[usual], value[usual], time_ms[usual]), rest, strict=True)
        return _Rows(*(np.concatenate(both) for both in columns))

    def _met(self, body: bytes, at: int, begin: int, end: int) -> _Series | None:
        """The series from `at`, which has so many bytes behind its length; None when it has another form, or too few
        bytes to look."""
        length = end - begin
        if length > MOST_SERIES_BYTES:
            raise RemoteWriteTooLargeError(f"A series has {length} bytes, {MOST_SERIES_BYTES >> 20} MiB at most.")
        if length < 18:
            return None
        # a guess by two bytes; whether the sample is what it seems is looked at for all of them together
        until = end - (18 if body[end - 18] == 0x12 and body[end - 17] == 0x10 else 9)
        head = body[at:until]
        series = self._series.get(head)
        if series is None:
            labels = _labels(body[begin:until])
            if labels is not None:
                series = self._series[head] = _Series(head, end - at, len(self._codes))
                self._codes.append(self._code(labels))
                self._sizes.append(end - at)
                self._kept_bytes += len(head) + KEPT_OF_SERIES_BYTES
        return series

    def _one_by_one(self, series: list[bytes], most: int) -> _Rows:
        """The samples of series in whatever form."""
        rows: list[tuple[int, float, int]] = []
        for message in series:
            try:
                one = _TIME_SERIES.FromString(message)
            except DecodeError:  # counted as one sample: nobody knows how many it has
                rows.append((_MALFORMED, 0.0, 0))
                continue
            if len(rows) + len(one.samples) > most:
                raise _too_many()
            code = self._code(list(one.labels))
            said = [(code, sample.value, sample.timestamp) for sample in one.samples]
            rows += said if code != _MALFORMED else [(_MALFORMED, 0.0, 0)]
        codes, values, times = zip(*rows, strict=True) if rows else ((), (), ())
        return _Rows(np.array(codes, np.int64), np.array(values, float), np.array(times, np.int64))

    def _code(self, labels: list[bytes]) -> int:
        """What labels mean. All metrics of a device have one place between them."""
        name = next(filter(_MEASURES.__contains__, labels), None)
        if name is None:
            return _OTHER
        labels.remove(name)
        key = b"".join(labels)
        number = self._numbers.get(key)
        if number is None:
            place = None
            if len(key) <= MOST_LABEL_BYTES:
                try:
                    read = [_LABEL.FromString(label) for label in labels]
                except DecodeError:  # a text that is no UTF-8
                    return _MALFORMED
                place = slot_address_of({label.name: label.value for label in read})
            if place is None:
                return _NO_DEVICE
            number = self._numbers[key] = len(self._places)
            self._places.append(place)
            self._kept_bytes += len(key) + KEPT_OF_PLACE_BYTES
        return number * len(NAMES) + _MEASURES[name]


def _unpacked(packed: bytes) -> bytes:
    """The body behind snappy's block format, which begins with the length that it will have."""
    if len(packed) > MOST_PACKED_BYTES:
        raise RemoteWriteTooLargeError(
            f"The body is larger than {MOST_PACKED_BYTES >> 20} MiB: send fewer samples at a time."
        )
    length, _ = varint(packed, 0)
    if length > MOST_BYTES:
        raise RemoteWriteTooLargeError(
            f"The body has {length} bytes unpacked, more than {MOST_BYTES >> 20} MiB: send fewer samples at a time."
        )
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(packed, length, asbytes=True)
    except OSError as error:  # pyarrow's word for it
        raise ValueError(str(error)) from None
    return unpacked


def _labels(message: bytes) -> list[bytes] | None:
    """The labels of a series without samples; None when it is none, or has anything else."""
    if len(message) > MOST_LABEL_BYTES:
        return None
    try:
        labels = list(_TIME_SERIES.FromString(message).labels)
    except DecodeError:
        return None
    return labels if _TIME_SERIES(labels=labels).SerializeToString() == message else None


def _last_samples(body: bytes, ends: Integers) -> tuple[Numbers, Integers, npt.NDArray[np.bool_]]:
    """Values and times of the samples with which series end, and of which of them they are right.

    In the usual form a sample is 12 10 09 (value: 8 bytes) 10 (time: 6 bytes); one that is zero is 12 07 10 (time)."""
    if not len(ends):
        return np.empty(0), ends, np.empty(0, bool)
    words: npt.NDArray[np.uint64] = np.ndarray(len(body) - 7, "<u8", body, strides=(1,))  # one from each byte on
    first, zero, last = words[ends - 18], words[ends - 9], words[ends - 8]
    full = first & 0xFFFF == 0x1012
    form = np.where(full, first & 0xFF0000 == 0x090000, zero & 0xFFFF == 0x0712)
    usual = form & (last & 0x80808080_8080FF00 == 0x00808080_80801000)  # a time, of six bytes
    value = np.where(full, words[ends - 15].view("<f8"), 0.0)
    time_ms = sum((last >> 16 + 8 * byte & 0x7F) << 7 * byte for byte in range(6))
    return value, np.asarray(time_ms).astype(np.int64), usual


def _too_many() -> RemoteWriteTooLargeError:
    return RemoteWriteTooLargeError(
        f"The body has more than {MOST_SAMPLES} samples: send fewer at a time (max_samples_per_send)."
    )


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
