"""The store of facts: hot hours in DuckDB, sealed hours in Parquet, and a catalog of both."""

from pyrometer.store.batches import tables_of
from pyrometer.store.data_folder import data_folders
from pyrometer.store.errors import StoreBrokenError, StoreBusyError, StoreError
from pyrometer.store.reader import StoreReader
from pyrometer.store.store import Snapshot, Store

__all__ = [
    "Snapshot",
    "Store",
    "StoreBrokenError",
    "StoreBusyError",
    "StoreError",
    "StoreReader",
    "data_folders",
    "tables_of",
]
