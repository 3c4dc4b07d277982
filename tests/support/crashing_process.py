"""`pyrometer` in a process that is killed before its k-th change of the disk.

Opening, writing, syncing, renaming and removing files are steps, and so is every statement to DuckDB that is not a
query. A file that is written in the last step is left half written. The product contains no code for this.
"""

from __future__ import annotations

import builtins
import importlib
import os
import pathlib
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import duckdb

from pyrometer.cli import main as pyrometer
from pyrometer.collect.gpu.scrape import Scrapes
from pyrometer.serve.ingest import source_readers

READ_STATEMENTS = (
    "SELECT",
    "FROM",
    "WITH",
    "SET",
    "CREATE OR REPLACE TEMP",
    "CREATE TEMP",
    "DROP VIEW",
    "DESCRIBE",
    "EXPLAIN",
)


class Steps:
    """Counts the operations that change the disk."""

    def __init__(self, die_at: int | None, log: str | None) -> None:
        self.die_at, self.log = die_at, log
        self.done: list[str] = []
        self._counting = threading.Lock()

    def step(self, name: str, half: Callable[[], object] | None = None) -> None:
        """Counts one step. The last one does at most half of its work."""
        with self._counting:
            self.done.append(name)
            if len(self.done) - 1 == self.die_at:
                if half is not None:
                    half()
                if self.log:
                    with REAL_OPEN(self.log, "a") as stream:
                        stream.write(f"died at {self.die_at}: {name}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def log_total(self) -> None:
        """Logs the number of steps at the end."""
        if self.log:
            with REAL_OPEN(self.log, "a") as stream:
                stream.write(f"ended after {len(self.done)}\n")


REAL_OPEN = builtins.open


def count_steps(steps: Steps) -> None:
    """Counts everything that changes the disk from now on."""

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def does(*values: Any, **named: Any) -> Any:
            steps.step(name)
            return real(*values, **named)

        setattr(module, name, does)

    for name in ("fsync", "replace", "rename", "unlink", "mkdir"):
        counted(os, name)

    real_write = pathlib.Path.write_bytes

    def write_bytes(path: pathlib.Path, body: bytes) -> int:
        steps.step(f"write {path.suffix or 'body'}", lambda: real_write(path, body[: len(body) // 2]))
        return real_write(path, body)

    pathlib.Path.write_bytes = write_bytes  # type: ignore[method-assign, assignment]

    real_execute = duckdb.DuckDBPyConnection.execute

    def execute(connection: Any, query: Any, *values: Any, **named: Any) -> Any:
        words = str(getattr(query, "query", query)).lstrip().upper()
        if not words.startswith(READ_STATEMENTS):
            steps.step(" ".join(words.split()[: 1 if words.startswith(("INSERT", "COPY")) else 2]))
        return real_execute(connection, query, *values, **named)

    duckdb.DuckDBPyConnection.execute = execute  # type: ignore[method-assign, assignment]
    real_connect = duckdb.connect

    def connect(*values: Any, **named: Any) -> Any:
        steps.step("connect")
        return real_connect(*values, **named)

    duckdb.connect = connect


def shift_clock(path: str) -> None:
    """Shifts the clock of this process by the milliseconds in the file, which may change while it runs."""
    real_ns = time.time_ns

    def offset_ms() -> int:
        try:
            with REAL_OPEN(path) as stream:
                return int(stream.read() or 0)
        except FileNotFoundError:
            return 0

    time.time_ns = lambda: real_ns() + offset_ms() * 1_000_000
    time.time = lambda: time.time_ns() / 1e9


def checkpoint_early(wal_bytes: int) -> None:
    """Has DuckDB write its WAL into its file at this size, because 16 MB take too long to fill."""
    real_connect = duckdb.connect

    def connect(*values: Any, **named: Any) -> Any:
        connection = real_connect(*values, **named)
        connection.execute(f"SET checkpoint_threshold = '{wal_bytes} bytes'")
        return connection

    duckdb.connect = connect


NO_VALUES: dict[str, Any] = {}


class Faults(NamedTuple):
    """The faults that a process suffers."""

    die_at: int | None = None  # the step before which it is killed
    log: str | None = None  # a file that records where it died or how many steps it did
    clock: str | None = None  # a file with the milliseconds by which its clock is off
    set: Mapping[str, float] = NO_VALUES  # constants of modules, so that a test does not wait for an hour
    max_file_bytes: int | None = None  # of a file, like a full disk
    checkpoint_bytes: int | None = None  # of the WAL, after which DuckDB checkpoints
    scrape_every_s: float | None = None
    variables: Mapping[str, str] = NO_VALUES  # of its environment


def run(arguments: list[str], faults: Faults, out: int, err: int) -> None:
    """Runs a `pyrometer` command in this process, which was started for it."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.setsid()  # Ctrl-C stops the test run, not this process
    os.environ.update(faults.variables)
    if faults.clock:
        shift_clock(faults.clock)
    for name, value in faults.set.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    if faults.scrape_every_s is not None:
        source_readers.Scrapes = lambda *values, interval_s: Scrapes(*values, interval_s=faults.scrape_every_s)
    if faults.max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (faults.max_file_bytes, resource.RLIM_INFINITY))
    if faults.checkpoint_bytes is not None:
        checkpoint_early(faults.checkpoint_bytes)
    if faults.die_at is not None or faults.log is not None:
        steps = Steps(faults.die_at, faults.log)
        count_steps(steps)
    code: Any = 0
    try:
        pyrometer(arguments)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 70  # a traceback, which users must never see
    if faults.die_at is not None or faults.log is not None:
        steps.log_total()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
