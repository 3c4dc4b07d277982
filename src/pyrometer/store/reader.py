"""Reads a data folder: the parts and hot tables of a record kind as one view."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb

from pyrometer.model.columns import SCHEMAS, Schema, schema_of
from pyrometer.model.records import Slot  # also declares the schemas
from pyrometer.store import catalog
from pyrometer.store.catalog import HotTable, Part

Record = TypeVar("Record", bound=tuple[Any, ...])


class StoreReader:
    """Reads the facts of one data folder over one connection."""

    def __init__(
        self, folder: Path, connection: duckdb.DuckDBPyConnection, meta: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.connection = connection
        # The catalog, read once.
        self._parts: list[Part] | None = None
        self._hot: list[HotTable] | None = None
        self._meta = catalog.meta(connection) if meta is None else dict(meta)
        self._stamps: dict[str, str] = {}  # by hot table, until rows are added
        self._views: dict[str, str] = {}  # the exposed views, by name
        self._kept: Mapping[str, str] | None = None  # queries that limit what can be read, by kind; None: no limit
        # Cached results by name, each with the fingerprint of its inputs.
        self.remembered: dict[str, tuple[Any, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Another process can then open the folder of a store."""
        self.connection.close()

    def parts(self, kind: str | None = None) -> list[Part]:
        """The sealed parts that queries read, oldest first."""
        if self._parts is None:
            self._parts = catalog.parts(self.connection)
        return [part for part in self._parts if kind is None or part.kind == kind]

    def hot_tables(self, kind: str | None = None) -> list[HotTable]:
        """The hot tables, oldest first."""
        if self._hot is None:
            self._hot = catalog.hot_tables(self.connection)
        return [table for table in self._hot if kind is None or table.kind == kind]

    def meta(self, name: str) -> str | None:
        """A small text that is stored with the data."""
        return self._meta.get(name)

    @property
    def is_limited(self) -> bool:
        """Whether only some rows can be read (`only`)."""
        return self._kept is not None

    def expose(
        self,
        kinds: Iterable[str],
        from_ms: int,
        to_ms: int,
        *,
        suffix: str = "",
        without: Iterable[Part] = (),
        keep: str = "",
    ) -> None:
        """Creates a temporary view of each kind, over the partitions that overlap [from_ms, to_ms). Parts can be left
        out, and a join or condition in SQL (`keep`) can limit the rows."""
        left_out = {part.path for part in without}
        for kind in kinds:
            name, query = f"{kind}{suffix}", self.query(kind, from_ms, to_ms, left_out)
            query = f"FROM ({query}) {kind} {keep}" if keep else query
            if self._views.get(name) != query:
                self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")
                self._views[name] = query

    def expose_all(self, kinds: Iterable[str]) -> None:
        """Creates a temporary view of each kind, over all time."""
        self.expose(kinds, -(2**62), 2**62)

    @contextmanager
    def only(self, kept: Mapping[str, str]) -> Iterator[None]:
        """Limits what can be read meanwhile: per kind, the rows of `{rows}` that its query keeps; of other kinds,
        nothing. The queries may read temporary tables with the prefix `scope_`. All others are dropped, so nothing that
        was read before remains."""
        self._forget("scope_")
        self._kept = kept
        try:
            yield
        finally:
            self._kept = None
            self._forget()

    def _forget(self, but: str | None = None) -> None:
        """Drops temporary views and tables, except those with a prefix."""
        self._views = {}
        for what in ("view", "table"):
            listed = f"SELECT {what}_name FROM duckdb_{what}s() WHERE temporary AND NOT internal"
            for (name,) in self.connection.execute(listed).fetchall():
                if but is None or not name.startswith(but):
                    self.connection.execute(f'DROP {what} temp."{name}"')

    def query(self, kind: str, from_ms: int, to_ms: int, left_out: Collection[str] = ()) -> str:
        """The query behind an exposed view, for use in another query: a view would be planned twice."""
        schema = SCHEMAS[kind]
        rows = self._rows(schema, from_ms, to_ms, left_out)
        if self._kept is None:
            return rows
        return self._kept.get(schema.name, "FROM {rows} WHERE false").format(rows=f"({rows}) {schema.name}")

    def _rows(self, schema: Schema, from_ms: int, to_ms: int, left_out: Collection[str]) -> str:
        touched = [part for part in self.parts(schema.name) if part.from_ms < to_ms and part.to_ms > from_ms]
        queries = self._read(schema, [part for part in touched if part.path not in left_out])
        queries += [
            self._distinct_hot(schema, table.from_ms)
            for table in self.hot_tables(schema.name)
            if table.from_ms < to_ms and table.from_ms + schema.partition_ms > from_ms
        ]
        if not queries:
            nothing = ", ".join(f"NULL::{c.duckdb_type} AS {c.name}" for c in schema.columns)
            return f"SELECT {nothing} WHERE false"
        return " UNION ALL ".join(f"({query})" for query in queries)

    def _read(self, schema: Schema, parts: list[Part]) -> list[str]:
        """SELECTs over parts, one for all that have the same columns."""
        return [
            _read_parts(schema, self._paths(p for p in parts if p.columns == columns), columns.split(","))
            for columns in sorted({part.columns for part in parts})
        ]

    def _paths(self, parts: Iterable[Part]) -> list[Path]:
        """The local paths of parts."""
        return [self.folder / part.path for part in parts]

    def sealed_query(self, schema: Schema, from_ms: int) -> str:
        """The rows of a hot table as its part will have them."""
        return f"{self._distinct_hot(schema, from_ms)} ORDER BY {', '.join(schema.sort)}"

    def _distinct_hot(self, schema: Schema, from_ms: int) -> str:
        """The rows of a hot table without repeated facts: those repeated in the table, or sealed before."""
        name = next(table.name for table in self.hot_tables(schema.name) if table.from_ms == from_ms)
        columns = ", ".join(schema.column_names)
        key = ", ".join(schema.key)
        query = f"SELECT {columns} FROM {name} QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY rowid) = 1"
        sealed = [part for part in self.parts(schema.name) if part.from_ms == from_ms]
        if sealed:
            same = " AND ".join(f"sealed.{name} IS NOT DISTINCT FROM fresh.{name}" for name in schema.key)
            known = " UNION ALL ".join(self._read(schema, sealed))
            query = f"SELECT {columns} FROM ({query}) fresh ANTI JOIN ({known}) sealed ON {same}"
        return query

    def has(self, kind: str, from_ms: int = -(2**62), to_ms: int = 2**62) -> bool:
        """Whether there may be rows of a kind in [from_ms, to_ms), according to the catalog."""
        step = SCHEMAS[kind].partition_ms
        return any(part.from_ms < to_ms and part.to_ms > from_ms for part in self.parts(kind)) or any(
            table.from_ms < to_ms and table.from_ms + step > from_ms for table in self.hot_tables(kind)
        )

    def newest_ms(self, kinds: Iterable[str], before_ms: int) -> int | None:
        """The newest time of rows of these kinds up to `before_ms`; None if there is none."""
        newest: list[int] = []
        for kind in kinds:
            schema = SCHEMAS[kind]
            time_column = time_column_of(schema)
            listed = self.parts(kind)
            newest += [p.newest_ms for p in listed if p.newest_ms is not None and p.newest_ms <= before_ms]
            read = [
                _read_parts(schema, self._paths([p]), p.columns.split(","))
                for p in listed
                if p.newest_ms is not None and p.from_ms <= before_ms < p.newest_ms
            ]
            read += [f"SELECT {time_column} FROM {table.name}" for table in self.hot_tables(kind)]
            for query in read:
                row = catalog.first_row(
                    self.connection.execute(
                        f"SELECT max({time_column}) FROM ({query}) WHERE {time_column} <= ?", [before_ms]
                    )
                )
                newest += [row[0]] if row and row[0] is not None else []
        return max(newest, default=None)

    def fingerprint(self, kinds: Iterable[str], from_ms: int, to_ms: int) -> str:
        """A text that changes when rows of these kinds and times are added or dropped, but not when they are sealed."""
        stamps = []
        for kind in kinds:
            step = SCHEMAS[kind].partition_ms
            parts = [p for p in self.parts(kind) if p.from_ms < to_ms and p.to_ms > from_ms]
            stamps += [Path(part.path).stem.partition("-")[2] for part in parts]
            for table in self.hot_tables(kind):
                if table.from_ms < to_ms and table.from_ms + step > from_ms:
                    stamps.append(self.stamp(table))
        return " ".join(sorted(stamps))

    def stamp(self, table: HotTable) -> str:
        """Identifies the rows of a hot table, and later its part. Rows are only added, so their number is enough."""
        if table.name not in self._stamps:
            counted = self.connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()
            self._stamps[table.name] = f"{table.name.rpartition('_')[2]}-{counted[0][0]}"
        return self._stamps[table.name]


