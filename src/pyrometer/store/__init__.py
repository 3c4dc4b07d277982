"""The one place where facts rest: hot hours in DuckDB, sealed hours in Parquet, and a catalogue of both."""

from pyrometer.store.store import Store, StoreBusyError, StoreError

__all__ = ["Store", "StoreBusyError", "StoreError"]
