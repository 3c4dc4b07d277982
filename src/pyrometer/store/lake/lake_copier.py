"""Copies a data folder into a lake: first the files, then the manifest that lists them. Then old files are removed.

A crash at any moment leaves the old manifest or the new one, with every file that it lists. The next copy finds files
that no manifest lists, and lists them or removes them later.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from pyrometer.store.catalog import HotTable, Part
from pyrometer.store.lake.manifest import MANIFEST, Manifest, folder_name, manifest_of
from pyrometer.store.lake.storage import LakeError, LakeStorage
from pyrometer.store.parts import write_part
from pyrometer.store.reader import StoreReader

GRACE_MS = 6 * MS_PER_HOUR  # how long a reader of a manifest has to read the files that it lists
STAGING = "lake"  # in the data folder: files that are written only for the lake


class ManifestHeader(NamedTuple):
    """The fields of a manifest that do not describe its parts."""

    cluster: str
    source: str
    from_ms: int
    end_ms: int
    meta: Mapping[str, str]
    settings: Mapping[str, Any]
    beside: Sequence[str] = ()  # other files of the data folder to copy, in this order


class CopyResult(NamedTuple):
    """The amount that a copy wrote and removed."""

    files: int = 0
    bytes: int = 0
    removed: int = 0


class LakeCopier:
    """Copies one data folder into a lake repeatedly. It remembers the files in the lake, so it lists them only once."""

    def __init__(self, storage: LakeStorage) -> None:
        self.storage = storage
        self._sizes: dict[str, int] | None = None
        self._manifest: Manifest | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stops a copy that is running in another thread. The next copy finds the files that it has written."""
        self._stopped.set()

    def copy(self, reading: StoreReader, header: ManifestHeader, *, now_ms: int) -> CopyResult:
        """Brings the lake up to date. Of the hot tables, only those of objects are copied, which are small: without
        them the newest hours would have no names."""
        try:
            return self._copy(reading, header, now_ms)
        except BaseException:
            self._sizes = self._manifest = None  # the lake may have changed: list it again
            raise

    def _copy(self, reading: StoreReader, header: ManifestHeader, now_ms: int) -> CopyResult:
        under = folder_name(header.cluster)
        if self._sizes is None:
            self._manifest = manifest_of(self.storage, header.cluster)
            self._sizes = self.storage.sizes(under)
        sizes = self._sizes
        if self._manifest is not None and self._manifest.source != header.source:
            raise LakeError(
                f"{header.cluster!r} of the lake {self.storage.url} is copied from another data folder. Name this "
                f"cluster with the setting `cluster`; if that folder is gone for good, remove {under}/{MANIFEST} there."
            )
        with _staging(reading.folder) as staging:
            hot = [self._hot_part(reading, table, staging) for table in _objects(reading)]
            parts = (*reading.parts(), *(part for part in hot if part.row_count))
            beside = {path: (reading.folder / path).stat().st_size for path in header.beside}
            sources = {part.path: staging / part.path for part in hot}
            missing = [
                (path, size)
                for path, size in [*((part.path, part.bytes) for part in parts), *beside.items()]
                if sizes.get(path) != size
            ]
            for path, size in missing:
                if self._stopped.is_set():
                    raise LakeError(f"Copying into the lake {self.storage.url} was stopped.")
                self.storage.put(f"{under}/{path}", sources.get(path, reading.folder / path))
                sizes[path] = size
        removed = self._publish(under, header, parts, beside, now_ms)
        return CopyResult(len(missing), sum(size for _, size in missing), removed)

    def _publish(
        self, under: str, header: ManifestHeader, parts: tuple[Part, ...], beside: dict[str, int], now_ms: int
    ) -> int:
        """Replaces the manifest, and removes files that no manifest has listed for a while. Returns their number."""
        assert self._sizes is not None  # noqa: S101 - `_copy` has listed it
        since = self._manifest.left if self._manifest else {}
        manifest = Manifest(
            cluster=header.cluster,
            source=header.source,
            written_ms=now_ms,
            from_ms=header.from_ms,
            end_ms=header.end_ms,
            parts=parts,
            beside=beside,
            meta=dict(header.meta),
            settings=dict(header.settings),
            left={},
        )
        named = {*manifest.named, MANIFEST}
        unnamed = {path: since.get(path, now_ms) for path in sorted(self._sizes) if path not in named}
        over = [path for path, since_ms in unnamed.items() if since_ms <= now_ms - GRACE_MS]
        manifest = manifest._replace(left=unnamed)
        if not manifest.says_the_same(self._manifest):
            self.storage.put(f"{under}/{MANIFEST}", manifest.text().encode())
            self._manifest = manifest
        for path in over:
            self.storage.remove(f"{under}/{path}")
            del self._sizes[path]
        return len(over)

    def _hot_part(self, reading: StoreReader, table: HotTable, staging: Path) -> Part:
        """The rows of a hot table as a part. It is written only if rows were added since the last copy."""
        schema, stamp = SCHEMAS[table.kind], reading.stamp(table)
        start = datetime.fromtimestamp(table.from_ms / 1000, UTC)
        path = f"hot/{table.kind}/{start:%Y-%m-%d}/{stamp}.parquet"
        known = {part.path: part for part in self._manifest.parts} if self._manifest else {}
        if path in known:
            return known[path]
        to_ms = table.from_ms + schema.partition_ms
        query = reading.sealed_query(schema, table.from_ms)
        return write_part(reading.connection, staging, schema, (table.from_ms, to_ms), path, query)


def _objects(reading: StoreReader) -> list[HotTable]:
    return [table for table in reading.hot_tables() if SCHEMAS[table.kind].partition_ms == MS_PER_DAY]


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder for files that are written only for the lake. After a crash, the next copy clears it."""
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
