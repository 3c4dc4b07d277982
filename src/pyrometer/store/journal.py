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
from pyrometer.store.inbox import Inbox

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
        was never acknowledged. A file of an older version is one body."""
        for path, content in self.left():
            yield path, list(_bodies(content)) if path.suffix == SUFFIX else [content]


def _bodies(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        body = content[at : at + length]
        if not length or zlib.crc32(body) != checksum:  # zeros are what a crash leaves of what was not written
            return
        yield body
        at += length
