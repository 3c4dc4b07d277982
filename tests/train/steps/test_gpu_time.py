"""Time on the GPU, with events of a clock that the test advances. `tests/torch/test_cuda.py` has a real GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrometer.train.steps.gpu_time import EVENTS_NS, CudaTimer
from pyrometer.train.steps.ring import BACKWARD, COMM, FORWARD, OPTIMIZER


class Gpu:
    """A GPU whose clock is set by hand."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.capturing = False
        self.finished = True
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at_ms = -1.0

            def record(self) -> None:
                self.at_ms = gpu.now_ms

            def query(self) -> bool:
                return gpu.finished

            def elapsed_time(self, other: Event) -> float:
                return other.at_ms - self.at_ms

        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: self.capturing)
        )


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def sampled_step(gpu: Gpu, timer: CudaTimer) -> None:
    """Step 2: the first one that is sampled."""
    timer.step_ended(1)
    assert timer.sampling
    for phase, length_ms in ((FORWARD, 3), (BACKWARD, 6), (OPTIMIZER, 1)):
        if phase == BACKWARD:
            gpu.now_ms += length_ms - 2
            timer.ready()
            gpu.now_ms += 2
        else:
            gpu.now_ms += length_ms
        timer.mark(phase)
    timer.step_ended(2)


def test_sampled_step_has_the_times_of_the_gpu(gpu):
    timer = CudaTimer(gpu.torch)
    sampled_step(gpu, timer)
    (step,) = timer.resolved
    assert step.number == 2
    assert [step.amounts_ms[phase] for phase in (FORWARD, BACKWARD, COMM, OPTIMIZER)] == [3, 4, 2, 1]


def test_steps_that_the_gpu_has_not_finished_stay_pending(gpu):
    timer = CudaTimer(gpu.torch)
    gpu.finished = False
    sampled_step(gpu, timer)
    assert not timer.resolved
    gpu.finished = True
    timer.step_ended(3)
    assert [step.number for step in timer.resolved] == [2]


def test_capture_of_a_graph_discards_the_sample(gpu):
    timer = CudaTimer(gpu.torch)
    timer.step_ended(1)
    gpu.capturing = True
    timer.mark(FORWARD)
    assert not timer.sampling
    timer.step_ended(2)
    assert not timer.resolved


def test_expensive_samples_are_taken_less_often(gpu):
    timer = CudaTimer(gpu.torch)
    timer._sampled_ns = 10 * EVENTS_NS
    timer._settle(0)
    assert timer.every == 10
    timer._sampled_ns = 1e12
    timer._settle(0)
    assert timer.every == 1024
