"""DuckDB files of other versions: their first block, with a valid checksum."""

from __future__ import annotations

import struct

BLOCK = 4096


def checksum(block: bytes) -> int:
    """The checksum that DuckDB computes."""
    found = 5381
    for (word,) in struct.iter_unpack("<Q", block):
        found ^= (word * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return found


def with_header(
    data: bytes, *, storage: int | None = None, library: str | None = None, flags: int | None = None
) -> bytes:
    """The same file, written by another version."""
    header = bytearray(data[:BLOCK])
    if storage is not None:
        header[12:20] = struct.pack("<Q", storage)
    if flags is not None:
        header[20:28] = struct.pack("<Q", flags)
    if library is not None:
        header[52:84] = library.encode().ljust(32, b"\0")
    header[:8] = struct.pack("<Q", checksum(bytes(header[8:])))
    return bytes(header) + data[BLOCK:]
