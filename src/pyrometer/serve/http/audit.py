"""The audit log of requests with their sender, time, address and result, as JSON lines in the data folder.

Lines are written in a separate thread, so that no request waits for the disk. The log has no secrets: only values of
known parameters, and nothing that looks like a token.
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

from pyrometer.account.query.answer_json import iso
from pyrometer.questions.parameters import COMMON_PARAMETERS, OWN_PARAMETERS
from pyrometer.questions.tokens import Principal
from pyrometer.serve.http.http_error import HttpError, WrongTokenError

FILE = "audit.log"
MAX_BYTES = 4 << 20  # of a file
OLDER_FILES = 4  # audit.log.1 is the newest
MAX_WAITING = 10_000  # lines
MAX_VALUE_LENGTH = 200
COUNTED_EVERY_S = 3600.0
PARAMETERS = {*COMMON_PARAMETERS, *(name for names in OWN_PARAMETERS.values() for name in names), "limit"}

_TOKEN = re.compile(r"pyr_[\w-]+")
_log = logging.getLogger("pyrometer")


class Audit:
    """The log of one server. Requests that come every few seconds (records, scrapes) are counted, one line per hour."""

    def __init__(self, folder: Path, *, on: bool) -> None:
        self._logger = logging.Logger("audit")
        self._waiting: queue.Queue[Any] = queue.Queue(MAX_WAITING)
        self._lines = _Lines(self._waiting)
        self._listener: QueueListener | None = None
        self._path = folder / FILE
        self._on = on
        self._counts: Counter[tuple[str, str]] = Counter()
        self._counts_due_s = time.monotonic() + COUNTED_EVERY_S

    def write(self, what: str, **about: Any) -> None:
        """Writes one line."""
        if not self._on:
            return
        if self._listener is None:  # a server without requests has no log and no thread
            self._logger.addHandler(self._lines)
            self._listener = QueueListener(self._waiting, _File(self._path))
            self._listener.start()
        lost, self._lines.lost = self._lines.lost, 0
        self._logger.info("%s", line(what, **about, **({"lost_lines": lost} if lost else {})))

    def count(self, name: str, what: str) -> None:
        """Counts a request. The counts are written once per hour."""
        self._counts[name, what] += 1
        if time.monotonic() >= self._counts_due_s:
            self.write_counts()

    def write_counts(self) -> None:
        """Writes the counts since the last time."""
        self._counts_due_s = time.monotonic() + COUNTED_EVERY_S
        counts, self._counts = self._counts, Counter()
        for (name, what), times in sorted(counts.items()):
            self.write("count", who=name, of=what, times=times)

    def request(
        self, principal: Principal, address: str, path: str, parameters: Mapping[str, str], status: int, began_s: float
    ) -> None:
        """Writes a question and its result."""
        known = {name: value for name, value in parameters.items() if name in PARAMETERS}
        about: dict[str, Any] = {"path": path, "asked": known, "status": status}
        if len(known) < len(parameters):
            about["unknown_parameters"] = len(parameters) - len(known)
        self.write(
            "question", **_of(principal), **{"from": address}, **about, ms=round(1000 * (time.monotonic() - began_s))
        )

    def refused(self, error: HttpError, address: str, path: str, what: str = "refused") -> None:
        """Writes a refused request. Those without a token, and guesses that did not wait, are only counted, so that a
        flood does not displace other lines."""
        if isinstance(error, WrongTokenError) or error.principal is not None:
            self.write(
                what, **_of(error.principal), **{"from": address}, path=path, status=error.status, why=error.text
            )
        else:
            self.count("?", f"{what} with {error.status}")

    def close(self) -> None:
        """Writes everything that is still waiting."""
        self.write_counts()
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()
            self._logger.removeHandler(self._lines)
            self._listener = None


def note(folder: Path, what: str, **about: Any) -> None:
    """Writes one line from a command. A server that uses the folder may write at the same time."""
    text = f"{line(what, **about)}\n".encode()
    handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, text)
    finally:
        os.close(handle)


def line(what: str, **about: Any) -> str:
    """An entry as one line of ASCII without tokens."""
    entry = {"at": iso(time.time_ns() // 1_000_000, UTC), "what": what, **about}
    return _TOKEN.sub("pyr_***", json.dumps(_short(entry)))


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name)[:MAX_VALUE_LENGTH]: _short(one) for name, one in value.items()}
    if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH:
        return f"{value[:MAX_VALUE_LENGTH]}…"
    return value


def _of(principal: Principal | None) -> dict[str, str | None]:
    if principal is None:
        return {}
    return {"who": principal.name, "role": principal.role, "team": principal.team, "by": principal.sign_in}


class _Lines(QueueHandler):
    """Passes lines to the thread. When the disk is too slow, lines are lost and counted."""

    lost = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.lost += 1


class _File(RotatingFileHandler):
    """A rotated file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=OLDER_FILES, encoding="ascii", delay=True)
        self._fails = self._failed = False  # this line, and the one before

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        self._failed, self._fails = self._fails, False
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is given by logging
        """Reports a full disk or a missing folder once."""
        self._fails = True
        if not self._failed:
            _log.error("%s cannot be written, so requests are not audited: %s", self.baseFilename, sys.exc_info()[1])
