"""The store: append batches, seal old hours, replace derived parts, take snapshots."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb

from pyrometer.model.columns import SCHEMAS, Schema
from pyrometer.store import catalog, files
from pyrometer.store.batches import NEWEST_MS, OLDEST_MS, refused_batch, single_partition, tables_of
from pyrometer.store.catalog import HotTable, Part, transaction
from pyrometer.store.data_folder import MANIFEST, open_database, refuse_other_folder, system_errors
from pyrometer.store.errors import StoreError
from pyrometer.store.parts import part_path, write_part
from pyrometer.store.reader import StoreReader, quoted, time_column_of

if TYPE_CHECKING:
    import pyarrow as pa

SEALED_TOGETHER = 16  # hot tables; after a crash at most their files are written again
MAX_PARTITIONS_PER_BATCH = 10_000


class NewPart(NamedTuple):
    """A derived part to write: the result of `query`, for [from_ms, to_ms) of `kind`. The query may read parts that
    were written before it as `new_KIND`."""

    kind: str
    from_ms: int
    to_ms: int
    query: str
    digest: str | None  # None: a part of facts


class Snapshot(StoreReader):
    """A store at one moment, for another thread. It does not contain later writes."""

    def __init__(self, store: Store) -> None:
        connection = store.connection.cursor()
        try:
            connection.execute("BEGIN")
            connection.execute("FROM hot LIMIT 0")  # the first read starts the snapshot
            super().__init__(store.folder, connection, store._meta)
            self._parts, self._hot, self._stamps = store.parts(), store.hot_tables(), dict(store._stamps)
        except BaseException:
            connection.close()
            raise
        self._store = store
        self.remembered = store.remembered

    def close(self) -> None:
        """Releases the snapshot: files that were replaced since may be removed."""
        self._store._release(self)  # first, so that `interrupt_readers` never sees a closed snapshot
        super().close()


class Store(StoreReader):
    """One data folder, open for reading and writing in this process only, and for one thread at a time."""

    def __init__(self, folder: Path | str, *, create: bool = False, wait_s: float = 0.0) -> None:
        folder = Path(folder)
        if not create:
            with system_errors(folder):
                refuse_other_folder(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot become a data folder: {error.strerror}. Choose another.") from None
        with system_errors(folder):
            super().__init__(folder, open_database(folder, wait_s))
        self.changes = 0  # the number of additions and removals of rows since it was opened
        self._snapshots: set[Snapshot] = set()
        self._replaced: list[tuple[Path, set[Snapshot]]] = []  # replaced files with their readers
        self._readers = threading.Lock()  # snapshots are closed in other threads
        try:
            with system_errors(folder):
                self.write_manifest()  # the existing one may be older than a crash
        except BaseException:
            self.close()
            raise

    def write_manifest(self) -> None:
        """Writes the list of parts, for engines that cannot read the catalog."""
        path = self.folder / MANIFEST
        text = catalog.manifest(self.parts())
        if not path.exists() or path.read_bytes() != text.encode():
            files.write_text(path, text)

    def revive(self) -> bool:
        """Reopens the database if DuckDB has invalidated it, for example because the disk was full during a checkpoint.
        Committed data remains. Not possible while there are snapshots. Returns whether the store is usable."""
        try:
            self.connection.execute("SELECT 1").fetchall()
            return True
        except (duckdb.FatalException, duckdb.ConnectionException):
            with self._readers:
                if self._snapshots:
                    return False
        self.connection.close()  # first: a process can open a file only once
        super().__init__(self.folder, open_database(self.folder, 0.0))
        self._replaced = []
        self.changes += 1
        self.write_manifest()
        return True

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with transaction(self.connection):
                yield
        finally:
            self._parts = self._hot = None

    # -- writing facts ------------------------------------------------------------------------------------------

    def append(self, *batches: Iterable[tuple[Any, ...]], producer: str = "", sequence: int = -1) -> bool:
        """Stores records in one transaction; each iterable has records of one kind.

        A batch with a producer and its sequence number counts only once. Returns whether the batch was new.
        """
        return self.append_tables(tables_of(*batches), producer=producer, sequence=sequence)

    def append_tables(self, tables: Mapping[str, pa.Table], *, producer: str = "", sequence: int = -1) -> bool:
        """Stores Arrow tables by kind, like `append`."""
        with self._transaction():
            if producer:
                if sequence <= catalog.mark_of(self.connection, producer):
                    return False
                self.connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", [producer, sequence])
            for kind, table in tables.items():
                try:
                    self._append_rows(SCHEMAS[kind], table)
                except (duckdb.DataError, duckdb.ConstraintException, duckdb.BinderException) as error:
                    raise refused_batch(kind, error) from None
        return True

    def _append_rows(self, schema: Schema, table: pa.Table) -> None:
        self.changes += 1
        # Tables of older writers lack newer columns, which are nullable. Other missing columns are refused.
        present = set(table.column_names)
        columns = ", ".join(name for name in schema.column_names if name in present)
        time_column = time_column_of(schema)
        # No kind has this name, so it hides no view of a reader. A rollback removes it.
        self.connection.register("incoming_rows", table)
        whole = single_partition(schema, table)
        partitions = self._partitions(schema) if whole is None else [whole]
        if len(partitions) > MAX_PARTITIONS_PER_BATCH:
            raise StoreError(
                f"A batch of {schema.name} records spans {len(partitions)} partitions "
                f"(limit {MAX_PARTITIONS_PER_BATCH}): its clock is wrong, or it must be sent in pieces."
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
        """The partitions of the batch. Rows with invalid times are left out and counted by reason."""
        time_column = time_column_of(schema)
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
        """The number of rejected rows, by kind and reason."""
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

    # -- sealing ------------------------------------------------------------------------------------------------

    def seal(self, before_ms: int | None = None) -> list[Part]:
        """Turns hot tables whose time ends by `before_ms` (None: all of them) into Parquet parts."""
        ended = [
            table
            for table in self.hot_tables()
            if before_ms is None or table.from_ms + SCHEMAS[table.kind].partition_ms <= before_ms
        ]
        sealed = []
        for begin in range(0, len(ended), SEALED_TOGETHER):
            sealed += self._seal(ended[begin : begin + SEALED_TOGETHER])
        if ended:
            self.write_manifest()
        return sealed

    def _seal(self, tables: list[HotTable]) -> list[Part]:
        """Writes parts from hot tables. Then lists the parts and drops the tables in one transaction."""
        parts = []
        for table in tables:
            schema = SCHEMAS[table.kind]
            query = self.sealed_query(schema, table.from_ms)
            to_ms = table.from_ms + schema.partition_ms
            parts.append(self._write_part(schema, table.from_ms, to_ms, query, self.stamp(table)))
        with self._transaction():
            catalog.list_parts(self.connection, [part for part in parts if part.row_count], self.folder)
            for table in tables:
                self.connection.execute(f"DROP TABLE {table.name}")
                self.connection.execute("DELETE FROM hot WHERE name = ?", [table.name])
        for part in parts:
            if not part.row_count:
                (self.folder / part.path).unlink()
        return [part for part in parts if part.row_count]

    def replace(self, new_parts: Iterable[NewPart]) -> None:
        """Writes derived parts. Then replaces the listed parts of the same time in one transaction."""
        new_parts = list(new_parts)
        read_again = [f"new_{new.kind}" for new in new_parts if any(f"new_{new.kind}" in p.query for p in new_parts)]
        written = []
        for new in new_parts:
            part = self._write_part(SCHEMAS[new.kind], new.from_ms, new.to_ms, new.query, uuid.uuid4().hex[:12])
            written.append(part._replace(digest=new.digest))
            if f"new_{new.kind}" in read_again:
                path = quoted(self.folder / part.path)
                self.connection.execute(f"CREATE OR REPLACE TEMP VIEW new_{new.kind} AS FROM read_parquet('{path}')")
        old = [
            part
            for new in new_parts
            for part in self.parts(new.kind)
            if part.from_ms < new.to_ms and part.to_ms > new.from_ms
        ]
        with self._transaction():
            catalog.unlist_parts(self.connection, old)
            catalog.list_parts(self.connection, written, self.folder)
        for view in read_again:
            self.connection.execute(f"DROP VIEW {view}")
        self._remove(old)

    def relist(self, old: Part, now: Part) -> None:
        """Corrects the catalog entry of a part."""
        self.changes += 1
        with self._transaction():
            catalog.unlist_parts(self.connection, [old])
            catalog.list_parts(self.connection, [now], self.folder)
        self.write_manifest()

    def set_digests(self, digest_of: Mapping[Part, str]) -> None:
        """Records new digests of derived parts, whose rows do not change."""
        if not digest_of:
            return
        self.changes += 1
        with self._transaction():
            for part, digest in digest_of.items():
                self.connection.execute("UPDATE parts SET digest = ? WHERE path = ?", [digest, part.path])
        self.write_manifest()

    def drop_parts(self, old: Iterable[Part]) -> None:
        """Removes parts from the store."""
        self.changes += 1
        old = list(old)
        with self._transaction():
            catalog.unlist_parts(self.connection, old)
        self._remove(old)

    def drop_before(self, before_ms: int, kinds: Iterable[str] | None = None) -> int:
        """Drops parts and hot tables (of these kinds; None: all) that end at or before a time. Returns their number."""
        self.changes += 1
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
        path = part_path(schema, from_ms, stamp)
        return write_part(self.connection, self.folder, schema, (from_ms, to_ms), path, query)

    def _remove(self, old: Iterable[Part]) -> None:
        self.write_manifest()  # first, so that it never lists a removed file
        with self._readers:
            self._replaced += [(self.folder / part.path, set(self._snapshots)) for part in old]
        self._remove_unread()

    # -- reading while writing ----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A snapshot of the store, which can be read in another thread. The caller closes it."""
        taken = Snapshot(self)
        with self._readers:
            self._snapshots.add(taken)
        return taken

    def interrupt_readers(self) -> None:
        """Interrupts the queries of snapshots, which then raise an error."""
        with self._readers:
            for snapshot in self._snapshots:
                snapshot.connection.interrupt()

    def _release(self, snapshot: Snapshot) -> None:
        with self._readers:
            self._snapshots.discard(snapshot)
            for _, readers in self._replaced:
                readers.discard(snapshot)
        self._remove_unread()

    def _remove_unread(self) -> None:
        """Removes replaced files without readers. If the process ends earlier, the next one removes them as
        unlisted."""
        with self._readers:
            gone = [path for path, readers in self._replaced if not readers]
            self._replaced = [(path, readers) for path, readers in self._replaced if readers]
        for path in gone:
            path.unlink(missing_ok=True)

    def set_meta(self, name: str, value: str) -> None:
        """Stores a small text with the data."""
        if self._meta.get(name) != value:
            if (
                name in self._meta
            ):  # takes a third of the time of INSERT OR REPLACE, which also leaves a kilobyte behind
                self.connection.execute("UPDATE meta SET value = ? WHERE name = ?", [value, name])
            else:
                self.connection.execute("INSERT INTO meta VALUES (?, ?)", [name, value])
            self._meta[name] = value
