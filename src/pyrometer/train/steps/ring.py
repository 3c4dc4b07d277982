"""The ring: what the hot path of a rank writes, in memory that outlives the process.

A memory-mapped file of 64-bit numbers: a header (where the rank is now) and the last steps, one row per step, so that a
step is written in one place. The watcher of the node reads it too: after a rank was killed, while C code holds its
interpreter, or while it is stopped. Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from pathlib import Path
from typing import NamedTuple

PHASES = (
    "other",
    "data",
    "copy",
    "forward",
    "backward",
    "comm",
    "optimizer",
    "checkpoint",
    "evaluate",
    "compile",
    "garbage",
    "startup",
)
OTHER, DATA, COPY, FORWARD, BACKWARD, COMM, OPTIMIZER, CHECKPOINT, EVALUATE, COMPILE, GARBAGE, STARTUP = range(12)
MEASURED = 11  # phases that are part of steps: all but startup

# The positions of the header.
(
    MAGIC,
    ROWS,
    WALL_NS,
    MONOTONIC_NS,
    COUNT,
    FOLDED,
    PHASE,
    MOVED_NS,
    BEAT_NS,
    FIRST_STEP,
    PID,
    ENDED,
    STUCK_NS,
    EXIT,
    LEFT_NS,
    EXPLAINED,
) = range(16)
HEADER = 32
# EXIT: 0 if the rank reports its outcome itself, EXIT_GUESSED if it does so without knowing its exit code. If the exit
# code is stored here: HAS_EXIT plus the code in the low 32 bits, which are _NO_CODE until then. LEFT_NS: when the
# program began to exit. EXPLAINED: an exception was reported that explains the exit code.
EXIT_GUESSED, _NO_CODE, HAS_EXIT = 1, 1 << 31, 1 << 40
NO_EXIT_YET = HAS_EXIT | _NO_CODE
_MAGIC_VALUE = 0x50_59_52_4F_52_4E_47_32  # "PYRORNG2"

# The columns of a step: its phases in nanoseconds, then these.
BEGIN_NS, END_NS, SAMPLES, TOKENS, FLAGS = range(MEASURED, MEASURED + 5)
COLUMNS = MEASURED + 5
DEFAULT_ROWS = 16_384  # twice the longest window
SKIPPED = 1  # a flag: the update was skipped (GradScaler found infinities)
LIGHT = 2  # a flag: only the length of the step was recorded


class RingError(ValueError):
    """A file that is not a ring."""


class RingSnapshot(NamedTuple):
    """Where a rank was when its ring was read."""

    steps: int  # completed steps
    phase: int
    moved_ns: int  # monotonic: when it made progress last
    beat_ns: int  # monotonic: when its interpreter ran last
    first_step: int  # the global number of its first step
    ended: bool
    stuck_ns: int  # the `moved_ns` that was reported as stuck, by the rank or the watcher; 0: not stuck


class Ring:
    """The numbers of one rank. `view` is the header followed by the rows, each `COLUMNS` long."""

    def __init__(self, path: Path, view: memoryview, memory: mmap.mmap | None) -> None:
        self.path = path
        self.view = view
        self.memory = memory
        self.rows = view[ROWS]

    @classmethod
    def create(cls, path: Path, rows: int = DEFAULT_ROWS) -> Ring:
        """Creates a ring, all zero except for its clocks."""
        size = 8 * (HEADER + rows * COLUMNS)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Allocated now: a page that does not fit on the disk later would be a SIGBUS in the training process.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:  # macOS
                os.ftruncate(descriptor, size)
            # Mapped now where the system can do that. Otherwise every 32nd step would pay for a page fault.
            memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        finally:
            os.close(descriptor)
        view = memoryview(memory).cast("q")
        view[ROWS] = rows
        view[MONOTONIC_NS], view[WALL_NS] = time.perf_counter_ns(), time.time_ns()
        view[MOVED_NS] = view[BEAT_NS] = view[MONOTONIC_NS]
        view[PHASE] = STARTUP
        view[PID] = os.getpid()
        view[MAGIC] = _MAGIC_VALUE
        return cls(path, view, memory)

    @classmethod
    def in_memory(cls, rows: int = 16) -> Ring:
        """Creates a ring that no other process sees."""
        view = memoryview(bytearray(8 * (HEADER + rows * COLUMNS))).cast("q")
        view[ROWS] = rows
        return cls(Path(os.devnull), view, None)

    @classmethod
    def open(cls, path: Path) -> Ring:
        """Opens the ring of another process, which may have ended."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            size = os.fstat(descriptor).st_size
            if size < 8 * HEADER or size % 8:
                raise RingError(f"{path} has {size} bytes, so it is not a ring.")
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        view = memoryview(memory).cast("q")
        if view[MAGIC] != _MAGIC_VALUE or view[ROWS] <= 0 or size != 8 * (HEADER + view[ROWS] * COLUMNS):
            view.release()
            memory.close()
            raise RingError(f"{path} is not a ring of this version.")
        return cls(path, view, memory)

    def close(self) -> None:
        """Unmaps the memory. The file stays."""
        self.view.release()
        if self.memory is not None:
            self.memory.close()

    def stores_exit(self) -> bool:
        """Whether the exit code of the process is stored when it exits."""
        return bool(self.view[EXIT] & HAS_EXIT)

    def exit_code(self) -> int | None:
        """The exit code of the process; None if it has not exited or none was stored."""
        stored = self.view[EXIT]
        code = stored & 0xFFFF_FFFF
        return None if not stored & HAS_EXIT or code == _NO_CODE else code & 0xFF

    def snapshot(self) -> RingSnapshot:
        """Where the rank is now."""
        view = self.view
        return RingSnapshot(
            view[COUNT], view[PHASE], view[MOVED_NS], view[BEAT_NS], view[FIRST_STEP], bool(view[ENDED]), view[STUCK_NS]
        )

    def wall_ns(self, monotonic_ns: int) -> int:
        """Converts a time of the monotonic clock to UTC."""
        return self.view[WALL_NS] + monotonic_ns - self.view[MONOTONIC_NS]

    def value(self, step: int, column: int) -> int:
        """One number of a step that has not been overwritten."""
        return self.view[HEADER + step % self.rows * COLUMNS + column]

    def write_lengths(self, begin_ns: int, ends_ns: list[int]) -> None:
        """Appends steps of which only the length is known; the first one began at `begin_ns`."""
        view, number = self.view, self.view[COUNT]
        for end_ns in ends_ns:
            row = HEADER + number % self.rows * COLUMNS
            for column in range(row, row + COLUMNS):
                view[column] = 0
            view[row + OTHER] = end_ns - begin_ns
            view[row + BEGIN_NS] = begin_ns
            view[row + END_NS] = end_ns
            view[row + FLAGS] = LIGHT
            begin_ns = end_ns
            number += 1
        view[MOVED_NS] = begin_ns
        view[COUNT] = number

    def column(self, column: int, first: int, after: int) -> array[int]:
        """One number of each step from `first` to before `after`, for steps that have not been overwritten."""
        if first >= after:
            return array("q")
        of_all = self.view[HEADER + column :: COLUMNS]
        begin, end = first % self.rows, after % self.rows
        if begin < end:
            return array("q", of_all[begin:end].tobytes())
        return array("q", of_all[begin:].tobytes() + of_all[:end].tobytes())
