"""What Weights & Biases keeps of runs on disk, offline or not: folders `run-DATE-ID`, `offline-run-DATE-ID`.

Each has a file `run-ID.wandb`: a log of protobuf records in blocks, as LevelDB writes them, every piece with its
checksum. The client has no reader for it in Python any more, so it is read here, only the few fields that are used; the
tests hold it against the client's own messages. A file that is still written ends where its last whole record ends.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers.common import (
    MOST_NAMES,
    MOST_VALUES,
    WANDB,
    TrackedPoint,
    TrackedRun,
    described,
    is_curve,
    is_time,
    where_of,
)

BLOCK = 32 * 2**10
MOST_RECORD_BYTES = 16 * 2**20
MOST_GPUS = 64  # of a machine
MOST_NESTED = 50  # of dictionaries in dictionaries
GREATEST = 2**62  # of whole numbers: what is beyond has no place in a store
_HEADER, _PIECE = Struct("<4sHB"), Struct("<IHB")  # of the file; of a piece: checksum, length, kind
_MAGIC = (b":W&B", 0xBEE1)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
STAMPED = "pyrometer/stamped_ms"  # in the summary of a part that we wrote: it is no run of anybody's


def records(stream: BinaryIO) -> Iterator[bytes]:
    """The records of a file, as far as they are whole."""
    magic, number, _ = _HEADER.unpack(stream.read(_HEADER.size).ljust(_HEADER.size, b"\0"))
    if (magic, number) != _MAGIC:
        raise SourceError(f"{stream.name} is no file of Weights & Biases.")
    at, parts = _HEADER.size, bytearray()
    while True:
        left = BLOCK - at % BLOCK
        if left < _PIECE.size:  # the rest of a block that no piece fits into
            at += len(stream.read(left))
        head = stream.read(_PIECE.size)
        if len(head) < _PIECE.size:
            return
        checksum, length, kind = _PIECE.unpack(head)
        body = stream.read(length)
        at += _PIECE.size + length
        if zlib.crc32(body, zlib.crc32(bytes((kind,)))) != checksum or len(parts) + length > MOST_RECORD_BYTES:
            return  # still written, or broken: nothing after it can be trusted
        if kind in (_WHOLE, _FIRST):
            parts.clear()
        parts += body
        if kind in (_WHOLE, _LAST):
            yield bytes(parts)


# -- messages: what is read of wandb/proto/wandb_internal.proto --------------------------------------------------------

_KIND = FieldDescriptorProto
_FIELDS: dict[str, dict[str, tuple[int, Any]]] = {  # names, numbers, and kinds: a list is repeated
    "Timestamp": {"seconds": (1, _KIND.TYPE_INT64), "nanos": (2, _KIND.TYPE_INT32)},
    "Item": {
        "key": (1, _KIND.TYPE_STRING),
        "nested_key": (2, [_KIND.TYPE_STRING]),
        "integer": (5, _KIND.TYPE_SINT64),
        "number": (6, _KIND.TYPE_DOUBLE),
        "value_json": (16, _KIND.TYPE_STRING),
    },
    "Items": {"item": (1, ["Item"])},
    "Run": {
        "run_id": (1, _KIND.TYPE_STRING),
        "entity": (2, _KIND.TYPE_STRING),
        "project": (3, _KIND.TYPE_STRING),
        "config": (4, "Items"),
        "summary": (5, "Items"),
        "display_name": (8, _KIND.TYPE_STRING),
        "host": (13, _KIND.TYPE_STRING),
        "start_time": (17, "Timestamp"),
    },
    "Exit": {"exit_code": (1, _KIND.TYPE_INT32)},
    "Gpu": {"name": (1, _KIND.TYPE_STRING)},
    "Environment": {
        "host": (12, _KIND.TYPE_STRING),
        "gpu_type": (18, _KIND.TYPE_STRING),
        "gpu_count": (19, _KIND.TYPE_UINT32),
        "gpu_nvidia": (24, ["Gpu"]),
    },
    "Record": {
        "history": (2, "Items"),
        "summary": (3, "Items"),
        "config": (5, "Items"),
        "run": (17, "Run"),
        "exit": (18, "Exit"),
        "environment": (26, "Environment"),
    },
}


def _record() -> Any:
    # Theirs are proto3, whose texts are UTF-8; `optional` in it is a choice of one.
    file = FileDescriptorProto(name="pyrometer/wandb.proto", package="wandb", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = kind[0] if isinstance(kind, list) else kind
            label = _KIND.LABEL_REPEATED if isinstance(kind, list) else _KIND.LABEL_OPTIONAL
            typed = (
                {"type": one} if isinstance(one, int) else {"type": _KIND.TYPE_MESSAGE, "type_name": f".wandb.{one}"}
            )
            added = message.field.add(name=field, number=number, label=label, **typed)
            if label == _KIND.LABEL_OPTIONAL and isinstance(one, int):
                added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    pool = DescriptorPool()  # of our own: the client brings the whole description
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("wandb.Record"))


_RECORD = _record()


# -- runs --------------------------------------------------------------------------------------------------------------


class Folder:
    """One folder of a run: a run that was resumed has several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: Any = None
        self.points: list[TrackedPoint] = []
        self.exit_code: int | None = None
        self.config: dict[str, str] = {}
        self.summary: dict[str, Any] = {}
        self.host: str | None = None
        self.gpus: list[str] = []
        self.last_ms = 0
        self.left_out = 0
        self._has_history = False
        self._names: set[str] = set()

    @property
    def id(self) -> str:
        """The run's, as the SDK names it."""
        return "/".join(part for part in (self.run.entity, self.run.project, self.run.run_id) if part)

    @property
    def is_stamp(self) -> bool:
        """Whether it is of our own making. A run that goes on with what was stamped online has our summary as well, but
        also a history: that is somebody's work."""
        return self.run is not None and STAMPED in self.summary and not self._has_history

    def read(self) -> bool:
        """Whether there is a run in it that is not of our own making."""
        file = min(self.path.glob("run-*.wandb"))
        try:
            with file.open("rb") as stream:
                for record in records(stream):
                    with suppress(DecodeError):  # the next one may be right
                        self._take(_RECORD.FromString(record))
        except OSError as error:
            raise SourceError(f"{file} cannot be read: {error.strerror}.") from None
        return self.run is not None and is_time(_ms(self.run.start_time)) and not self.is_stamp

    def _take(self, record: Any) -> None:
        if record.HasField("history"):
            self._history(record.history.item)
        elif record.HasField("summary"):
            self.summary |= dict(_values(record.summary.item))
        elif record.HasField("config"):
            self._configure(record.config.item)
        elif record.HasField("run"):
            self.run = record.run
            self._configure(record.run.config.item)
            self.host = self.host or record.run.host or None
        elif record.HasField("exit"):
            self.exit_code = record.exit.exit_code
        elif record.HasField("environment"):
            told = record.environment
            self.host = self.host or told.host or None
            self.gpus = self.gpus or [gpu.name for gpu in told.gpu_nvidia][:MOST_GPUS]
            self.gpus = self.gpus or [told.gpu_type] * min(told.gpu_count, MOST_GPUS)

    def _history(self, items: Any) -> None:
        self._has_history = True
        values = dict(_values(items))
        seconds, step = values.get("_timestamp"), values.get("_step")
        time_ms = round(seconds * 1000) if isinstance(seconds, float | int) and math.isfinite(seconds) else None
        if not is_time(time_ms):
            self.left_out += len(values)
            return
        assert time_ms is not None  # noqa: S101 - it is a time
        self.last_ms = max(self.last_ms, time_ms)
        for name, value in values.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not is_curve(name):
                continue
            self._names.add(name)
            if len(self._names) > MOST_NAMES or len(self.points) >= MOST_VALUES:
                self.left_out += 1
                self._names.discard(name)
                continue
            self.points.append(TrackedPoint(time_ms, name, float(value), step if isinstance(step, int) else None))

    def _configure(self, items: Any) -> None:
        self.config |= {name: str(value) for name, value in _values(items) if not name.startswith("_wandb")}


