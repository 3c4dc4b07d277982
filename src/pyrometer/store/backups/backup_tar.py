"""Backups as tar streams, written and read chunk by chunk: a member is never in memory as a whole."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO

from pyrometer.store.backups.backup_members import BackupError, BackupMember
from pyrometer.store.grammar import shown
from pyrometer.store.part_store import LOCAL_CHUNK_BYTES

HEADERS = 4 * LOCAL_CHUNK_BYTES  # maximum bytes between two members: headers and read-ahead
_END = b"\0" * (2 * tarfile.BLOCKSIZE)
_BROKEN = "The stream of the backup broke off: what is there is as it was. Take it again."


def packed(members: Iterable[BackupMember], *, last: bool = True) -> Iterator[bytes]:
    """A tar stream of the members. `last` adds the end of the archive."""
    for member in members:
        about = tarfile.TarInfo(member.path)
        about.size, about.mode = member.size, 0o600
        yield about.tobuf(tarfile.PAX_FORMAT)
        yield from member.chunks
        yield b"\0" * (-member.size % tarfile.BLOCKSIZE)
    if last:
        yield _END


def unpacked(stream: Iterable[bytes]) -> Iterator[BackupMember]:
    """The members of a tar stream, which must be ordinary files. Each must be read before the next."""
    pieces = _File(stream)
    try:
        with tarfile.open(fileobj=pieces, mode="r|", bufsize=LOCAL_CHUNK_BYTES) as tar:
            for about in tar:
                if not about.isreg() or about.issparse():
                    raise BackupError(f"{shown(about.name)} in the stream of a backup is not an ordinary file.")
                content = tar.extractfile(about)
                assert content is not None  # noqa: S101 - a regular file has content
                pieces.allowed = pieces.taken + about.size + HEADERS
                yield BackupMember(about.name, about.size, _pieces(content))
    except (tarfile.TarError, ValueError, OverflowError):
        raise BackupError(_BROKEN) from None


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    try:
        while chunk := content.read(LOCAL_CHUNK_BYTES):
            yield chunk
    except (tarfile.TarError, ValueError, OverflowError):
        raise BackupError(_BROKEN) from None


class _File(io.RawIOBase):
    """Chunks of bytes as a file that is read once. It returns at most `allowed` bytes, because headers are read as a
    whole and could have any length."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = b""
        self.taken, self.allowed = 0, HEADERS

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        if self.taken >= self.allowed:
            raise tarfile.ReadError("more than was announced")
        gathered = [self._left]
        length = len(self._left)
        while length < size and (piece := next(self._pieces, None)) is not None:
            gathered.append(piece)
            length += len(piece)
        everything = b"".join(gathered)
        self._left = everything[size:]
        self.taken += min(size, len(everything))
        return everything[:size]
