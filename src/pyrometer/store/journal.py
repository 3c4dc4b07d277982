"""A journal: acknowledged bodies that are not in the tables yet, appended to files.

One file per body would take three times as long: each has to be created, renamed and removed, and its folder synced.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from pyrometer.store.files import fsync_path
from pyrometer.store.inbox import REFUSED, Inbox

SUFFIX = ".bodies"
_HEAD = struct.Struct("<II")  # length and checksum of the following body


class Journal(Inbox):
    """A folder in a data folder. Its files are read again after a crash."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder  # the file that bodies are appended to, while it is open
        self._descriptor = -1

    def put(self, body: bytes, suffix: str = SUFFIX) -> Path:
        """Stores a body durably and returns the path of its file."""
        try:
            if self._descriptor < 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._path = self._next_path(suffix)
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                fsync_path(self.folder)
            rest = memoryview(_HEAD.pack(len(body), zlib.crc32(body)) + body)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fdatasync(self._descriptor)
        except OSError:
            self.turn()  # a body after an incomplete one would not be found
            raise
        return self._path

    def turn(self) -> None:
        """Closes the file: the next body starts another one, and existing files can be dropped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def left_bodies(self) -> Iterator[tuple[Path, list[bytes]]]:
        """The remaining files with their bodies. An incomplete body at the end of the last file was never acknowledged.
        A file with other damage is also set aside; its readable bodies are returned. A file of an older version is one
        body."""
        left = list(self.left())
        for path, content in left:
            if path.suffix != SUFFIX:
                yield path, [content]
                continue
            bodies, harmed, rest = _bodies(content)
            if harmed or (rest and path != left[-1][0]):
                path.with_name(path.name + REFUSED).write_bytes(content)
            yield path, bodies


def _bodies(content: bytes) -> tuple[list[bytes], int, int]:
    """The bodies of a file, the number of damaged bodies, and the number of bytes after the last body."""
    bodies, harmed, at = [], 0, 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        end = at + _HEAD.size + length
        if not length or end > len(content):  # a crash leaves zeros for bytes that were not written
            break
        body = content[at + _HEAD.size : end]
        if zlib.crc32(body) == checksum:
            bodies.append(body)
        elif end < len(content):
            harmed += 1
        else:
            break
        at = end
    return bodies, harmed, len(content) - at
