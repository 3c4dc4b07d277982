"""The spool: a folder in which ranks leave telemetry for the sender of their node, and where it waits for a server.

    out/<time_ns>-<pid>-<n>.part     (identity, messages) in `marshal` format; names sort by time
    ranks/<pid>.ring|json|stack      where each rank is, its identity and limits, and its stack when it is stuck
    ranks/<pid>-<start>.launch       the name of the first launch of a launcher, which may start its ranks again
    send/<time_ns>-<n>.<signal>.json.gz    the next bodies to send
    refused/                         what a server refused, the newest 32 MiB
    lock                             locked by the sender; released when it dies
    urgent                           exists when a message should be sent at once

A file under its final name is complete, because it was renamed to that name. Files are not synced: the death of a
process does not lose them. Only the user may access the folder, because `marshal` trusts what it reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import marshal
import os
import socket
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyrometer.train.run.environment import read_number
from pyrometer.train.ship import processes

Identity = dict[str, Any]
Message = tuple[str, dict[str, Any]]

MIB = 2**20
LIMIT_MIB = 256
REFUSED_BYTES = 32 * MIB
ABANDONED_S = 3600  # a file that has been in writing for this long belongs to a dead process

# What is dropped first when there is no space: messages of the lowest value, and of these the oldest.
_VALUE = {"span": 0, "batch": 0, "window": 1, "metric": 1, "gpu": 1}
_MAX_VALUE = 2  # runs and events


class SpoolError(OSError):
    """A folder that cannot be used as a spool. The text is one sentence."""


def spool_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The spool for the configured target on this machine. All ranks with the same target use the same spool."""
    if named := environment.get("PYROMETER_SPOOL"):
        return Path(named)
    fields = [environment.get(f"PYROMETER_{name}", "") for name in ("ENDPOINT", "TOKEN", "CA_FILE", "REDACT")]
    key = hashlib.sha256("\0".join([socket.gethostname(), *fields]).encode()).hexdigest()[:16]
    for base in (environment.get("TMPDIR", "/var/tmp"), tempfile.gettempdir()):  # noqa: S108 - private below
        if os.access(base, os.W_OK | os.X_OK):
            break
    return Path(base) / _private_name() / key


def _private_name() -> str:
    return f"pyrometer-{os.geteuid()}"


