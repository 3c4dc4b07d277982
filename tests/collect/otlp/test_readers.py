"""Readers of OTLP logs and spans."""

from __future__ import annotations

import math

import pytest

from pyrometer.collect.otlp.messages import RejectedMessageError
from pyrometer.collect.otlp.readers import MAX_ATTRIBUTES, _id, _json_of, _step_lengths


def test_step_lengths_must_cover_all_steps():
    assert _step_lengths("[40000,19,90000,1]", 20) == (40000, 19, 90000, 1)
    for listed in ("[40000,19]", "[40000]", "[0,20]", "[", 7):
        with pytest.raises(RejectedMessageError):
            _step_lengths(listed, 20)


def test_id_is_lowercase_hex_of_fixed_length():
    assert _id(b"\xab" * 8, 16) == _id("AB" * 8, 16) == "ab" * 8
    for value in ("ab", "x" * 16, b""):
        with pytest.raises(RejectedMessageError):
            _id(value, 16)


def test_json_of_attributes_is_sorted_and_limited():
    assert _json_of({}) is None
    assert _json_of({"b": 1, "a": math.nan}) == '{"a":"nan","b":1}'
    with pytest.raises(RejectedMessageError):
        _json_of({str(number): 1 for number in range(MAX_ATTRIBUTES + 1)})
