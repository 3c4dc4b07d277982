"""One cluster of a lake, readable like a store: the parts that its manifest lists, over a connection of its own.

Files in a folder are read in place. Files in a bucket are first downloaded into a cache folder: DuckDB reads object
stores only with an extension that it would have to download.
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
from pyrometer.store.lake.storage import LakeError, LakeStorage
from pyrometer.store.opening import connect
from pyrometer.store.reader import StoreReader

MAX_DOWNLOADS = 8
DIGITS = 12  # of the digest of a bucket's URL, which names its folder in the cache
IN_USE_S = 600.0  # files that were used so recently may still be read, and are kept


class Cache(NamedTuple):
    """A folder for files of buckets. Files never change, so none is stale. The least recently used are removed
    first."""

    folder: Path
    max_bytes: int

    def of(self, storage: LakeStorage, under: str) -> Path:
        """The folder with the files of one cluster of a bucket."""
        return self.folder.absolute() / hashlib.sha256(storage.url.encode()).hexdigest()[:DIGITS] / under

    def paths(self, storage: LakeStorage, under: str, wanted: Sequence[tuple[str, int]]) -> list[Path]:
        """The local paths of files of a bucket, given by path and bytes. Missing files are downloaded."""
        root = self.of(storage, under)
        found = [root / path for path, _ in wanted]
        missing = [
            (path, size, files.inside(root, path))
            for (path, size), into in zip(wanted, found, strict=True)
            if not _is_cached(into, size)
        ]
        if missing:
            with ThreadPoolExecutor(MAX_DOWNLOADS) as threads:
                list(threads.map(lambda one: _download(storage, under, *one), missing))
            self._make_room()
        return found

    def _make_room(self) -> None:
        """Removes the least recently used files until the rest is small enough."""
        found = []
        for path in self.folder.glob(f"{'[0-9a-f]' * DIGITS}/**/*"):
            with suppress(OSError):  # another process may have removed it
                if path.is_file() and not path.is_symlink():
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
        total_bytes = sum(size for _, size, _ in found)
        for used_s, size, path in sorted(found):
            if total_bytes <= self.max_bytes or used_s > time.time() - IN_USE_S:
                return
            path.unlink(missing_ok=True)
            total_bytes -= size


def _is_cached(path: Path, size: int) -> bool:
    """Whether a file is in the cache. Marks it as used."""
    try:
        os.utime(path)
        return path.stat().st_size == size
    except OSError:
        return False


def _download(storage: LakeStorage, under: str, path: str, size: int, into: Path) -> None:
    storage.download(f"{under}/{path}", into)
    if into.stat().st_size != size:
        into.unlink(missing_ok=True)
        raise LakeError(f"{under}/{path} of the lake {storage.url} is not what its manifest says: copy it again.")


class LakeReader(StoreReader):
    """The facts of one cluster, as its manifest lists them. It has no hot tables."""

    def __init__(self, storage: LakeStorage, manifest: Manifest, cache: Cache, *, threads: int | None = None) -> None:
        self.manifest = manifest
        self._storage, self._cache = storage, cache
        self._under = folder_name(manifest.cluster)
        folder = (cache.folder if storage.folder is None else storage.folder) / self._under
        if storage.folder is not None and not folder.is_dir():
            raise LakeError(f"{folder} cannot be seen here: there is no such folder.")
        connection = connect(
            None, [folder.absolute() if storage.folder is not None else cache.of(storage, self._under)]
        )
        if threads is not None:
            connection.execute(f"SET threads = {int(threads)}")
        super().__init__(folder, connection, manifest.meta)
        self._parts, self._hot = list(manifest.parts), []

    def fetch_beside(self) -> None:
        """Downloads the files other than parts, if they are in a bucket."""
        if self._storage.folder is None:
            paths = self._cache.paths(self._storage, self._under, list(self.manifest.beside.items()))
            self.folder = paths[0].parents[1] if paths else self.folder

    def _paths(self, parts: Iterable[Part]) -> list[Path]:
        listed = list(parts)
        if self._storage.folder is None:
            return self._cache.paths(self._storage, self._under, [(part.path, part.bytes) for part in listed])
        return super()._paths(listed)
