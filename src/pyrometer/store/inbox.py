"""The inbox: acknowledged bodies that are not in the tables yet, one small file each, so a crash loses none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from pyrometer.store import files

HALF, REFUSED, TOGETHER = ".tmp", ".refused", ".together"
ABANDONED_S = 3600.0  # writing a file takes milliseconds


class Inbox:
    """A folder in a data folder. Its files are read again after a crash.

    Other processes write to a `shared` inbox, so an incomplete file there may still be completed.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.folder = folder
        self._shared = shared
        # later than existing files: names sort in the order of arrival
        self._numbers = count(time.time_ns())

    def put(self, body: bytes, suffix: str = "") -> Path:
        """Stores a body durably. The suffix tells its type."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self._next_path(suffix)
        temporary = final.with_suffix(HALF)
        try:
            temporary.write_bytes(body)
            files.publish(temporary, final)
        except OSError:  # do not fill a full disk with incomplete files
            temporary.unlink(missing_ok=True)
            raise
        return final

    def put_together(self, bodies: list[tuple[str, bytes]], suffix: str) -> Path:
        """Stores bodies, each with its own suffix, in one file: a sync takes as long for many as for one."""
        return self.put(_TOGETHER.encode(bodies), suffix + TOGETHER)

    def _next_path(self, suffix: str) -> Path:
        return self.folder / f"{next(self._numbers):020d}{suffix}"

    def paths(self) -> list[Path]:
        """The remaining files, oldest first. Incomplete files were never acknowledged and are removed."""
        found = []
        for path in sorted(self.folder.glob("*")):
            if path.suffix == HALF:
                if not self._shared or time.time() - _changed_s(path) > ABANDONED_S:
                    path.unlink(missing_ok=True)
            elif path.suffix != REFUSED and not path.is_dir():
                found.append(path)
        return found

    def bodies(self, path: Path) -> list[tuple[str, bytes]]:
        """The names and bodies in a file. A body that has its own file is named after it."""
        content = path.read_bytes()
        if path.suffix != TOGETHER:
            return [(path.name, content)]
        return [(path.name.partition(".")[0] + suffix, body) for suffix, body in _EACH.decode(content)]

    def left(self) -> Iterator[tuple[Path, bytes]]:
        """The remaining files with their contents."""
        for path in self.paths():
            yield path, path.read_bytes()

    def refuse(self, path: Path) -> None:
        """Sets aside a file that cannot be read. It is not tried again and can be inspected."""
        path.rename(path.with_name(path.name + REFUSED))

    def drop(self, paths: Iterable[Path]) -> None:
        """Removes bodies whose records are stored."""
        for path in paths:
            path.unlink(missing_ok=True)


_TOGETHER, _EACH = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[tuple[str, bytes]])


def _changed_s(path: Path) -> float:
    """When a file was last written; now, if it has just been completed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def of_training(folder: Path) -> Inbox:
    """The inbox for data of training processes: NAME.SIGNAL.json.gz from `pyrometer run`, NAME.SIGNAL.http.FORM from
    requests to the server, and NAME.http.together for requests of the same time."""
    return Inbox(folder / "inbox" / "otlp", shared=True)
