"""Reads the run folders of Weights & Biases on disk: `run-DATE-ID` and `offline-run-DATE-ID`.

Each has a file `run-ID.wandb`: a log of protobuf records in blocks, in the format of LevelDB, with a checksum for every
piece. The client no longer has a reader in Python, so this module reads the few fields that are needed. Tests compare
them with the client's own messages. A file that is still being written ends with its last complete record.
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
    MAX_METRICS,
    MAX_VALUES,
    WANDB,
    TrackedPoint,
    TrackedRun,
    describe_parameters,
    is_curve,
    is_time,
    location_of,
)

BLOCK = 32 * 2**10
MAX_RECORD_BYTES = 16 * 2**20
MAX_GPUS = 64  # per machine
MAX_NESTING = 50  # depth of dictionaries
MAX_INTEGER = 2**62  # larger ones do not fit into the store
_HEADER, _PIECE = Struct("<4sHB"), Struct("<IHB")  # of the file, and of a piece: checksum, length, kind
_MAGIC = (b":W&B", 0xBEE1)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
STAMPED = "pyrometer/stamped_ms"  # in the summary of a run that Pyrometer itself wrote


def records(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the complete records of a file."""
    magic, number, _ = _HEADER.unpack(stream.read(_HEADER.size).ljust(_HEADER.size, b"\0"))
    if (magic, number) != _MAGIC:
        raise SourceError(f"{stream.name} is not a Weights & Biases file.")
    at, parts = _HEADER.size, bytearray()
    while True:
        left = BLOCK - at % BLOCK
        if left < _PIECE.size:  # padding at the end of a block
            at += len(stream.read(left))
        head = stream.read(_PIECE.size)
        if len(head) < _PIECE.size:
            return
        checksum, length, kind = _PIECE.unpack(head)
        body = stream.read(length)
        at += _PIECE.size + length
        if zlib.crc32(body, zlib.crc32(bytes((kind,)))) != checksum or len(parts) + length > MAX_RECORD_BYTES:
            return  # incomplete or damaged, so the rest cannot be trusted
        if kind in (_WHOLE, _FIRST):
            parts.clear()
        parts += body
        if kind in (_WHOLE, _LAST):
            yield bytes(parts)


# -- messages: needed fields of wandb/proto/wandb_internal.proto -------------------------------------------------------

_KIND = FieldDescriptorProto
_FIELDS: dict[str, dict[str, tuple[int, Any]]] = {  # number and type of each field; a list is a repeated field
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
    # The originals are proto3: strings are UTF-8, and an `optional` field is a oneof with one member.
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
    pool = DescriptorPool()  # separate, because the client registers the full descriptor
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("wandb.Record"))


_RECORD = _record()


# -- runs --------------------------------------------------------------------------------------------------------------


class Folder:
    """One folder of a run. A resumed run has several."""

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
        """The id of the run, like in the SDK."""
        return "/".join(part for part in (self.run.entity, self.run.project, self.run.run_id) if part)

    @property
    def is_stamp(self) -> bool:
        """Whether Pyrometer wrote it. A user's run that resumed such a run has the same summary, but also a history."""
        return self.run is not None and STAMPED in self.summary and not self._has_history

    def read(self) -> bool:
        """Reads the folder. Returns whether it has a run that Pyrometer did not write."""
        file = min(self.path.glob("run-*.wandb"))
        try:
            with file.open("rb") as stream:
                for record in records(stream):
                    with suppress(DecodeError):  # later records may be valid
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
            environment = record.environment
            self.host = self.host or environment.host or None
            self.gpus = self.gpus or [gpu.name for gpu in environment.gpu_nvidia][:MAX_GPUS]
            self.gpus = self.gpus or [environment.gpu_type] * min(environment.gpu_count, MAX_GPUS)

    def _history(self, items: Any) -> None:
        self._has_history = True
        values = dict(_values(items))
        seconds, step = values.get("_timestamp"), values.get("_step")
        time_ms = round(seconds * 1000) if isinstance(seconds, float | int) and math.isfinite(seconds) else None
        if not is_time(time_ms):
            self.left_out += len(values)
            return
        assert time_ms is not None  # noqa: S101 - is_time checked it
        self.last_ms = max(self.last_ms, time_ms)
        for name, value in values.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not is_curve(name):
                continue
            self._names.add(name)
            if len(self._names) > MAX_METRICS or len(self.points) >= MAX_VALUES:
                self.left_out += 1
                self._names.discard(name)
                continue
            self.points.append(TrackedPoint(time_ms, name, float(value), step if isinstance(step, int) else None))

    def _configure(self, items: Any) -> None:
        self.config |= {name: str(value) for name, value in _values(items) if not name.startswith("_wandb")}


def _values(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yields names and values. Nested values have names with dots, like in the SDK."""
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
        for inner, one in value.items() if depth < MAX_NESTING else ():
            yield from _flat(f"{name}.{inner}", one, depth + 1)
    elif isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        yield name, float(value) if abs(value) < 2**1023 else math.inf
    elif isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        yield name, float(value)
    else:
        yield name, value


def folders(path: Path) -> list[Path]:
    """The run folders at a path, the oldest first. The path is a folder `wandb`, its parent, or a run folder."""
    for folder in (path, path / "wandb"):
        if any(folder.glob("run-*.wandb")):
            return [folder]
        found = {file.parent.resolve() for file in folder.glob("*run-*/run-*.wandb")}
        if found:
            return sorted(found, key=lambda found_folder: found_folder.name.removeprefix("offline-"))
    raise SourceError(f"{path} has no Weights & Biases folders run-DATE-ID. Pass the folder `wandb` of a program.")


def read(path: Path, progress: Callable[[int, int], None]) -> Iterator[tuple[TrackedRun, list[TrackedPoint], int]]:
    """Yields the runs at a path with their values and the number of skipped values. A run may have several folders."""
    found = folders(path)
    by_id: dict[str, list[Path]] = {}
    for run_folder in found:
        by_id.setdefault(run_folder.name.rpartition("-")[2], []).append(run_folder)
    done = 0
    for same in by_id.values():
        read_from: dict[str, list[Folder]] = {}
        for run_folder in same:
            folder = Folder(run_folder)
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
    description, parameters = f"“{named}” in {first.path.name}", describe_parameters(config.items())
    return TrackedRun(
        tracker=WANDB,
        run_id=first.id,
        name=named,
        experiment=first.run.project or None,
        started_ms=started_ms,
        ended_ms=ended_ms,
        outcome=outcome,
        where=location_of(tags, host=first.host, gpus=len(gpus), gpu_model=gpus[0] if gpus else None),
        description=f"{description}: {parameters}" if parameters else description,
    )


def _ms(time: Any) -> int:
    return int(time.seconds * 1000 + time.nanos // 1_000_000)
