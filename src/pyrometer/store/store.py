"""A data folder: append batches, seal what is old, read what is listed."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb

from pyrometer.model import records  # noqa: F401 - declares the schemas
from pyrometer.model.columns import SCHEMAS, Schema, schema_of
from pyrometer.store import catalog, files
from pyrometer.store.catalog import CatalogError, HotTable, Part, transaction

if TYPE_CHECKING:
    import pyarrow as pa

DATABASE = "pyrometer.duckdb"
SEALED_TOGETHER = 16  # hot tables; a crash leaves at most their files to be written again
MOST_PARTITIONS_PER_BATCH = 10_000
# Times before September 2001 or after November 2286 are not times of GPUs: seconds, micro- or nanoseconds where
# milliseconds belong, or a clock that was never set.
OLDEST_MS = 1_000_000_000_000
NEWEST_MS = 10_000_000_000_000


class StoreError(Exception):
    """The data folder cannot be used as asked; the text names it and the way out."""


class StoreBusyError(StoreError):
    """Another process has the data folder: DuckDB admits one."""


class NewPart(NamedTuple):
    """A derived part to be written: the result of `query`, for the range [from_ms, to_ms) of `kind`."""

    kind: str
    from_ms: int
    to_ms: int
    query: str
    digest: str


class Store:
    """One data folder, open for reading and writing by this process alone."""

    def __init__(self, folder: Path | str, *, create: bool = False, wait_s: float = 0.0) -> None:
        self.folder = Path(folder)
        if not create and not (self.folder / DATABASE).exists():
            raise StoreError(
                f"{self.folder} is not a Pyrometer data folder (it has no {DATABASE}). "
                "Make one with `pyrometer import`, or name another with --data."
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be made a data folder: {error.strerror}. Name another.") from None
        self.connection = _connect(self.folder / DATABASE, wait_s)
        try:
            catalog.prepare(self.connection)
            _widen_hot_tables(self.connection)
            leftovers = catalog.unlisted_files(self.connection, self.folder)
        except (CatalogError, duckdb.Error) as error:
            self.connection.close()
            raise StoreError(f"{self.folder} cannot be opened: {str(error).splitlines()[0]}.") from None
        for leftover in leftovers:
            leftover.unlink()
        # The catalogue as it is, read once: nobody else can change it.
        self._parts: list[Part] | None = None
        self._hot: list[HotTable] | None = None
        self._meta = catalog.meta(self.connection)
        self._stamps: dict[str, str] = {}  # by hot table, until rows are added to it
        self._views: dict[str, str] = {}  # what is exposed now, by name
        self._write_manifest()  # the one before may have been written just before a crash

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hands the folder back: another process may open it."""
        self.connection.close()

    def _write_manifest(self) -> None:
        """Says what is in the folder, for engines that cannot ask the catalogue."""
        path = self.folder / "manifest.json"
        text = catalog.manifest(self.parts())
        if not path.exists() or path.read_bytes() != text.encode():
            files.write_text(path, text)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with transaction(self.connection):
                yield
        finally:
            self._parts = self._hot = None

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

    # -- facts in -----------------------------------------------------------------------------------------------

    def append(self, *batches: Iterable[tuple[Any, ...]], producer: str = "", sequence: int = -1) -> bool:
        """Takes records, each iterable holding one kind, in one transaction.

        With a producer and its sequence number a batch counts once however often it is sent; the answer is whether it
        was new.
        """
        tables: dict[str, list[tuple[Any, ...]]] = {}
        for batch in batches:
            for row in batch:
                tables.setdefault(schema_of(type(row)).name, []).append(row)
        arrow = {}
        for kind, rows in tables.items():
            try:
                arrow[kind] = SCHEMAS[kind].table(rows)
            except (ValueError, OverflowError, TypeError) as error:  # Arrow's are among them
                raise _refused(kind, error) from None
        return self.append_tables(arrow, producer=producer, sequence=sequence)

    def append_tables(self, tables: Mapping[str, pa.Table], *, producer: str = "", sequence: int = -1) -> bool:
        """Takes Arrow tables by kind, as `append` does with records."""
        with self._transaction():
            if producer:
                if sequence <= catalog.mark_of(self.connection, producer):
                    return False
                self.connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", [producer, sequence])
            for kind, table in tables.items():
                try:
                    self._append_rows(SCHEMAS[kind], table)
                except (duckdb.DataError, duckdb.ConstraintException, duckdb.BinderException) as error:
                    raise _refused(kind, error) from None
        return True

    def _append_rows(self, schema: Schema, table: pa.Table) -> None:
        columns = ", ".join(schema.column_names)
        time_column = _time_column(schema)
        # No kind has this name: readers have views of those. When the transaction is rolled back, so is this one.
        self.connection.register("incoming_rows", table)
        whole = _partition_of_all(schema, table)
        partitions = self._partitions(schema) if whole is None else [whole]
        if len(partitions) > MOST_PARTITIONS_PER_BATCH:
            raise StoreError(
                f"A batch of {schema.name} records spans {len(partitions)} partitions "
                f"(limit {MOST_PARTITIONS_PER_BATCH}): its clock is wrong, or it must be sent in pieces."
            )
        for from_ms in partitions:
            name = self._hot_table(schema, from_ms)
            self._stamps.pop(name, None)
            self.connection.execute(
                f"INSERT INTO {name} ({columns}) SELECT {columns} FROM incoming_rows "
                f"WHERE {time_column} >= ? AND {time_column} < ?",
                [max(from_ms, OLDEST_MS), min(from_ms + schema.partition_ms, NEWEST_MS)],
            )
        self.connection.unregister("incoming_rows")

    def _partitions(self, schema: Schema) -> list[int]:
        """Where the rows of the batch belong. Those that are left out are counted, by reason; the rest is taken."""
        time_column = _time_column(schema)
        rows = self.connection.execute(
            f"""
            SELECT CASE
                WHEN {time_column} IS NULL THEN 'they have no time'
                WHEN {time_column} < {OLDEST_MS} THEN 'their time is before September 2001'
                WHEN {time_column} >= {NEWEST_MS} THEN 'their time is after November 2286'
                END AS rejected,
                CASE WHEN rejected IS NULL THEN {time_column} - {time_column} % {schema.partition_ms} END AS from_ms,
                count(*)
            FROM incoming_rows GROUP BY ALL ORDER BY ALL
            """
        ).fetchall()
        for rejected, _, count in rows:
            if rejected:
                self.connection.execute(
                    "INSERT INTO rejections VALUES (?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET row_count = row_count + excluded.row_count",
                    [schema.name, rejected, count],
                )
        return [from_ms for rejected, from_ms, _ in rows if not rejected]

    def rejections(self) -> dict[tuple[str, str], int]:
        """How many rows were left out, by kind and reason."""
        rows = self.connection.execute("SELECT kind, reason, row_count FROM rejections ORDER BY ALL").fetchall()
        return {(kind, reason): count for kind, reason, count in rows}

    def _hot_table(self, schema: Schema, from_ms: int) -> str:
        known = [t.name for t in self.hot_tables(schema.name) if t.from_ms == from_ms]
        if known:
            return known[0]
        name = f"hot_{schema.name}_{uuid.uuid4().hex[:12]}"
        self.connection.execute(f"CREATE TABLE {name} ({schema.duckdb_columns()})")
        self.connection.execute("INSERT INTO hot VALUES (?, ?, ?)", [schema.name, from_ms, name])
        return name

    def _stamp(self, table: HotTable) -> str:
        """Says which rows a hot table holds, and later the part that it is sealed into: they are only ever added."""
        if table.name not in self._stamps:
            counted = self.connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()
            self._stamps[table.name] = f"{table.name.rpartition('_')[2]}-{counted[0][0]}"
        return self._stamps[table.name]

    # -- sealing ------------------------------------------------------------------------------------------------

    def seal(self, before_ms: int | None = None) -> list[Part]:
        """Turns hot tables whose time is over before `before_ms` (None: all of them) into Parquet parts."""
        over = [
            table
            for table in self.hot_tables()
            if before_ms is None or table.from_ms + SCHEMAS[table.kind].partition_ms <= before_ms
        ]
        sealed = []
        for begin in range(0, len(over), SEALED_TOGETHER):
            sealed += self._seal(over[begin : begin + SEALED_TOGETHER])
        if over:
            self._write_manifest()
        return sealed

    def _seal(self, tables: list[HotTable]) -> list[Part]:
        """Writes the parts of some hot tables, then lists them and drops the tables in one transaction."""
        parts = []
        for table in tables:
            schema = SCHEMAS[table.kind]
            query = f"{self._distinct_hot(schema, table.from_ms)} ORDER BY {', '.join(schema.sort)}"
            to_ms = table.from_ms + schema.partition_ms
            parts.append(self._write_part(schema, table.from_ms, to_ms, query, self._stamp(table)))
        with self._transaction():
            catalog.list_parts(self.connection, [part for part in parts if part.row_count])
            for table in tables:
                self.connection.execute(f"DROP TABLE {table.name}")
                self.connection.execute("DELETE FROM hot WHERE name = ?", [table.name])
        for part in parts:
            if not part.row_count:
                (self.folder / part.path).unlink()
        return [part for part in parts if part.row_count]

    def replace(self, new_parts: Iterable[NewPart]) -> None:
        """Writes derived parts and lists them instead of those whose time they cover, all in one transaction."""
        new_parts = list(new_parts)
        written = [
            self._write_part(SCHEMAS[new.kind], new.from_ms, new.to_ms, new.query, uuid.uuid4().hex[:12])._replace(
                digest=new.digest
            )
            for new in new_parts
        ]
        old = [
            part
            for new in new_parts
            for part in self.parts(new.kind)
            if part.from_ms < new.to_ms and part.to_ms > new.from_ms
        ]
        with self._transaction():
            catalog.unlist_parts(self.connection, old)
            catalog.list_parts(self.connection, written)
        self._remove(old)

    def drop_parts(self, old: Iterable[Part]) -> None:
        """Takes parts out of the store for good."""
        old = list(old)
        with self._transaction():
            catalog.unlist_parts(self.connection, old)
        self._remove(old)

    def drop_before(self, before_ms: int, kinds: Iterable[str] | None = None) -> int:
        """Drops parts and hot tables (of these kinds, None: all) that end at or before a time; says how many."""
        dropped = set(SCHEMAS) if kinds is None else set(kinds)
        old = [part for part in self.parts() if part.kind in dropped and part.to_ms <= before_ms]
        hot = [
            table
            for table in self.hot_tables()
            if table.kind in dropped and table.from_ms + SCHEMAS[table.kind].partition_ms <= before_ms
        ]
        with self._transaction():
            catalog.unlist_parts(self.connection, old)
            for table in hot:
                self.connection.execute(f"DROP TABLE {table.name}")
                self.connection.execute("DELETE FROM hot WHERE name = ?", [table.name])
        self._remove(old)
        return len(old) + len(hot)

    def _write_part(self, schema: Schema, from_ms: int, to_ms: int, query: str, stamp: str) -> Part:
        relative = _part_path(schema, from_ms, stamp)
        final = self.folder / relative
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_suffix(".tmp")
        columns = ", ".join(schema.column_names)
        version = "V2" if schema.delta_coded else "V1"
        self.connection.execute(
            f"COPY (SELECT {columns} FROM ({query})) TO '{_quoted(temporary)}' "
            f"(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION {version})"
        )
        files.publish(temporary, final)
        row = catalog.first_row(
            self.connection.execute(
                f"SELECT count(*), max({_time_column(schema)}) FROM read_parquet('{_quoted(final)}')"
            )
        )
        assert row is not None  # noqa: S101 - an aggregate without groups has one row
        return Part(
            schema.name,
            from_ms,
            to_ms,
            relative,
            row[0],
            final.stat().st_size,
            row[1],
            ",".join(schema.column_names),
        )

    def _remove(self, old: Iterable[Part]) -> None:
        self._write_manifest()  # first: it names no file that is gone
        for part in old:
            (self.folder / part.path).unlink(missing_ok=True)

    # -- facts out ----------------------------------------------------------------------------------------------

    def expose(self, kinds: Iterable[str], from_ms: int, to_ms: int, *, suffix: str = "") -> None:
        """Makes each kind readable as a temporary view of its name, over the partitions that touch [from_ms, to_ms)."""
        for kind in kinds:
            name, query = f"{kind}{suffix}", self._query(SCHEMAS[kind], from_ms, to_ms)
            if self._views.get(name) != query:
                self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")
                self._views[name] = query

    def expose_all(self, kinds: Iterable[str]) -> None:
        """Makes each kind readable as a temporary view of its name, over all time."""
        self.expose(kinds, -(2**62), 2**62)

    def _query(self, schema: Schema, from_ms: int, to_ms: int) -> str:
        touched = [part for part in self.parts(schema.name) if part.from_ms < to_ms and part.to_ms > from_ms]
        queries = self._read(schema, touched)
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
            _read_parts(schema, [self.folder / p.path for p in parts if p.columns == columns], columns.split(","))
            for columns in sorted({part.columns for part in parts})
        ]

    def _distinct_hot(self, schema: Schema, from_ms: int) -> str:
        """The rows of a hot table that state a fact for the first time: not in it before, and not sealed before."""
        columns = ", ".join(schema.column_names)
        key = ", ".join(schema.key)
        query = (
            f"SELECT {columns} FROM {self._hot_table(schema, from_ms)} "
            f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY rowid) = 1"
        )
        sealed = [part for part in self.parts(schema.name) if part.from_ms == from_ms]
        if sealed:
            same = " AND ".join(f"sealed.{name} IS NOT DISTINCT FROM fresh.{name}" for name in schema.key)
            known = " UNION ALL ".join(self._read(schema, sealed))
            query = f"SELECT {columns} FROM ({query}) fresh ANTI JOIN ({known}) sealed ON {same}"
        return query

    def has(self, kind: str, from_ms: int = -(2**62), to_ms: int = 2**62) -> bool:
        """Whether there may be rows of a kind in [from_ms, to_ms): without a look at them."""
        step = SCHEMAS[kind].partition_ms
        return any(part.from_ms < to_ms and part.to_ms > from_ms for part in self.parts(kind)) or any(
            table.from_ms < to_ms and table.from_ms + step > from_ms for table in self.hot_tables(kind)
        )

    def newest_ms(self, kinds: Iterable[str], before_ms: int) -> int | None:
        """The newest time of any row of these kinds that is not later than `before_ms`; None when there is none."""
        newest: list[int] = []
        for kind in kinds:
            schema = SCHEMAS[kind]
            time_column = _time_column(schema)
            listed = self.parts(kind)
            newest += [p.newest_ms for p in listed if p.newest_ms is not None and p.newest_ms <= before_ms]
            read = [
                _read_parts(schema, [self.folder / p.path], p.columns.split(","))
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

    def meta(self, name: str) -> str | None:
        """A small text kept with the store."""
        return self._meta.get(name)

    def set_meta(self, name: str, value: str) -> None:
        """Keeps a small text with the store."""
        if self._meta.get(name) != value:
            self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [name, value])
            self._meta[name] = value

    def fingerprint(self, kinds: Iterable[str], from_ms: int, to_ms: int) -> str:
        """Changes whenever rows of these kinds in this time were added or dropped, not when they are sealed."""
        stamps = []
        for kind in kinds:
            step = SCHEMAS[kind].partition_ms
            parts = [p for p in self.parts(kind) if p.from_ms < to_ms and p.to_ms > from_ms]
            stamps += [Path(part.path).stem.partition("-")[2] for part in parts]
            for table in self.hot_tables(kind):
                if table.from_ms < to_ms and table.from_ms + step > from_ms:
                    stamps.append(self._stamp(table))
        return " ".join(sorted(stamps))


