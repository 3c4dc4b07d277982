"""Environment variables of the SDK."""

from __future__ import annotations

import pytest

from pyrometer.train.run.environment import VARIABLES, read_number, read_words


@pytest.mark.parametrize(
    ("value", "number"), [("7.5", 7.5), ("0", 0.0), ("", 3.0), ("x", 3.0), ("-1", 3.0), ("nan", 3.0), ("1e9", 3.0)]
)
def test_read_number_falls_back_to_the_default(monkeypatch, value, number):
    monkeypatch.setenv("PYROMETER_FLUSH_S", value)
    assert read_number("PYROMETER_FLUSH_S", 3.0) == number


def test_read_words_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("PYROMETER_REDACT", " stacks,paths,, ")
    assert read_words("PYROMETER_REDACT") == {"stacks", "paths"}
    monkeypatch.delenv("PYROMETER_REDACT")
    assert read_words("PYROMETER_REDACT") == frozenset()


def test_every_variable_has_a_prefix_and_a_description():
    assert all(name.startswith("PYROMETER_") and text.endswith(".") for name, text in VARIABLES.items())
