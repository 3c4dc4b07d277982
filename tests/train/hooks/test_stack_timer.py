"""The timer of `faulthandler`, shared with the program."""

from __future__ import annotations

import faulthandler

import pytest

from pyrometer.train.hooks.stack_timer import StackTimer


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: made.append("armed"))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: made.append("canceled"))
    return made


def test_timer_is_taken_when_the_program_uses_it(calls):
    timer = StackTimer()
    timer.arm(1.0, None)
    assert not timer.is_taken
    faulthandler.dump_traceback_later(5)
    assert timer.is_taken
    assert calls == ["armed", "armed"]


@pytest.mark.parametrize(
    ("armed", "taken", "cancels"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_fork_cancels_only_the_timer_of_the_sdk(calls, armed, taken, cancels):
    timer = StackTimer()
    timer.is_taken = taken
    timer.before_fork(armed=armed)
    assert timer._lock.locked()
    timer.after_fork()
    assert not timer._lock.locked()
    assert calls == ["canceled"] * cancels
