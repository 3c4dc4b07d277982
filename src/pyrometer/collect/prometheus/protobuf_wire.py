"""Reads the protobuf wire format one level at a time and yields each message before reading the next one.

As a list, 64 MiB of empty messages would take more than 1 GB. If messages are read one by one, a malformed one does not
affect the others.
"""

from __future__ import annotations

from collections.abc import Iterator


def messages(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the number and bytes of each field of a message whose fields are all messages or strings."""
    at = 0
    while at < len(body):
        number, begin, at = message_at(body, at)
        yield number, body[begin:at]


def message_at(body: bytes, at: int) -> tuple[int, int, int]:
    """The number of the field at an offset (a message or a string), and the start and end of its bytes."""
    key, at = varint(body, at)
    length, at = varint(body, at)
    if key & 7 != 2 or at + length > len(body):
        raise ValueError("no message")
    return key >> 3, at, at + length


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Decodes a variable-length integer of protobuf or snappy. Also returns its end."""
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
