"""Parts as Parquet files."""

from __future__ import annotations

import duckdb
import pytest

from pyrometer.model.columns import schema_of
from pyrometer.model.records import Event
from pyrometer.store.errors import READ_ERRORS
from pyrometer.store.parts import describe_part, part_path, write_part

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
SCHEMA = schema_of(Event)


@pytest.fixture
def connection():
    connection = duckdb.connect()
    connection.register("rows", SCHEMA.table([Event(DAY, "a"), Event(DAY + 5, "b")]))
    return connection


def test_part_path_has_kind_day_and_hour():
    assert part_path(SCHEMA, DAY + 3 * 3_600_000, "x-2") == "parts/event/2025-10-10/03-x-2.parquet"


def test_a_written_part_is_described_like_its_file(connection, tmp_path):
    folder = tmp_path / "it's here"
    path = part_path(SCHEMA, DAY, "1")
    part = write_part(connection, folder, SCHEMA, (DAY, DAY + 10), path, "FROM rows")
    assert (part.row_count, part.newest_ms, part.bytes) == (2, DAY + 5, (folder / path).stat().st_size)
    assert part.columns.split(",") == list(SCHEMA.column_names)
    assert describe_part(connection, folder, part._replace(row_count=0, bytes=0, newest_ms=None)) == part
    assert [one.name for one in (folder / path).parent.iterdir()] == ["00-1.parquet"]


def test_an_empty_part_has_no_newest_time(connection, tmp_path):
    part = write_part(
        connection, tmp_path, SCHEMA, (DAY, DAY + 10), part_path(SCHEMA, DAY, "1"), "FROM rows WHERE false"
    )
    assert (part.row_count, part.newest_ms) == (0, None)


def test_describe_part_refuses_a_truncated_file(connection, tmp_path):
    part = write_part(connection, tmp_path, SCHEMA, (DAY, DAY + 10), part_path(SCHEMA, DAY, "1"), "FROM rows")
    path = tmp_path / part.path
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(READ_ERRORS):
        describe_part(connection, tmp_path, part)
