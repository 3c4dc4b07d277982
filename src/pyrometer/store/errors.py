"""What can be wrong with a data folder, as errors: one sentence that names the folder and the way out."""

from __future__ import annotations

import duckdb

# What reading a part can raise. DuckDB quotes broken bytes in some messages, which Python then cannot decode.
READ_ERRORS = (duckdb.Error, UnicodeDecodeError)


class StoreError(Exception):
    """The data folder cannot be used; the text names it and says what to do."""


class StoreBusyError(StoreError):
    """Another process has the data folder open: DuckDB allows one."""


class StoreBrokenError(StoreError):
    """The database of the data folder is damaged or missing: `pyrometer check --repair` makes a new one."""


def first_line(error: Exception) -> str:
    """The first line of what DuckDB reported, without its full stop."""
    if isinstance(error, UnicodeDecodeError):
        return "It has bytes that are not text where text should be"
    return str(error).splitlines()[0].rstrip(".")
