"""Whether a rank makes progress. `tests/torch/test_stuck.py` has real ranks that are stuck."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.stall_detection import ProgressMonitor
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.steps import ring
from pyrometer.train.steps.recorder import Recorder

SECOND_NS = 1_000_000_000


class Rank:
    """A rank in the forward of step 100 + 4, which this thread trains."""

    def __init__(self) -> None:
        self.recorder = Recorder(ring.Ring.in_memory())
        self.outbox = Outbox()
        steps = StepNumbers(self.recorder.ring, self.outbox, 100)
        self.timer = SimpleNamespace(is_taken=True)
        self.monitor = ProgressMonitor(self.recorder, self.outbox, steps, self.timer, 60.0)
        self.recorder.count = 4
        self.recorder.enter(ring.FORWARD)
        self.moved_ns = self.recorder.last_ns

    def check_after(self, seconds: float) -> list[dict]:
        self.monitor.check(self.moved_ns + round(seconds * SECOND_NS))
        return [fields for _, fields in self.outbox.take()]


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_rank_below_its_limit_is_not_stuck(rank):
    assert rank.check_after(59) == []


def test_stuck_rank_is_reported_once_with_its_stack(rank):
    stuck, alive = rank.check_after(61)
    assert (stuck["kind"], stuck["step"], stuck["reason"]) == ("stuck", 104, "forward")
    assert "test_stuck_rank_is_reported_once_with_its_stack" in stuck["message"]
    assert alive["kind"] == "alive"
    assert rank.outbox.urgent.is_set()
    assert rank.check_after(120) == []


def test_progress_ends_a_stall(rank):
    rank.check_after(61)
    rank.recorder.leave()
    (unstuck,) = rank.check_after(0)
    assert (unstuck["kind"], unstuck["step"]) == ("unstuck", 104)
    assert rank.recorder.ring.view[ring.STUCK_NS] == 0


def test_phases_have_their_own_limits(rank):
    rank.recorder.leave()
    rank.recorder.enter(ring.CHECKPOINT)
    rank.moved_ns = rank.recorder.last_ns
    assert rank.check_after(800) == []
    assert rank.check_after(901)[0]["reason"] == "checkpoint"


def test_process_that_has_not_trained_is_not_stuck():
    rank = Rank()
    rank.recorder.count = 0
    assert rank.check_after(10_000) == []


def test_limits_follow_slow_steps_but_not_a_single_hang(rank):
    for _ in range(3):
        rank.monitor.observe_slowest_step(20.0)
    assert rank.monitor.limits_s()["default"] == 200.0
    rank.monitor.observe_slowest_step(3_000.0)
    assert rank.monitor.limits_s()["default"] == 200.0


def test_close_without_a_stack_file_leaves_the_timer(rank):
    rank.timer.is_taken = False
    rank.monitor.close()
