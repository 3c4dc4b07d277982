"""Keys of a terminal: sequences become names, unknown ones are skipped."""

from __future__ import annotations

from pyrometer.cli.terminal_keys import keys_of


def test_keys_of_decodes_terminal_sequences():
    assert list(keys_of("jq")) == ["j", "q"]
    assert list(keys_of("\x1b[A\x1bOB\x1b[5~x\x1b")) == ["up", "down", "page_up", "x", "escape"]
    assert list(keys_of("\x1b[1;5Cé\x00\r\x7f")) == ["é", "enter", "backspace"]  # other characters are not keys


def test_keys_of_skips_unknown_sequences():
    assert list(keys_of("\x1b[1;5Cq")) == ["q"]
    assert list(keys_of("\x1b[")) == []


def test_keys_of_nothing_is_empty():
    assert list(keys_of("")) == []
