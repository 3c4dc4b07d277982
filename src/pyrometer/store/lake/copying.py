"""Copies a data folder into a lake: first the files, then the manifest that names them, then what none names may go.

A crash at any moment leaves the old manifest or the new one, and every file that it names. What was copied and is named
by nothing is met again by the next copy, which names it or removes it in time.
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
from pyrometer.store.lake.place import LakeError, Place
from pyrometer.store.parts import write_part
from pyrometer.store.reading import Reading

GRACE_MS = 6 * MS_PER_HOUR  # whoever has read a manifest has so long to read what it names
STAGING = "lake"  # in the data folder: what is written for the lake alone


class About(NamedTuple):
    """What a manifest says beside its parts."""

    cluster: str
    source: str
    from_ms: int
    end_ms: int
    meta: Mapping[str, str]
    settings: Mapping[str, Any]
    beside: Sequence[str] = ()  # files of the data folder that are copied too, in this order


class Copied(NamedTuple):
    """What a copy did."""

    files: int = 0
    bytes: int = 0
    removed: int = 0


class Copier:
    """Copies one data folder into a lake, again and again. It knows what is there, so that nothing is listed twice."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._there: dict[str, int] | None = None
        self._before: Manifest | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends a copy that is under way in another thread: what it has copied is met again by the next one."""
        self._stopped.set()

    def copy(self, reading: Reading, about: About, *, now_ms: int) -> Copied:
        """Brings the lake up to what a reading holds. Of what is hot, objects are copied, which are few: without them
        the newest hours would have no names."""
        try:
            return self._copy(reading, about, now_ms)
        except BaseException:
            self._there = self._before = None  # whatever came of it: look again
            raise

    def _copy(self, reading: Reading, about: About, now_ms: int) -> Copied:
        under = folder_name(about.cluster)
        if self._there is None:
            self._before = manifest_of(self.place, about.cluster)
            self._there = self.place.sizes(under)
        there = self._there
        if self._before is not None and self._before.source != about.source:
            raise LakeError(
                f"{about.cluster!r} of the lake {self.place.url} is copied from another data folder. Name this cluster "
                f"with the setting `cluster`; if that folder is gone for good, remove {under}/{MANIFEST} there."
            )
        with _staging(reading.folder) as staging:
            hot = [self._hot_part(reading, table, staging) for table in _objects(reading)]
            parts = (*reading.parts(), *(part for part in hot if part.row_count))
            beside = {path: (reading.folder / path).stat().st_size for path in about.beside}
            sources = {part.path: staging / part.path for part in hot}
            missing = [
                (path, size)
                for path, size in [*((part.path, part.bytes) for part in parts), *beside.items()]
                if there.get(path) != size
            ]
            for path, size in missing:
                if self._stopped.is_set():
                    raise LakeError(f"Copying into the lake {self.place.url} was stopped.")
                self.place.put(f"{under}/{path}", sources.get(path, reading.folder / path))
                there[path] = size
        removed = self._name_them(under, about, parts, beside, now_ms)
        return Copied(len(missing), sum(size for _, size in missing), removed)

    def _name_them(self, under: str, about: About, parts: tuple[Part, ...], beside: dict[str, int], now_ms: int) -> int:
        """Replaces the manifest, and removes what none has named for long enough; says how much that was."""
        assert self._there is not None  # noqa: S101 - it was listed before
        since = self._before.left if self._before else {}
        manifest = Manifest(
            about.cluster, about.source, now_ms, about.from_ms, about.end_ms, parts, beside, dict(about.meta),
            dict(about.settings), {},
        )  # fmt: skip
        named = {*manifest.named, MANIFEST}
        unnamed = {path: since.get(path, now_ms) for path in sorted(self._there) if path not in named}
        over = [path for path, since_ms in unnamed.items() if since_ms <= now_ms - GRACE_MS]
        manifest = manifest._replace(left=unnamed)
        if not manifest.says_the_same(self._before):
            self.place.put(f"{under}/{MANIFEST}", manifest.text().encode())
            self._before = manifest
        for path in over:
            self.place.remove(f"{under}/{path}")
            del self._there[path]
        return len(over)

    def _hot_part(self, reading: Reading, table: HotTable, staging: Path) -> Part:
        """The rows of a hot table as a part, written anew only when rows were added since the last copy."""
        schema, stamp = SCHEMAS[table.kind], reading.stamp(table)
        start = datetime.fromtimestamp(table.from_ms / 1000, UTC)
        path = f"hot/{table.kind}/{start:%Y-%m-%d}/{stamp}.parquet"
        known = {part.path: part for part in self._before.parts} if self._before else {}
        if path in known:
            return known[path]
        to_ms = table.from_ms + schema.partition_ms
        query = reading.sealed_query(schema, table.from_ms)
        return write_part(reading.connection, staging, schema, (table.from_ms, to_ms), path, query)


def _objects(reading: Reading) -> list[HotTable]:
    return [table for table in reading.hot_tables() if SCHEMAS[table.kind].partition_ms == MS_PER_DAY]


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder for what is written for the lake alone; a crash leaves it to the next copy."""
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
