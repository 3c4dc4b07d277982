"""Record declarations: a NamedTuple gives the record, its Arrow schema and its DuckDB columns."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR

if TYPE_CHECKING:
    import pyarrow as pa

# The types of columns. Integers are as narrow as possible, which keeps parts small.
Text = Annotated[str, "string"]
Flag = Annotated[bool, "bool"]
Int64 = Annotated[int, "int64"]
Int32 = Annotated[int, "int32"]
Int16 = Annotated[int, "int16"]
Float64 = Annotated[float, "float64"]
TextList = Annotated[tuple[str, ...], "list<string>"]
IntList = Annotated[tuple[int, ...], "list<int64>"]

_DUCKDB = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int64": "BIGINT",
    "int32": "INTEGER",
    "int16": "SMALLINT",
    "float64": "DOUBLE",
    "list<string>": "VARCHAR[]",
    "list<int64>": "BIGINT[]",
}


class Column(NamedTuple):
    """One column of a record: its name, its Arrow type, and whether values may be absent."""

    name: str
    type: str
    nullable: bool

    @property
    def duckdb_type(self) -> str:
        """The DuckDB type."""
        return _DUCKDB[self.type]


class Schema(NamedTuple):
    """How a record kind is stored: its columns, the key that identifies a fact, and how it is partitioned by time."""

    name: str
    record: type
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    sort: tuple[str, ...]
    partition_ms: int
    delta_coded: bool = False
    derived: bool = False

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns, in the order of the record's fields."""
        return tuple(column.name for column in self.columns)

    def partition_of(self, time_ms: int) -> int:
        """The start of the hour or day that a row of this time is stored in."""
        return time_ms - time_ms % self.partition_ms

    def duckdb_columns(self) -> str:
        """The column list of a CREATE TABLE."""
        return ", ".join(f"{c.name} {c.duckdb_type}{'' if c.nullable else ' NOT NULL'}" for c in self.columns)

    def arrow(self) -> pa.Schema:
        """The Arrow schema of a batch of these records."""
        import pyarrow as pa

        return pa.schema([pa.field(c.name, _arrow_type(c.type), nullable=c.nullable) for c in self.columns])

    def table(self, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
        """An Arrow table of records."""
        import pyarrow as pa

        columns = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        arrays = [
            pa.array(values, type=_arrow_type(column.type))
            for values, column in zip(columns, self.columns, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.arrow())


SCHEMAS: dict[str, Schema] = {}
_SCHEMA_OF: dict[type, Schema] = {}

Record = TypeVar("Record", bound=type)


def record(
    *,
    key: tuple[str, ...],
    sort: tuple[str, ...] = (),
    every: str = "hour",
    delta_coded: bool = False,
    derived: bool = False,
) -> Callable[[Record], Record]:
    """Declares a NamedTuple as a stored record kind.

    - `key`: rows with equal keys state the same fact, and the first one counts.
    - `sort`: the order of rows in a part.
    - `every`: parts cover an hour (many rows: measurements) or a day (few rows: objects and their changes).
    - `delta_coded`: parts are written in version 2 of Parquet, which stores differences of numbers.
    - `derived`: Pyrometer computes the rows from other records.
    """
    partition_ms = {"hour": MS_PER_HOUR, "day": MS_PER_DAY}[every]

    def declare(cls: Record) -> Record:
        hints = get_type_hints(cls, include_extras=True)
        columns = tuple(column_of(name, hints[name]) for name in cls._fields)  # type: ignore[attr-defined]
        name = "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")
        schema = Schema(
            name=name,
            record=cls,
            columns=columns,
            key=key,
            sort=sort or key,
            partition_ms=partition_ms,
            delta_coded=delta_coded,
            derived=derived,
        )
        SCHEMAS[name] = _SCHEMA_OF[cls] = schema
        return cls

    return declare


def derived_kinds() -> frozenset[str]:
    """The record kinds that Pyrometer computes from other records."""
    return frozenset(name for name, schema in SCHEMAS.items() if schema.derived)


def schema_of(record_type: type) -> Schema:
    """The schema that a record type declared."""
    return _SCHEMA_OF[record_type]


def column_of(name: str, hint: Any) -> Column:
    """The column that a field of a NamedTuple declares."""
    nullable = False
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not types.NoneType)
        nullable = True
    return Column(name, hint.__metadata__[0], nullable)


def _arrow_type(name: str) -> Any:
    import pyarrow as pa

    listed = name.removeprefix("list<").removesuffix(">")
    return pa.type_for_alias(name) if listed == name else pa.list_(pa.type_for_alias(listed))
