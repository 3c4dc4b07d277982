"""Every record kind comes back as it went in, hot and sealed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.model.columns import SCHEMAS, Column, Schema

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
TEXTS = [
    "",
    " ",
    "'",
    '"',
    "''; DROP TABLE hot; --",
    "a,b",
    "\\",
    "\n\t\r",
    "NULL",
    "ß∂ 漢字 🔥",
    "e\u0301",
    "x" * 5_000,
]
EXTREMES = {
    "string": TEXTS,
    "bool": [True, False],
    "int64": [0, -1, 2**63 - 1, -(2**63)],
    "int32": [0, -1, 2**31 - 1, -(2**31)],
    "int16": [0, -1, 2**15 - 1, -(2**15)],
    "float64": [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1],
    "list<string>": [(), ("",), ("a", "b"), tuple(TEXTS), tuple(str(i) for i in range(500))],
    "list<int64>": [(), (0,), (2**63 - 1, -(2**63)), tuple(range(500))],
}
ANY_OF = {
    "string": st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "bool": st.booleans(),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "float64": st.floats(),
    "list<string>": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=4).map(tuple),
    "list<int64>": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(tuple),
}

every_kind = pytest.mark.parametrize("kind", sorted(SCHEMAS))


def values(column: Column, partition_ms: int) -> st.SearchStrategy:
    if column.name in ("time_ms", "minute_ms"):
        return st.integers(DAY, DAY + 2 * partition_ms - 1)
    return ANY_OF[column.type] | st.none() if column.nullable else ANY_OF[column.type]


def key_of(schema: Schema, row: tuple) -> tuple:
    return tuple(getattr(row, name) for name in schema.key)


def rows_of_kind(schema: Schema) -> st.SearchStrategy:
    row = st.tuples(*(values(column, schema.partition_ms) for column in schema.columns))
    made = row.map(lambda row: schema.record(*row))
    return st.lists(made, min_size=1, max_size=6, unique_by=lambda row: key_of(schema, row))


def extreme_rows(schema: Schema) -> list:
    """Rows in which every column takes each of the extreme values of its type, and is absent where it may be."""
    choices = [[*EXTREMES[column.type], *([None] if column.nullable else [])] for column in schema.columns]
    rows = [
        schema.record(DAY + i, *(choice[i % len(choice)] for choice in choices[1:]))
        for i in range(max(len(choice) for choice in choices))
    ]
    return list({key_of(schema, row): row for row in rows}.values())


def comparable(rows: list[tuple]) -> list[str]:
    """NaN equals NaN, 0.0 is not -0.0, a list is a tuple; in an order of their own."""
    return sorted(repr(tuple(tuple(v) if isinstance(v, list) else v for v in row)) for row in rows)


def read(store, schema: Schema) -> list[str]:
    store.expose_all([schema.name])
    return comparable(store.connection.execute(f"FROM {schema.name}").fetchall())


def goes_in_and_comes_out(store, schema: Schema, rows: list) -> None:
    store.drop_before(2**62)
    store.append(rows)
    assert read(store, schema) == comparable(rows)
    assert sum(part.row_count for part in store.seal()) == len(rows)
    assert read(store, schema) == comparable(rows)


@every_kind
def test_extreme_values_come_back(lasting_store, kind):
    goes_in_and_comes_out(lasting_store, SCHEMAS[kind], extreme_rows(SCHEMAS[kind]))


@every_kind
@given(data=st.data())
@settings(max_examples=6)
def test_any_rows_come_back(lasting_store, kind, data):
    goes_in_and_comes_out(lasting_store, SCHEMAS[kind], data.draw(rows_of_kind(SCHEMAS[kind])))


@every_kind
def test_the_columns_of_a_view_have_the_declared_types(lasting_store, kind):
    schema = SCHEMAS[kind]
    declared = [(column.name, column.duckdb_type) for column in schema.columns]
    lasting_store.drop_before(2**62)
    for fill in ("nothing", "hot", "sealed"):
        if fill == "hot":
            lasting_store.append(extreme_rows(schema))
        if fill == "sealed":
            lasting_store.seal()
        lasting_store.expose_all([kind])
        described = lasting_store.connection.execute(f"DESCRIBE {kind}").fetchall()
        assert [(name, type_name) for name, type_name, *_ in described] == declared, fill
