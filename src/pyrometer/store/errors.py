"""What can be wrong with a data folder, as errors: one sentence that names the folder and the way out."""

from __future__ import annotations


class StoreError(Exception):
    """The data folder cannot be used; the text names it and says what to do."""


class StoreBusyError(StoreError):
    """Another process has the data folder open: DuckDB allows one."""


class StoreBrokenError(StoreError):
    """The database of the data folder is damaged or missing: `pyrometer check --repair` makes a new one."""
