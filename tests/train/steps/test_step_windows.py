"""Step windows of one rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrometer.train.run.meeting import Meeting
from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.stall_detection import ProgressMonitor
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.steps import ring as columns
from pyrometer.train.steps.recorder import Recorder
from pyrometer.train.steps.ring import FORWARD, OPTIMIZER, Ring
from pyrometer.train.steps.sample_lineage import Lineage
from pyrometer.train.steps.step_windows import StepWindows

STEP_NS = 500_000_000


class OneRank:
    """A rank with a ring of steps of half a second."""

    def __init__(self, steps: int, flops_per_sample: float = 0.0) -> None:
        self.recorder = Recorder(Ring.in_memory(rows=256))
        self.outbox = Outbox()
        ring = self.recorder.ring
        numbers = StepNumbers(ring, self.outbox, None)
        timer = SimpleNamespace(is_taken=True)
        progress = ProgressMonitor(self.recorder, self.outbox, numbers, timer, 60.0)
        self.windows = StepWindows(
            self.recorder, self.outbox, Meeting(None, 10.0), progress, Lineage(), {"ranks": 1}, flops_per_sample
        )
        for step in range(steps):
            place = columns.HEADER + step * columns.COLUMNS
            ring.view[place + FORWARD], ring.view[place + OPTIMIZER] = STEP_NS - 1, 1
            ring.view[place + columns.BEGIN_NS] = 1 + step * STEP_NS
            ring.view[place + columns.END_NS] = 1 + (step + 1) * STEP_NS
            ring.view[place + columns.SAMPLES] = 8
        ring.view[columns.COUNT] = self.recorder.count = steps

    def reported(self) -> list[dict]:
        return [fields for kind, fields in self.outbox.take() if kind == "window"]


def test_close_complete_closes_windows_of_the_requested_length():
    rank = OneRank(60)
    assert rank.windows.close_complete()
    reported = rank.reported()
    assert reported[0]["first_step"] == 1  # the first step belongs to the start
    assert all(window["steps"] == 20 for window in reported[1:])
    assert not rank.windows.close_complete()


def test_close_last_closes_the_remaining_steps():
    rank = OneRank(6)
    assert not rank.windows.close_complete()
    rank.windows.close_last()
    (window,) = rank.reported()
    assert (window["first_step"], window["steps"], window["samples"]) == (1, 5, 40)
    assert window["step_p50_us"] == STEP_NS // 1000
    rank.windows.close_last()
    assert rank.reported() == []


def test_window_has_the_flops_of_its_samples():
    rank = OneRank(6, flops_per_sample=1_000.0)
    rank.windows.close_last()
    assert rank.reported()[0]["flops"] == 5 * 8 * 1_000


@pytest.mark.parametrize(("samples", "tokens", "flops"), [(8, 0, 100.0), (8, 80, 10.0), (0, 0, 0.0)])
def test_set_flops_divides_by_tokens_or_samples(samples, tokens, flops):
    rank = OneRank(2)
    rank.recorder.row[columns.SAMPLES], rank.recorder.row[columns.TOKENS] = samples, tokens
    rank.windows.set_flops(800)
    assert rank.windows.flops == flops
