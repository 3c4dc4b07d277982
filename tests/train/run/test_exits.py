"""Exceptions that end a process, as text. `tests/train/ship/test_watcher.py` tests exit codes of real processes."""

from __future__ import annotations

import sys

import pytest

from pyrometer.train.run import exits
from pyrometer.train.steps.ring import EXIT, EXIT_GUESSED, HAS_EXIT, NO_EXIT_YET, Ring


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_describe_has_one_line_and_the_traceback():
    headline, empty, *trace = exits.describe(raised(ValueError("two\nlines"))).split("\n")
    assert headline == "ValueError: two lines"
    assert empty == ""
    assert trace[0] == "Traceback (most recent call last):"


def test_describe_finds_the_type_of_a_syntax_error():
    with pytest.raises(SyntaxError) as error:
        compile("1 +", "train.py", "exec")
    assert exits.describe(error.value).startswith("SyntaxError: invalid syntax")


def test_describe_shortens_long_texts():
    text = exits.describe(raised(ValueError("x" * 100_000)))
    headline, _, trace = text.partition("\n\n")
    assert len(headline) == exits.MAX_HEADLINE
    assert headline.endswith("…")
    assert len(trace) <= exits.MAX_TEXT + len("\n…\n")


def test_uncaught_is_the_exception_that_reached_the_outermost_frame(monkeypatch):
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)
    assert exits.uncaught() is None
    error = ValueError("without a traceback")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert exits.uncaught() is error
    monkeypatch.setattr(sys, "last_value", raised(ValueError("in a function")), raising=False)
    assert exits.uncaught() is None  # this test has callers, so a debugger printed it


def test_record_of_a_ring_in_memory_only_guesses():
    ring = Ring.in_memory()
    exits.record(ring)
    assert ring.view[EXIT] == EXIT_GUESSED


@pytest.mark.parametrize(("status", "stored"), [(3, HAS_EXIT | 3), (-1, HAS_EXIT | 255), ("x", NO_EXIT_YET)])
def test_exits_now_stores_the_low_byte_of_the_status(monkeypatch, status, stored):
    ring = Ring.in_memory()
    ring.view[EXIT] = NO_EXIT_YET
    monkeypatch.setattr(exits, "_ring", ring)
    exits.exits_now(status)
    assert ring.view[EXIT] == stored
