"""Failures of the disk of a server.

The log has a line when one begins and when it ends. Until then it is in /readyz and /metrics, senders get 503 and keep
their data, and the server continues and tries again.
"""

from __future__ import annotations

import logging
import os
import re

import duckdb

_log = logging.getLogger("pyrometer")

# What DuckDB raises when it cannot read or write its files: on a commit, on a file, and on everything after a failed
# checkpoint, until the folder is opened again (`Store.revive`).
DUCKDB_ERRORS = (duckdb.IOException, duckdb.TransactionException, duckdb.FatalException, duckdb.ConnectionException)
DISK_ERRORS = (OSError, *DUCKDB_ERRORS)

UNWRITTEN = "The disk cannot be written, and senders get 503"
UNSTORED = "Collected data could not be stored"
UNANSWERED = "Questions cannot be answered"
UNACCOUNTED = "The ledger could not be built"


class Disk:
    """The operations that fail now, and why."""

    def __init__(self) -> None:
        self.failures = 0
        self._troubles: dict[str, str] = {}

    def failed(self, what: str, error: Exception) -> None:
        """Records that an operation failed. It is tried again."""
        self.failures += 1
        if what not in self._troubles:
            _log.error("%s: %s. Trying again.", what, reason_of(error))
        self._troubles[what] = reason_of(error)

    def worked(self, what: str) -> None:
        """Records that an operation succeeded."""
        if self._troubles.pop(what, None) is not None:
            _log.info("%s: it works again.", what)

    def shortcomings(self) -> list[str]:
        """The operations that fail now, one sentence each."""
        return [f"{what}: {reason}." for what, reason in sorted(self._troubles.items())]


def reason_of(error: Exception) -> str:
    """The reason on one line, without paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := re.search(r'"errno":"(\d+)"', str(error)):
        return os.strerror(int(number[1]))
    lines = str(error).splitlines() or [""]
    reason = lines[-1] if lines[-1].startswith("Original error") else lines[0]
    return reason.rstrip('." ').rpartition(": ")[2] or type(error).__name__
