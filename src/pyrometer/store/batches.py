"""Batches: records and Arrow tables before they are stored, and the times that can be stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyrometer.model.columns import SCHEMAS, Schema, schema_of
from pyrometer.store.errors import StoreError, first_line
from pyrometer.store.grammar import HOT_PATTERN
from pyrometer.store.reader import time_column_of

if TYPE_CHECKING:
    import pyarrow as pa

# Times before September 2001 or after November 2286 are not times of GPUs: seconds, micro- or nanoseconds where
# milliseconds belong, or a clock that was never set.
OLDEST_MS = 1_000_000_000_000
NEWEST_MS = 10_000_000_000_000


def tables_of(*batches: Iterable[tuple[Any, ...]]) -> dict[str, pa.Table]:
    """Arrow tables of records, by kind."""
    rows_of: dict[str, list[tuple[Any, ...]]] = {}
    for batch in batches:
        for row in batch:
            rows_of.setdefault(schema_of(type(row)).name, []).append(row)
    tables = {}
    for kind, rows in rows_of.items():
        try:
            tables[kind] = SCHEMAS[kind].table(rows)
        except (ValueError, OverflowError, TypeError) as error:  # Arrow's are among them
            raise refused_batch(kind, error) from None
    return tables


def refused_batch(kind: str, error: Exception) -> StoreError:
    """The error of a batch that was refused."""
    reason = re.sub(HOT_PATTERN, r"\g<kind>", first_line(error))
    return StoreError(f"A batch with {kind} records was refused as a whole: {reason}.")


def single_partition(schema: Schema, table: pa.Table) -> int | None:
    """The partition that all rows of a batch belong to, as in most batches; None if each row must be checked."""
    column = time_column_of(schema)
    times = table.column(column) if table.num_rows and column in table.column_names else None
    if times is None or times.null_count or str(times.type) != "int64":
        return None
    numbers = times.to_numpy()
    oldest_ms, newest_ms = int(numbers.min()), int(numbers.max())
    from_ms = schema.partition_of(oldest_ms)
    fits = oldest_ms >= OLDEST_MS and newest_ms < min(NEWEST_MS, from_ms + schema.partition_ms)
    return from_ms if fits else None
