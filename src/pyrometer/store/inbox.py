"""What was acknowledged and is not in the tables yet: one small file each, so that a crash loses none of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from pyrometer.store import files

HALF, REFUSED, TOGETHER = ".tmp", ".refused", ".together"
ABANDONED_S = 3600.0  # a file takes milliseconds to write


class Inbox:
    """A folder of a data folder. Whatever is in it is to be read again after a crash.

    A `shared` one is filled by other processes, too: what is half written may be about to be finished by them.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.folder = folder
        self._shared = shared
        # later than all that is there: names sort in the order of their coming
        self._numbers = count(time.time_ns())

    def put(self, body: bytes, suffix: str = "") -> Path:
        """Keeps a body; after this it is on disk. The suffix says what it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self._next_path(suffix)
        temporary = final.with_suffix(HALF)
        try:
            temporary.write_bytes(body)
            files.publish(temporary, final)
        except OSError:  # a disk that is full is not filled with halves
            temporary.unlink(missing_ok=True)
            raise
        return final

    def put_together(self, bodies: list[tuple[str, bytes]], suffix: str) -> Path:
        """Keeps bodies, each with a suffix of its own, in one file: forcing many to disk takes as long as one."""
        return self.put(_TOGETHER.encode(bodies), suffix + TOGETHER)

    def _next_path(self, suffix: str) -> Path:
        return self.folder / f"{next(self._numbers):020d}{suffix}"

    def paths(self) -> list[Path]:
        """What is still there, the oldest first. What a crash left half written was never acknowledged, and goes."""
        found = []
        for path in sorted(self.folder.glob("*")):
            if path.suffix == HALF:
                if not self._shared or time.time() - _changed_s(path) > ABANDONED_S:
                    path.unlink(missing_ok=True)
            elif path.suffix != REFUSED and not path.is_dir():
                found.append(path)
        return found

    def bodies(self, path: Path) -> list[tuple[str, bytes]]:
        """What is in a file: what it is called, and the body. One that was kept alone is called as its file."""
        content = path.read_bytes()
        if path.suffix != TOGETHER:
            return [(path.name, content)]
        return [(path.name.partition(".")[0] + suffix, body) for suffix, body in _EACH.decode(content)]

    def left(self) -> Iterator[tuple[Path, bytes]]:
        """What is still there, with its body."""
        for path in self.paths():
            yield path, path.read_bytes()

    def refuse(self, path: Path) -> None:
        """Puts aside what cannot be read: it is not tried again, and can be looked at."""
        path.rename(path.with_name(path.name + REFUSED))

    def drop(self, paths: Iterable[Path]) -> None:
        """Forgets bodies whose records are stored."""
        for path in paths:
            path.unlink(missing_ok=True)


_TOGETHER, _EACH = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[tuple[str, bytes]])


def _changed_s(path: Path) -> float:
    """When a file was last written to; now, if it has just been finished."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def of_training(folder: Path) -> Inbox:
    """What training processes said to a data folder: NAME.SIGNAL.json.gz that `pyrometer run` put there, and
    NAME.SIGNAL.http.FORM that was sent to its server; what was sent at the same time is in NAME.http.together."""
    return Inbox(folder / "inbox" / "otlp", shared=True)
