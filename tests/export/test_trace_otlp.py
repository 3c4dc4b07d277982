"""Traces as OTLP: resources, IDs and attributes."""

from __future__ import annotations

from pyrometer.export.otlp_push import key_values


def test_otlp_attributes_beyond_64_bits_are_text():
    (number, text) = key_values({"a": 2**80, "b": "\ud800", "c": None})
    assert number.value.string_value == str(2**80)
    assert text.value.string_value == "?"
