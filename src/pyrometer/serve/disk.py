"""What the disk of a server does not take: said once in the log when it begins and once when it is over, and meanwhile
in /readyz and /metrics. Senders get 503 and keep what they have; the server goes on, and tries again."""

from __future__ import annotations

import logging
import os
import re

import duckdb

_log = logging.getLogger("pyrometer")

# What DuckDB raises when its files cannot be written or read: of a commit, of a file, and of everything after a
# checkpoint that failed, until the folder is opened again (`Store.revive`).
OF_DUCKDB = (duckdb.IOException, duckdb.TransactionException, duckdb.FatalException, duckdb.ConnectionException)
OF_DISK = (OSError, *OF_DUCKDB)

UNWRITTEN = "The disk takes nothing, and senders get 503"
UNSTORED = "What was collected could not be stored"
UNANSWERED = "Questions cannot be answered"
UNACCOUNTED = "The ledger could not be built"


class Disk:
    """Troubles by what could not be done."""

    def __init__(self) -> None:
        self.failures = 0
        self._troubles: dict[str, str] = {}

    def failed(self, what: str, error: Exception) -> None:
        """That could not be done; it is tried again."""
        self.failures += 1
        if what not in self._troubles:
            _log.error("%s: %s. It is tried again.", what, words(error))
        self._troubles[what] = words(error)

    def worked(self, what: str) -> None:
        """That could be done."""
        if self._troubles.pop(what, None) is not None:
            _log.info("%s: it works again.", what)

    def shortcomings(self) -> list[str]:
        """What cannot be done now, one sentence each."""
        return [f"{what}: {words}." for what, words in sorted(self._troubles.items())]


def words(error: Exception) -> str:
    """Why, on one line, without the places of files."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := re.search(r'"errno":"(\d+)"', str(error)):
        return os.strerror(int(number[1]))
    first, *_, last = [*str(error).splitlines(), ""]
    said = last if last.startswith("Original error") else first
    return said.rstrip('." ').rpartition(": ")[2] or type(error).__name__
