"""Parts as Parquet files: writing one, and describing one from its file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb

from pyrometer.model.columns import SCHEMAS, Schema
from pyrometer.store import catalog, files
from pyrometer.store.catalog import Part
from pyrometer.store.reader import quoted, time_column_of


def write_part(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    schema: Schema,
    time: tuple[int, int],
    relative: str,
    query: str,
) -> Part:
    """Writes the result of a query as a part: rows of one kind with times in [from, to)."""
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


def describe_part(connection: duckdb.DuckDBPyConnection, folder: Path, part: Part) -> Part:
    """Describes a part from its file. Raises one of READ_ERRORS if any part of the file cannot be read."""
    time_column = time_column_of(SCHEMAS[part.kind])
    path = folder / part.path
    rows = connection.execute(
        f"SELECT count(*), max({time_column}), bit_xor(hash(part)) FROM read_parquet(?) AS part", [str(path)]
    ).fetchall()
    names = connection.execute("SELECT name FROM parquet_schema(?)", [str(path)]).fetchall()
    has = {name for (name,) in names}
    columns = ",".join(name for name in SCHEMAS[part.kind].column_names if name in has)
    return part._replace(row_count=rows[0][0], newest_ms=rows[0][1], bytes=path.stat().st_size, columns=columns)


def part_path(schema: Schema, from_ms: int, stamp: str) -> str:
    """The path of a new part, relative to the data folder."""
    start = datetime.fromtimestamp(from_ms / 1000, UTC)
    return f"parts/{schema.name}/{start:%Y-%m-%d}/{start:%H}-{stamp}.parquet"