def newest_records(
    store: StoreReader, kind: type[Record], key: str, where: str, values: list[Any], keep: str
) -> list[Record]:
    """The newest record of each key, of those that are to be kept. The kind has been exposed."""
    schema = schema_of(kind)
    name, columns = schema.name, ", ".join(schema.column_names)
    rows = store.connection.execute(
        f"SELECT {columns} FROM (SELECT * FROM {name} WHERE {where} "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY time_ms DESC) = 1) WHERE {keep}",
        values,
    ).fetchall()
    return [kind(*row) for row in rows]


def newest_slots(store: StoreReader) -> list[Slot]:
    """The newest record of every slot."""
    store.expose_all(["slot"])
    return newest_records(store, Slot, "node_uid, slot_index", "true", [], "true")


def time_column_of(schema: Schema) -> str:
    """The column with the time of a row."""
    return "minute_ms" if schema.name == "ledger_row" else "time_ms"


def _read_parts(schema: Schema, paths: Iterable[Path], present: list[str]) -> str:
    """A SELECT over parts that all have the columns `present`. Newer columns are NULL."""
    columns = ", ".join(c.name if c.name in present else f"NULL::{c.duckdb_type} AS {c.name}" for c in schema.columns)
    return f"SELECT {columns} FROM read_parquet({_path_list(paths)})"


def _path_list(paths: Iterable[Path]) -> str:
    return "[" + ", ".join(f"'{quoted(path)}'" for path in paths) + "]"


def quoted(path: Path) -> str:
    """A path, escaped for an SQL string."""
    return str(path).replace("'", "''")
