"""How a rank ends, by the exit that the program chooses."""

from __future__ import annotations

import pytest

from pyrometer.train.run import exits
from pyrometer.train.run.ending import Ending
from pyrometer.train.run.outbox import Outbox
from pyrometer.train.steps import ring
from pyrometer.train.steps.recorder import Recorder


class Program:
    def __init__(self) -> None:
        self.recorder = Recorder(ring.Ring.in_memory())
        self.outbox = Outbox()
        self.ending = Ending(self.recorder, self.outbox)

    def reasons(self) -> list[str]:
        return [fields["reason"] for _, fields in self.outbox.take()]


@pytest.fixture
def program(monkeypatch) -> Program:
    monkeypatch.setattr(exits, "uncaught", lambda: None)
    return Program()


def test_program_that_just_ends_succeeded(program):
    assert program.ending.conclude() == "succeeded"
    assert program.reasons() == []


@pytest.mark.parametrize(
    ("code", "outcome", "reasons"),
    [(None, "succeeded", []), (0, "succeeded", []), (3, "failed", []), ("no data", "failed", ["SystemExit"])],
)
def test_exit_code_decides_the_outcome(program, code, outcome, reasons):
    program.ending.exiting(code, None)
    assert program.ending.conclude() == outcome
    assert program.reasons() == reasons


def test_caught_exception_explains_a_failed_exit(program):
    program.ending.exiting(1, ValueError("bad row"))
    assert program.ending.conclude() == "failed"
    assert program.reasons() == ["ValueError"]
    assert program.recorder.ring.view[ring.EXPLAINED] == 1


def test_program_that_trains_on_has_not_exited(program):
    program.ending.exiting(1, None)
    program.recorder.count += 1
    assert program.ending.conclude() == "succeeded"


def test_uncaught_exception_is_a_failure(program, monkeypatch):
    monkeypatch.setattr(exits, "uncaught", lambda: ValueError("bad row"))
    assert program.ending.conclude() == "failed"
    assert program.reasons() == ["ValueError"]


def test_keyboard_interrupt_is_a_kill_without_an_explanation(program, monkeypatch):
    monkeypatch.setattr(exits, "uncaught", KeyboardInterrupt)
    assert program.ending.conclude() == "killed"
    assert program.reasons() == []


def test_stored_exit_code_leaves_the_outcome_to_the_watcher(program):
    program.recorder.ring.view[ring.EXIT] = ring.NO_EXIT_YET
    assert program.ending.conclude() is None


def test_immediate_exit_reports_an_exception_only_for_a_failure(program):
    error = ValueError("bad row")
    assert program.ending.exiting_at_once(0, error, can_report=True) is None
    assert program.ending.exiting_at_once(1, error, can_report=False) is None
    kind, event = program.ending.exiting_at_once(1, error, can_report=True)
    assert (kind, event["kind"], event["reason"]) == ("event", "exception", "ValueError")


def test_failed_training_in_a_living_process_is_reported(program):
    program.ending.failed(RuntimeError("lost connection"))
    assert program.reasons() == ["RuntimeError"]
