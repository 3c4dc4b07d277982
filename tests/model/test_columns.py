"""Columns: one declaration gives the record, its Arrow schema and its DuckDB columns."""

from __future__ import annotations

from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.model import columns, records
from pyrometer.model.columns import (
    SCHEMAS,
    Column,
    Flag,
    Int16,
    Int64,
    Text,
    TextList,
    derived_kinds,
    record,
    schema_of,
)
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR

every_kind = pytest.mark.parametrize("kind", sorted(SCHEMAS))


@pytest.fixture
def nothing_declared(monkeypatch):
    """Removes the declarations of a test after it."""
    monkeypatch.setattr(columns, "SCHEMAS", {})
    monkeypatch.setattr(columns, "_SCHEMA_OF", {})


@every_kind
def test_arrow_and_duckdb_agree_on_every_type(kind):
    schema = SCHEMAS[kind]
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE made ({schema.duckdb_columns()})")
        made = connection.sql("FROM made").to_arrow_table().schema
    assert [(field.name, field.type) for field in made] == [(field.name, field.type) for field in schema.arrow()]


@every_kind
def test_a_column_may_be_null_in_duckdb_when_it_may_be_none_in_the_record(kind):
    schema = SCHEMAS[kind]
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE made ({schema.duckdb_columns()})")
        described = connection.execute("DESCRIBE made").fetchall()
    assert {name: null == "YES" for name, _, null, *_ in described} == {c.name: c.nullable for c in schema.columns}
    assert {field.name: field.nullable for field in schema.arrow()} == {c.name: c.nullable for c in schema.columns}


def test_derived_kinds_are_those_that_pyrometer_computes():
    sums = {"hour_sum", "minute_sum", "minute_use", "quarter_use", "hour_use"}
    assert derived_kinds() == {"ledger_row", "carry", "energy", "restatement", "finding", *sums}


@every_kind
def test_a_default_fits_its_column(kind):
    schema = SCHEMAS[kind]
    defaults = schema.record._field_defaults
    assert [c.name for c in schema.columns if defaults.get(c.name, 0) is None and not c.nullable] == []
    arrow = schema.arrow()
    for name, value in defaults.items():
        assert pa.array([value], type=arrow.field(name).type).to_pylist() == [value]


@every_kind
def test_no_records_make_an_empty_table_of_the_same_schema(kind):
    table = SCHEMAS[kind].table([])
    assert table.num_rows == 0
    assert table.schema == SCHEMAS[kind].arrow()


def test_records_become_a_table_in_the_order_of_their_fields():
    rows = [records.Slot(1, "n", 0), records.Slot(2, "n", 1, healthy=False, reason="XID 79")]
    table = SCHEMAS["slot"].table(rows)
    assert table.column_names == list(records.Slot._fields)
    assert [records.Slot(**row) for row in table.to_pylist()] == rows


def test_a_row_with_too_few_values_is_an_error():
    with pytest.raises(ValueError):
        SCHEMAS["slot"].table([(1, "n")])


def test_a_number_that_does_not_fit_its_column_is_an_error():
    with pytest.raises(pa.ArrowInvalid, match="32768"):
        SCHEMAS["slot"].table([records.Slot(1, "n", 2**15)])


@given(st.sampled_from(sorted(SCHEMAS)), st.integers(-(2**62), 2**62))
def test_row_belongs_to_exactly_one_partition(kind, time_ms):
    schema = SCHEMAS[kind]
    from_ms = schema.partition_of(time_ms)
    assert from_ms <= time_ms < from_ms + schema.partition_ms
    assert from_ms % schema.partition_ms == 0
    assert schema.partition_of(from_ms) == schema.partition_of(from_ms + schema.partition_ms - 1) == from_ms


def test_a_declaration_gives_name_columns_key_sort_and_partition(nothing_declared):
    @record(key=("uid", "time_ms"))
    class NightlyBuildJob(NamedTuple):
        time_ms: Int64
        uid: Text
        good: Flag | None = None
        parts: TextList | None = None

    schema = schema_of(NightlyBuildJob)
    assert list(columns.SCHEMAS.items()) == [("nightly_build_job", schema)]
    assert schema.record is NightlyBuildJob
    assert schema.columns == (
        Column("time_ms", "int64", False),
        Column("uid", "string", False),
        Column("good", "bool", True),
        Column("parts", "list<string>", True),
    )
    assert schema.duckdb_columns() == "time_ms BIGINT NOT NULL, uid VARCHAR NOT NULL, good BOOLEAN, parts VARCHAR[]"
    assert schema.key == schema.sort == ("uid", "time_ms")
    assert schema.partition_ms == MS_PER_HOUR


def test_declaration_can_set_sort_and_partition(nothing_declared):
    @record(key=("uid",), sort=("time_ms",), every="day")
    class Thing(NamedTuple):
        time_ms: Int64
        uid: Int16

    assert schema_of(Thing).sort == ("time_ms",)
    assert schema_of(Thing).partition_ms == MS_PER_DAY


def test_a_partition_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError, match="week"):
        record(key=("time_ms",), every="week")


def test_a_type_that_was_not_declared_has_no_schema():
    with pytest.raises(KeyError):
        schema_of(tuple)
