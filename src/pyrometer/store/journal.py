"""Bodies that were acknowledged and are not in the tables yet, one behind the other in files.

A file for each body takes three times the time: it has to be made, renamed and forgotten, and its folder be synced.
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
_HEAD = struct.Struct("<II")  # length and checksum of the body behind it


class Journal(Inbox):
    """A folder of a data folder. Whatever is in it is to be read again after a crash."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder  # of the file that bodies are put in, while there is one
        self._descriptor = -1

    def put(self, body: bytes, suffix: str = SUFFIX) -> Path:
        """Keeps a body; after this it is on disk. Says in which file."""
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
            self.turn()  # a body behind half of one would not be found
            raise
        return self._path

    def turn(self) -> None:
        """The next body begins another file; those that there are can be dropped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def left_bodies(self) -> Iterator[tuple[Path, list[bytes]]]:
        """The files that are still there, with their bodies. One that a crash left half written ends the last file: it
        was never acknowledged. A file that is harmed otherwise is put aside as well, whatever can be read of it. A file
        of an older version is one body."""
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
    """The bodies of a file; how many of them are not what was written; how many bytes at its end are no body."""
    bodies, harmed, at = [], 0, 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        end = at + _HEAD.size + length
        if not length or end > len(content):  # zeros are what a crash leaves of what was not written
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