def _check_owner(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SpoolError(f"{folder} belongs to another user. Set PYROMETER_SPOOL to another folder.")


class Spool:
    """A spool folder. Ranks call `put`. Only the process that has the lock reads, trims and removes files."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder
        self.out, self.ranks = folder / "out", folder / "ranks"
        self.send, self.refused = folder / "send", folder / "refused"
        self.limit_bytes = limit_bytes or int(read_number("PYROMETER_SPOOL_MIB", LIMIT_MIB) * MIB) or MIB
        self._numbers = itertools.count()
        self._last_ns = 0
        self._bytes_since_trim = self.limit_bytes  # written since the size of the whole spool was last checked
        self._unwritten: Counter[str] = Counter()
        self._lock: int | None = None

    def make(self) -> Spool:
        """Creates missing folders. They must belong to this user alone."""
        try:
            for folder in (self.folder.parent, self.folder, self.out, self.ranks, self.send, self.refused):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700, parents=True)
            _check_owner(self.folder)
            if self.folder.parent.name == _private_name():
                _check_owner(self.folder.parent)  # it is in a folder that all users can write to
            if self.folder.stat().st_mode & 0o077:
                self.folder.chmod(0o700)
        except SpoolError:
            raise
        except OSError as error:
            raise SpoolError(
                f"{self.folder} cannot be created: {error.strerror}. Set PYROMETER_SPOOL to another folder."
            ) from None
        return self

    # -- Writing, by ranks ---------------------------------------------------------------------------------------------

    def put(self, identity: Identity, messages: Iterable[Message], *, urgent: bool = False) -> bool:
        """Writes messages. Returns False if that failed: then the messages are counted, and the count is reported
        later."""
        messages = list(messages)
        if self._unwritten:
            messages.append(_dropped(self._unwritten, "write_failed", "could not be written"))
        if not messages:
            return True
        self._last_ns = max(self._last_ns + 1, time.time_ns())  # the order stays the same when the clock is set back
        name = f"{self._last_ns:020d}-{os.getpid()}-{next(self._numbers):06d}.part"
        try:
            written = _write(self.out / name, _marshalled(identity, messages))
        except OSError:
            self._unwritten = _counted(messages)
            return False
        if urgent:
            with contextlib.suppress(OSError):
                (self.folder / "urgent").touch()
        self._unwritten = Counter()
        self._bytes_since_trim += written
        if self._bytes_since_trim > self.limit_bytes // 64:
            self._bytes_since_trim = 0
            self._trim_without_sender()
        return True

    def register(self, identity: Identity, limits_s: Mapping[str, float] | None = None) -> None:
        """Writes who this rank is, and how long it may make no progress in each phase."""
        registration = {**identity, "limits_s": dict(limits_s or {})}
        _write(self.ranks / f"{os.getpid()}.json", json.dumps(registration).encode())

    def first_launch(self, launch: str) -> str:
        """The name of the first launch of the launcher that started this process. Some launchers start their processes
        again after a death, or when nodes join: that is another attempt at the same run."""
        launcher = os.getppid()
        process = processes.living(launcher)
        path = self.ranks / f"{launcher}-{process.started if process else 0}.launch"
        with contextlib.suppress(OSError, UnicodeError):
            if path.exists():
                return path.read_text(encoding="ascii") or launch
            _write(path, launch.encode("ascii"))
        return launch

    def set_aside(self, pid: int) -> None:
        """Renames the files of a dead process with this number. They are still read."""
        aside = f"{pid}-{time.time_ns()}"
        for path in self.ranks.glob(f"{pid}.*"):
            with contextlib.suppress(OSError):
                path.rename(path.with_name(aside + path.suffix))

    def wait_sent(self, limit_s: float, given_up: Callable[[], bool] = bool) -> bool:
        """Waits until everything that is in the spool now was sent: for a process whose end ends the sender too."""
        end, mark = time.monotonic() + limit_s, f"{time.time_ns():020d}"
        bodies: set[Path] | None = None
        while bodies is None or bodies.intersection(self.bodies()):
            if bodies is None and not any(part.name < mark for part in self.parts()):
                bodies = set(self.bodies())  # the bodies of a part exist before the part is removed
            elif time.monotonic() >= end or given_up():
                return False
            else:
                time.sleep(0.02)
        return True

    # -- Reading, by the sender ----------------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Takes the lock; False if another process has it."""
        if self._lock is None:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    @property
    def held(self) -> bool:
        """Whether this process has the lock."""
        return self._lock is not None

    def release(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def hurried(self) -> bool:
        """Whether an urgent message was written since the last call."""
        try:
            (self.folder / "urgent").unlink()
        except OSError:
            return False
        return True

    def parts(self) -> list[Path]:
        """The files that ranks have written, in order."""
        return _list_files(self.out, ".part")

    def read(self, part: Path) -> tuple[Identity, list[Message]] | None:
        """The content of a part. A part that cannot be read is moved to the refused files."""
        try:
            identity, messages = marshal.loads(part.read_bytes())  # noqa: S302 - only this user can write to the folder
            return dict(identity), [(str(kind), dict(fields)) for kind, fields in messages]
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, EOFError, MemoryError):
            self.refuse(part)
            return None

    def rings(self) -> list[Path]:
        """The rings of the ranks."""
        return _list_files(self.ranks, ".ring")

    def bodies(self) -> list[Path]:
        """The bodies to be sent, in order."""
        return _list_files(self.send, ".gz")

    def add_body(self, signal: str, packed: bytes) -> Path:
        """Keeps a body until it is acknowledged."""
        self._last_ns = max(self._last_ns + 1, time.time_ns())
        path = self.send / f"{self._last_ns:020d}-{next(self._numbers):06d}.{signal}.json.gz"
        _write(path, packed)
        return path

    def refuse(self, path: Path) -> None:
        """Moves a file to the refused ones, and removes the oldest of those above the limit."""
        with contextlib.suppress(OSError):
            path.rename(self.refused / path.name)
        kept = 0
        for old in reversed(_list_files(self.refused)):
            kept += _size(old)
            if kept > REFUSED_BYTES:
                old.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Removes incomplete files of dead processes, and what exceeds the limit."""
        for folder in (self.out, self.send, self.ranks):
            for path in _list_files(folder, ".tmp"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()
        for path in _list_files(self.ranks, ".launch"):
            pid = path.name.partition("-")[0]
            if not pid.isdecimal() or processes.living(int(pid)) is None:
                path.unlink(missing_ok=True)
        self.trim()

    def trim(self) -> int:
        """Drops messages of the lowest value, in the oldest parts first, until there is space. Reports their count as
        an event."""
        size = sum(map(_size, itertools.chain(_list_files(self.out), _list_files(self.send))))
        if size <= self.limit_bytes:
            return 0
        dropped: dict[bytes, tuple[Identity, Counter[str]]] = {}
        for value, part in itertools.product(range(_MAX_VALUE + 1), self.parts()):
            if size <= self.limit_bytes * 7 // 8:
                break
            held = self.read(part)
            if held is None:
                continue
            identity, messages = held
            kept = [message for message in messages if _value_of(message) > value]
            if len(kept) == len(messages):
                continue
            size -= _size(part)
            if kept:
                size += _write(part, marshal.dumps((identity, kept), 4))
            else:
                part.unlink(missing_ok=True)
            counts = dropped.setdefault(marshal.dumps(identity, 4), (identity, Counter()))[1]
            counts.update(_counted(message for message in messages if _value_of(message) <= value))
        for identity, counts in dropped.values():
            self.put(identity, [_dropped(counts, "spool_full", "were dropped because the spool was full")])
        return sum(counts.total() for _, counts in dropped.values())

    def _trim_without_sender(self) -> None:
        """The sender trims. If there is none, or it died, the rank that writes does."""
        with contextlib.suppress(OSError):
            if self._lock is None and self.acquire():
                try:
                    self.trim()
                finally:
                    self.release()


def _value_of(message: Message) -> int:
    return _VALUE.get(message[0], _MAX_VALUE)


def _dropped(counts: Counter[str], reason: str, sentence: str) -> Message:
    """The event that reports missing messages."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return "event", {
        "time_ms": time.time_ns() // 1_000_000,
        "kind": "telemetry_dropped",
        "reason": reason,
        "message": f"{counts.total()} messages {sentence}: {kinds}",
        "count": counts.total(),
    }


def _counted(messages: Iterable[Message]) -> Counter[str]:
    """Counts messages by kind. An event about dropped messages counts as those."""
    counts: Counter[str] = Counter()
    for kind, fields in messages:
        counts[kind] += fields.get("count", 1) if fields.get("kind") == "telemetry_dropped" else 1
    return counts


def _marshalled(identity: Identity, messages: list[Message]) -> bytes:
    try:
        return marshal.dumps((identity, messages), 4)
    except ValueError:  # a NumPy number, or another type that the training program reported
        return marshal.dumps((_to_plain(identity), _to_plain(messages)), 4)


def _to_plain(value: Any) -> Any:
    """Converts a value to types that can be written."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_to_plain, value))
    if isinstance(value, list):
        return list(map(_to_plain, value))
    for convert in ("__index__", "__float__"):
        with contextlib.suppress(Exception):
            return getattr(value, convert)()
    return str(value)


def _write(path: Path, data: bytes) -> int:
    """Writes a file that appears under its name only when it is complete. Returns its size."""
    temporary = f"{path}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]
        os.replace(temporary, path)  # noqa: PTH105 - called often
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    return len(data)


def _list_files(folder: Path, ending: str = "") -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(ending))
    except OSError:
        return []
    return [folder / name for name in names]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
