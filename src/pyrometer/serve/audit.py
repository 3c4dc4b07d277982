"""Who asked what, when, from where, and what became of it: JSON lines in the data folder, for its owner to read.

Nobody waits for the disk: lines are written in a thread of their own. No secret is ever among them: values only of
parameters that there are, and nothing that looks like a token.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

from pyrometer.account.answer_json import iso
from pyrometer.serve.access import RefusedError, Who, WrongTokenError
from pyrometer.serve.questions import ASKED_ALWAYS, ASKED_BY

FILE = "audit.log"
MOST_BYTES = 4 << 20  # of a file
OLDER_FILES = 4  # audit.log.1 is the newest of them
MOST_WAITING = 10_000  # lines
LONGEST = 200  # characters of a value
COUNTED_EVERY_S = 3600.0
PARAMETERS = {*ASKED_ALWAYS, *(name for names in ASKED_BY.values() for name in names), "limit"}

_TOKEN = re.compile(r"pyr_[\w-]+")
_log = logging.getLogger("pyrometer")


class Audit:
    """The log of one server. What comes every few seconds (records, scrapes) is counted, an hour a line."""

    def __init__(self, folder: Path, *, on: bool) -> None:
        self._logger = logging.Logger("audit")
        self._waiting: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._lines = _Lines(self._waiting)
        self._listener: QueueListener | None = None
        self._path = folder / FILE
        self._on = on
        self._counts: Counter[tuple[str, str]] = Counter()
        self._counts_due_s = time.monotonic() + COUNTED_EVERY_S

    def say(self, what: str, **about: Any) -> None:
        """One line."""
        if not self._on:
            return
        if self._listener is None:  # a server that is never asked has no log, and no thread for it
            self._logger.addHandler(self._lines)
            self._listener = QueueListener(self._waiting, _File(self._path))
            self._listener.start()
        lost, self._lines.lost = self._lines.lost, 0
        self._logger.info("%s", line(what, **about, **({"lost_lines": lost} if lost else {})))

    def count(self, name: str, what: str) -> None:
        """One of many; how many there were is said once an hour."""
        self._counts[name, what] += 1
        if time.monotonic() >= self._counts_due_s:
            self.say_counts()

    def say_counts(self) -> None:
        """How many there were since the last time."""
        self._counts_due_s = time.monotonic() + COUNTED_EVERY_S
        counts, self._counts = self._counts, Counter()
        for (name, what), times in sorted(counts.items()):
            self.say("count", who=name, of=what, times=times)

    def asked(
        self, who: Who, address: str, path: str, parameters: Mapping[str, str], status: int, began_s: float
    ) -> None:
        """A question, and what became of it."""
        told = {name: value for name, value in parameters.items() if name in PARAMETERS}
        about: dict[str, Any] = {"path": path, "asked": told, "status": status}
        if len(told) < len(parameters):
            about["unknown_parameters"] = len(parameters) - len(told)
        self.say("question", **_of(who), **{"from": address}, **about, ms=round(1000 * (time.monotonic() - began_s)))

    def refused(self, error: RefusedError, address: str, path: str, what: str = "refused") -> None:
        """Somebody who may not. Who guesses on without waiting, or says nothing at all, is counted: no flood of these
        may wash out the rest."""
        if isinstance(error, WrongTokenError) or error.who is not None:
            self.say(what, **_of(error.who), **{"from": address}, path=path, status=error.status, why=error.text)
        else:
            self.count("?", f"{what} with {error.status}")

    def close(self) -> None:
        """Everything that was said is written."""
        self.say_counts()
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()
            self._logger.removeHandler(self._lines)
            self._listener = None


def note(folder: Path, what: str, **about: Any) -> None:
    """One line from a command, beside those of a server that may be running."""
    text = f"{line(what, **about)}\n".encode()
    handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, text)
    finally:
        os.close(handle)


def line(what: str, **about: Any) -> str:
    """What is written of something: one line of ASCII, however it is named, and no token."""
    entry = {"at": iso(time.time_ns() // 1_000_000, UTC), "what": what, **about}
    return _TOKEN.sub("pyr_***", json.dumps(_short(entry)))


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name)[:LONGEST]: _short(one) for name, one in value.items()}
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]}…"
    return value


def _of(who: Who | None) -> dict[str, str | None]:
    return {} if who is None else {"who": who.name, "role": who.role, "team": who.team, "by": who.sign_in}


class _Lines(QueueHandler):
    """Hands lines over; when the disk is far behind, they are lost and counted."""

    lost = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.lost += 1


class _File(RotatingFileHandler):
    """A file that only its owner reads, and that does not grow for ever."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=OLDER_FILES, encoding="ascii", delay=True)
        self._fails = self._failed = False  # now, and before

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        self._failed, self._fails = self._fails, False
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging calls it so
        """A disk that is full, or a folder that is gone, is said once."""
        self._fails = True
        if not self._failed:
            _log.error("%s cannot be written, and nobody knows who asks: %s", self.baseFilename, sys.exc_info()[1])
