"""What was acknowledged and is not in the tables yet: one small file each, so that a crash loses none of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from pyrometer.store import files


class Inbox:
    """A folder of a data folder. Whatever is in it is to be read again after a crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # later than all that is there: names sort in the order of their coming
        self._numbers = count(time.time_ns())

    def put(self, body: bytes) -> Path:
        """Keeps a body; after this it is on disk."""
        self.folder.mkdir(exist_ok=True)
        final = self.folder / f"{next(self._numbers):020d}"
        temporary = final.with_suffix(".tmp")
        temporary.write_bytes(body)
        files.publish(temporary, final)
        return final

    def left(self) -> Iterator[tuple[Path, bytes]]:
        """What is still there, the oldest first. What a crash left half written was never acknowledged, and goes."""
        for path in sorted(self.folder.glob("*")):
            if path.suffix:
                path.unlink()
            else:
                yield path, path.read_bytes()

    def drop(self, paths: Iterable[Path]) -> None:
        """Forgets bodies whose records are stored."""
        for path in paths:
            path.unlink(missing_ok=True)
