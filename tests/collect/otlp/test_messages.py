"""Parsers of messages."""

from __future__ import annotations

import pytest

from pyrometer.collect.otlp.messages import (
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    EventMessage,
    RankStatus,
    RejectedMessageError,
    parser_of,
)

T0 = 1_790_000_000_000


def test_parser_of_builds_message_with_defaults():
    assert parser_of(RankStatus)({"time_ms": str(T0)}) == RankStatus(T0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "wrong value"),
        ({"time_ms": 0.5}, "wrong value"),
        ({"time_ms": -1}, "wrong time"),
        ({"time_ms": T0, "outcome": "x" * (MAX_NAME_CHARS + 1)}, "too long"),
        ({"time_ms": T0, "resumed_step": 2**63}, "wrong value"),
    ],
)
def test_parser_of_rejects_invalid_values(values, reason):
    with pytest.raises(RejectedMessageError, match=reason):
        parser_of(RankStatus)(values)


def test_parser_of_truncates_long_text():
    event = parser_of(EventMessage)({"time_ms": T0, "kind": "x", "message": "a" * (MAX_TEXT_CHARS + 1)})
    assert event.message == "a" * MAX_TEXT_CHARS
