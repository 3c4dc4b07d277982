"""Members of a backup as one stream, and back: tar, written and read piece by piece, never whole in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO

from pyrometer.store.backup import CHUNK, BackupError, Member

_END = b"\0" * (2 * tarfile.BLOCKSIZE)
_BROKEN = "The stream of the backup broke off: what is there is as it was. Take it again."


def packed(members: Iterable[Member], *, last: bool = True) -> Iterator[bytes]:
    """A tar of all members; its end only after the last ones."""
    for member in members:
        about = tarfile.TarInfo(member.path)
        about.size, about.mode = member.size, 0o600
        yield about.tobuf(tarfile.PAX_FORMAT)
        yield from member.chunks
        yield b"\0" * (-member.size % tarfile.BLOCKSIZE)
    if last:
        yield _END


def unpacked(stream: Iterable[bytes]) -> Iterator[Member]:
    """The members of a tar; each is read before the next one comes."""
    try:
        with tarfile.open(fileobj=_File(stream), mode="r|", bufsize=CHUNK) as tar:
            for about in tar:
                content = tar.extractfile(about) if about.isfile() else None
                if content is None:
                    raise BackupError(f"{about.name!r} in the stream of a backup is no file.")
                yield Member(about.name, about.size, _pieces(content))
    except tarfile.TarError:
        raise BackupError(_BROKEN) from None


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    try:
        while chunk := content.read(CHUNK):
            yield chunk
    except tarfile.TarError:
        raise BackupError(_BROKEN) from None


class _File(io.RawIOBase):
    """Pieces of bytes as a file that is read once, from the beginning."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """So many bytes, fewer only at the end."""
        gathered = [self._left]
        length = len(self._left)
        while length < size and (piece := next(self._pieces, None)) is not None:
            gathered.append(piece)
            length += len(piece)
        everything = b"".join(gathered)
        self._left = everything[size:]
        return everything[:size]
