"""The one place where facts rest: hot hours in DuckDB, sealed hours in Parquet, and a catalogue of both."""

from pyrometer.store.errors import StoreBrokenError, StoreBusyError, StoreError
from pyrometer.store.reading import Reading
from pyrometer.store.store import Snapshot, Store, data_folders, tables_of

__all__ = [
    "Reading", "Snapshot", "Store", "StoreBrokenError", "StoreBusyError", "StoreError", "data_folders", "tables_of",
]  # fmt: skip