def _values(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Names and values; what is nested has a name with dots, as the SDK hears it."""
    for item in items:
        name = ".".join(item.nested_key) or item.key
        if item.HasField("value_json"):
            try:
                value = json.loads(item.value_json)
            except (ValueError, RecursionError):
                continue
            yield from _flat(name, value)
        elif item.HasField("number") or item.HasField("integer"):
            yield name, item.number if item.HasField("number") else item.integer


def _flat(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for inner, one in value.items() if depth < MOST_NESTED else ():
            yield from _flat(f"{name}.{inner}", one, depth + 1)
    elif isinstance(value, int) and not -GREATEST <= value <= GREATEST:
        yield name, float(value) if abs(value) < 2**1023 else math.inf
    elif isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        yield name, float(value)
    else:
        yield name, value


def folders(path: Path) -> list[Path]:
    """The folders of runs in a folder `wandb`, in one above it, or the one of a run itself; the oldest first."""
    for place in (path, path / "wandb"):
        if any(place.glob("run-*.wandb")):
            return [place]
        found = {file.parent.resolve() for file in place.glob("*run-*/run-*.wandb")}
        if found:
            return sorted(found, key=lambda folder: folder.name.removeprefix("offline-"))
    raise SourceError(f"{path} has no folders run-DATE-ID of Weights & Biases: name the folder `wandb` of a program.")


def read(path: Path, progress: Callable[[int, int], None]) -> Iterator[tuple[TrackedRun, list[TrackedPoint], int]]:
    """The runs in a folder with their values, and how many were left out. A run in several folders is one."""
    found = folders(path)
    together: dict[str, list[Path]] = {}
    for place in found:
        together.setdefault(place.name.rpartition("-")[2], []).append(place)
    done = 0
    for same in together.values():
        read_from: dict[str, list[Folder]] = {}
        for place in same:
            folder = Folder(place)
            if folder.read():
                read_from.setdefault(folder.id, []).append(folder)
            done += 1
            progress(done, len(found))
        for parts in read_from.values():
            points = sorted((point for part in parts for point in part.points), key=lambda point: point.time_ms)
            yield _run(parts), points, sum(part.left_out for part in parts)


def _run(parts: list[Folder]) -> TrackedRun:
    first, last = parts[0], parts[-1]
    summary = {name: value for part in parts for name, value in part.summary.items()}
    config = {name: value for part in parts for name, value in part.config.items()}
    tags = {name: str(value) for name, value in (config | summary).items() if isinstance(value, str | int)}
    started_ms = min(_ms(part.run.start_time) for part in parts)
    ended_ms = max(last.last_ms, _ms(last.run.start_time)) if last.exit_code is not None else None
    outcome = None if last.exit_code is None else "succeeded" if last.exit_code == 0 else "failed"
    gpus = first.gpus
    named = last.run.display_name or first.run.run_id
    told, parameters = f"“{named}” in {first.path.name}", described(config.items())
    return TrackedRun(
        WANDB,
        first.id,
        named,
        first.run.project or None,
        started_ms,
        ended_ms,
        outcome,
        where_of(tags, host=first.host, gpus=len(gpus), gpu_model=gpus[0] if gpus else None),
        f"{told}: {parameters}" if parameters else told,
    )


def _ms(time: Any) -> int:
    return int(time.seconds * 1000 + time.nanos // 1_000_000)
