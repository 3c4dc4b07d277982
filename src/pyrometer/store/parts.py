"""Writing a part: the rows of a query as one Parquet file, whole and on disk or not there at all."""

from __future__ import annotations

from pathlib import Path

import duckdb

from pyrometer.model.columns import Schema
from pyrometer.store import catalog, files
from pyrometer.store.catalog import Part
from pyrometer.store.reading import quoted, time_column_of


def write_part(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    schema: Schema,
    time: tuple[int, int],
    relative: str,
    query: str,
) -> Part:
    """Writes the result of a query, rows of one kind whose times lie in [from, to), to a path in a folder."""
    final = folder / relative
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_suffix(".tmp")
    columns = ", ".join(schema.column_names)
    version = "V2" if schema.delta_coded else "V1"
    connection.execute(
        f"COPY (SELECT {columns} FROM ({query})) TO '{quoted(temporary)}' "
        f"(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION {version})"
    )
    files.publish(temporary, final)
    row = catalog.first_row(
        connection.execute(f"SELECT count(*), max({time_column_of(schema)}) FROM read_parquet('{quoted(final)}')")
    )
    assert row is not None  # noqa: S101 - an aggregate without groups has one row
    return Part(schema.name, *time, relative, row[0], final.stat().st_size, row[1], ",".join(schema.column_names))
