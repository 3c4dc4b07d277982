"""One cluster of a lake as a reading: the parts that its manifest names, over a connection of its own.

Of a folder, files are read where they lie. Of a bucket they are fetched into a cache folder first, which DuckDB reads:
its own way to object stores is an extension that it would have to download.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyrometer.store import files
from pyrometer.store.catalog import Part
from pyrometer.store.lake.manifest import Manifest, folder_name
from pyrometer.store.lake.place import LakeError, Place
from pyrometer.store.opening import connect
from pyrometer.store.reading import Reading

FETCHED_AT_ONCE = 8
DIGITS = 12  # of the digest of a bucket's address, which its folder in the cache is called after
IN_USE_S = 600.0  # what was asked for so lately may still be read by somebody, and stays


class Cache(NamedTuple):
    """A folder for files of buckets, least lately used first to go. Names are versions: nothing in it is ever stale."""

    folder: Path
    most_bytes: int

    def of(self, place: Place, under: str) -> Path:
        """Where the files of one cluster of a bucket are."""
        return self.folder.absolute() / hashlib.sha256(place.url.encode()).hexdigest()[:DIGITS] / under

    def paths(self, place: Place, under: str, wanted: Sequence[tuple[str, int]]) -> list[Path]:
        """Where files of a bucket are, of whom path and bytes are known; what is missing is fetched."""
        root = self.of(place, under)
        found = [root / path for path, _ in wanted]
        missing = [
            (path, size, files.inside(root, path))
            for (path, size), into in zip(wanted, found, strict=True)
            if not _is_there(into, size)
        ]
        if missing:
            with ThreadPoolExecutor(FETCHED_AT_ONCE) as threads:
                list(threads.map(lambda one: _fetch(place, under, *one), missing))
            self._make_room()
        return found

    def _make_room(self) -> None:
        """Removes what was not used for longest, until the rest is small enough."""
        found = []
        for path in self.folder.glob(f"{'[0-9a-f]' * DIGITS}/**/*"):
            with suppress(OSError):  # another process made room, too
                if path.is_file() and not path.is_symlink():
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
        whole = sum(size for _, size, _ in found)
        for used_s, size, path in sorted(found):
            if whole <= self.most_bytes or used_s > time.time() - IN_USE_S:
                return
            path.unlink(missing_ok=True)
            whole -= size


def _is_there(path: Path, size: int) -> bool:
    """Whether a file was fetched before; it is in use again."""
    try:
        os.utime(path)
        return path.stat().st_size == size
    except OSError:
        return False


def _fetch(place: Place, under: str, path: str, size: int, into: Path) -> None:
    place.fetch(f"{under}/{path}", into)
    if into.stat().st_size != size:
        into.unlink(missing_ok=True)
        raise LakeError(f"{under}/{path} of the lake {place.url} is not what its manifest says: copy it again.")


class LakeReading(Reading):
    """The facts of one cluster, as a manifest names them. Nothing in it is hot."""

    def __init__(self, place: Place, manifest: Manifest, cache: Cache, *, threads: int | None = None) -> None:
        self.manifest = manifest
        self._place, self._cache = place, cache
        self._under = folder_name(manifest.cluster)
        folder = (cache.folder if place.folder is None else place.folder) / self._under
        if place.folder is not None and not folder.is_dir():
            raise LakeError(f"{folder} cannot be seen here: there is no such folder.")
        connection = connect(None, [folder.absolute() if place.folder is not None else cache.of(place, self._under)])
        if threads is not None:
            connection.execute(f"SET threads = {int(threads)}")
        super().__init__(folder, connection, manifest.meta)
        self._parts, self._hot = list(manifest.parts), []

    def fetch_beside(self) -> None:
        """Brings what lies beside parts here, where it is not."""
        if self._place.folder is None:
            paths = self._cache.paths(self._place, self._under, list(self.manifest.beside.items()))
            self.folder = paths[0].parents[1] if paths else self.folder

    def _paths(self, parts: Iterable[Part]) -> list[Path]:
        listed = list(parts)
        if self._place.folder is None:
            return self._cache.paths(self._place, self._under, [(part.path, part.bytes) for part in listed])
        return super()._paths(listed)