def _connect(path: Path, wait_s: float) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection = duckdb.connect(str(path))
            break
        except duckdb.Error as error:
            holder = re.search(r"PID (\d+)", str(error))
            if holder is None:
                raise StoreError(f"{path} cannot be opened: {str(error).splitlines()[0]}") from None
            if time.monotonic() >= deadline:
                raise StoreBusyError(
                    f"{path.parent} is in use by process {holder[1]}: a data folder admits one process at a time. "
                    "Wait for it, or stop it."
                ) from None
            time.sleep(0.1)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")  # it would write among the answers
    connection.execute(f"SET temp_directory = '{_quoted(path.parent / 'tmp')}'")
    return connection


def _widen_hot_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Hot tables that an older version left get the columns that were added since, with absent values."""
    tables = catalog.hot_tables(connection)
    if not tables:  # the question below takes as long as all the rest of opening a folder
        return
    rows = connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    known = set(rows)
    for table in tables:
        for column in SCHEMAS[table.kind].columns:
            if column.nullable and (table.name, column.name) not in known:
                connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.duckdb_type}")


def _refused(kind: str, error: Exception) -> StoreError:
    reason = re.sub(r"hot_(\w+)_[0-9a-f]{12}", r"\1", str(error).splitlines()[0].rstrip("."))
    return StoreError(f"A batch with {kind} records was refused, and nothing of it was stored: {reason}.")


def _time_column(schema: Schema) -> str:
    return "minute_ms" if schema.name == "ledger_row" else "time_ms"


def _partition_of_all(schema: Schema, table: pa.Table) -> int | None:
    """The one partition that takes a whole batch, as of most batches; None when its rows have to be looked at."""
    column = _time_column(schema)
    times = table.column(column) if table.num_rows and column in table.column_names else None
    if times is None or times.null_count or str(times.type) != "int64":
        return None
    numbers = times.to_numpy()
    oldest_ms, newest_ms = int(numbers.min()), int(numbers.max())
    from_ms = schema.partition_of(oldest_ms)
    fits = oldest_ms >= OLDEST_MS and newest_ms < min(NEWEST_MS, from_ms + schema.partition_ms)
    return from_ms if fits else None


def _part_path(schema: Schema, from_ms: int, stamp: str) -> str:
    start = datetime.fromtimestamp(from_ms / 1000, UTC)
    return f"parts/{schema.name}/{start:%Y-%m-%d}/{start:%H}-{stamp}.parquet"


def _read_parts(schema: Schema, paths: Iterable[Path], present: list[str]) -> str:
    """A SELECT over parts that all have the columns `present`; columns that came later are absent values."""
    columns = ", ".join(c.name if c.name in present else f"NULL::{c.duckdb_type} AS {c.name}" for c in schema.columns)
    return f"SELECT {columns} FROM read_parquet({_path_list(paths)})"


def _path_list(paths: Iterable[Path]) -> str:
    return "[" + ", ".join(f"'{_quoted(path)}'" for path in paths) + "]"


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
