"""Errors of data folders: one sentence that names the folder and the fix."""

from __future__ import annotations

import duckdb

# Exceptions from reading a part. Some messages of DuckDB quote invalid bytes, which Python cannot decode.
READ_ERRORS = (duckdb.Error, UnicodeDecodeError)


class StoreError(Exception):
    """The data folder cannot be used. The text names it and the fix."""


class StoreBusyError(StoreError):
    """Another process has the data folder open. DuckDB allows only one."""


class StoreBrokenError(StoreError):
    """The database of the data folder is damaged or missing. `pyrometer check --repair` creates a new one."""


def first_line(error: Exception) -> str:
    """The first line of an error of DuckDB, without the period."""
    if isinstance(error, UnicodeDecodeError):
        return "It has bytes that are not text where text should be"
    return str(error).splitlines()[0].rstrip(".")
