"""Protobuf on the wire, one level at a time: a message in a list is handed out before the next one is looked at.

As a list, 64 MiB of empty messages would take more than a gigabyte; and of messages that are read one by one, one that
makes no sense loses no other.
"""

from __future__ import annotations

from collections.abc import Iterator


def messages(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message of which all are messages or texts: their numbers, and their bytes."""
    at = 0
    while at < len(body):
        number, begin, at = message_at(body, at)
        yield number, body[begin:at]


def message_at(body: bytes, at: int) -> tuple[int, int, int]:
    """The number of the field that stands there, which is a message or a text, and where its bytes begin and end."""
    key, at = varint(body, at)
    length, at = varint(body, at)
    if key & 7 != 2 or at + length > len(body):
        raise ValueError("no message")
    return key >> 3, at, at + length


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A number as protobuf and snappy write it, and where it ends."""
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
