"""Global step numbers and how they become known."""

from __future__ import annotations

import pytest

from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.steps.ring import Ring


def numbers(first_step: int | None = None) -> tuple[StepNumbers, Outbox]:
    outbox = Outbox()
    return StepNumbers(Ring.in_memory(), outbox, first_step), outbox


def test_steps_are_counted_from_zero_or_the_configured_step():
    steps, _ = numbers()
    assert (steps.number(3), steps.is_known) == (3, False)
    steps, _ = numbers(40)
    assert (steps.number(3), steps.is_known) == (43, True)


def test_begin_at_reports_a_resume_once_known():
    steps, outbox = numbers()
    steps.begin_at(0)
    assert outbox.take() == []
    steps.begin_at(40)
    ((kind, fields),) = outbox.take()
    assert (kind, fields["resumed_step"], steps.number(1)) == ("run", 40, 41)


def test_configured_step_wins_over_the_framework():
    steps, _ = numbers()
    steps.take_from_framework(40)
    assert steps.number(0) == 40
    steps, _ = numbers(7)
    steps.take_from_framework(40)
    assert steps.number(0) == 7


@pytest.mark.parametrize(
    ("logged", "first"),
    [
        ([(0, 40), (1, 41), (2, 42)], 40),
        ([(0, 40), (1, 41)], 0),  # too few
        ([(0, 1), (1, 2), (2, 3)], 0),  # counts from 1
        ([(0, 40), (1, 41), (2, 52)], 0),  # different offsets
    ],
)
def test_steps_of_logs_reveal_a_resume(logged, first):
    steps, _ = numbers()
    steps.take_from_logs(logged)
    assert steps.number(0) == first


def test_known_step_wins_over_logs():
    steps, _ = numbers()
    steps.begin_at(20)
    steps.take_from_logs([(0, 40), (1, 41), (2, 42)])
    assert steps.number(0) == 20
