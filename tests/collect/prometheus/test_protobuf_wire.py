"""The wire format of protobuf."""

from __future__ import annotations

import pytest

from pyrometer.collect.prometheus.protobuf_wire import message_at, messages, varint


def test_varint_reads_multiple_bytes():
    assert varint(b"\x05", 0) == (5, 1)
    assert varint(b"\x00\xac\x02\xff", 1) == (300, 3)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\x80" * 11])
def test_varint_without_end_is_rejected(body):
    with pytest.raises(ValueError, match="without an end"):
        varint(body, 0)


def test_messages_yields_numbers_and_bytes():
    assert list(messages(b"\x0a\x02ab\x12\x00")) == [(1, b"ab"), (2, b"")]


@pytest.mark.parametrize("body", [b"\x0a\x03ab", b"\x08\x01"])
def test_message_at_rejects_truncated_or_other_field(body):
    with pytest.raises(ValueError, match="no message"):
        message_at(body, 0)
