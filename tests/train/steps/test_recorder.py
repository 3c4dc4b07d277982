"""The recorder: every mark assigns the time since the previous one to one phase."""

from __future__ import annotations

import threading

from pyrometer.train.steps import ring as columns
from pyrometer.train.steps.recorder import MAX_KEPT_STEPS, Recorder, cost_of_marks_ns
from pyrometer.train.steps.ring import (
    BACKWARD,
    COMM,
    DATA,
    EVALUATE,
    FLAGS,
    FORWARD,
    LIGHT,
    MEASURED,
    OPTIMIZER,
    SKIPPED,
    Ring,
)

OPTIMIZERS = (object(), object())


def train(recorder: Recorder, steps: int = 1, optimizer: object = OPTIMIZERS[0], **options: bool) -> None:
    for _ in range(steps):
        for phase in (DATA, FORWARD, BACKWARD):
            assert recorder.enter(phase)
            recorder.leave()
        recorder.enter_optimizer(optimizer)
        assert recorder.leave_optimizer(optimizer, **options)


def test_phases_of_a_step_add_up_to_its_length():
    recorder = Recorder(Ring.in_memory())
    train(recorder, 3)
    recorder.finish()
    ring = recorder.ring
    assert ring.view[columns.COUNT] == 3
    for step in range(3):
        length = ring.value(step, columns.END_NS) - ring.value(step, columns.BEGIN_NS)
        assert sum(ring.value(step, phase) for phase in range(MEASURED)) == length
        assert all(ring.value(step, phase) > 0 for phase in (DATA, FORWARD, BACKWARD, OPTIMIZER))


def test_enter_ignores_other_threads_until_one_is_adopted():
    recorder = Recorder(Ring.in_memory())
    entered: list[bool] = []

    def other_thread() -> None:
        entered.append(recorder.enter(FORWARD))
        recorder.adopt_thread()
        entered.append(recorder.enter(FORWARD))

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert entered == [False, True]
    assert not recorder.enter(DATA)


def test_skipped_update_sets_a_flag():
    recorder = Recorder(Ring.in_memory())
    train(recorder, skipped=True)
    train(recorder)
    recorder.finish()
    assert list(recorder.ring.column(FLAGS, 0, 2)) == [SKIPPED, 0]


def test_optimizers_that_step_together_share_a_step():
    recorder = Recorder(Ring.in_memory())
    for optimizer in OPTIMIZERS:
        recorder.expect(optimizer)
    for _ in range(2):
        recorder.enter(DATA)
        recorder.leave()
        for optimizer in OPTIMIZERS:  # each with a backward of its own
            recorder.enter(BACKWARD)
            recorder.leave()
            recorder.enter_optimizer(optimizer)
            recorder.leave_optimizer(optimizer)
    recorder.finish()
    assert recorder.count == 2


def test_wait_after_the_last_gradient_is_communication():
    recorder = Recorder(Ring.in_memory())
    recorder.enter(BACKWARD)
    recorder.ready()
    assert recorder.ring.snapshot().phase == COMM
    recorder.leave()
    assert recorder.row[COMM] > 0


def test_evaluation_includes_the_time_since_its_batch_was_requested():
    recorder = Recorder(Ring.in_memory())
    train(recorder)
    recorder.enter(DATA)
    recorder.leave()
    assert recorder.enter_evaluation()
    recorder.leave()
    assert recorder.evaluating
    assert recorder.row[DATA] == 0
    assert recorder.row[EVALUATE] > 0
    recorder.evaluates(False)
    assert not recorder.evaluating


def test_steps_without_marks_have_only_their_length():
    recorder = Recorder(Ring.in_memory())
    recorder.every = 3
    train(recorder)
    assert recorder.light
    begin = recorder.last_ns
    recorder.ends += [begin + 10, begin + 30]
    recorder.count += 2
    recorder.passed()
    assert not recorder.light
    assert list(recorder.ring.column(FLAGS, 0, 3)) == [0, LIGHT, LIGHT]
    assert list(recorder.ring.column(columns.OTHER, 1, 3)) == [10, 20]


def test_powers_of_two_and_slow_steps_are_kept_with_their_marks():
    recorder = Recorder(Ring.in_memory(rows=128))
    train(recorder, 20)
    recorder.finish()
    assert [step.number for step in recorder.kept] == [1, 2, 4, 8, 16]
    assert all(step.marks and not step.slow for step in recorder.kept)
    recorder.slow_ns = 0
    train(recorder, 2 * MAX_KEPT_STEPS)
    assert len(recorder.kept) == MAX_KEPT_STEPS
    assert recorder.kept[-1].slow


def test_named_spans_belong_to_the_kept_step():
    recorder = Recorder(Ring.in_memory())
    recorder.slow_ns = 0
    train(recorder)
    recorder.name("load", 1, 2)
    recorder.finish()
    assert recorder.kept[-1].named == [("load", 1, 2)]
    assert recorder.named == []


def test_on_close_is_called_with_the_number_of_the_step():
    recorder = Recorder(Ring.in_memory())
    closed: list[int] = []
    recorder.on_close = closed.append
    train(recorder, 2)
    recorder.finish()
    assert closed == [0, 1]


def test_cost_of_marks_is_a_positive_estimate():
    assert 0 < cost_of_marks_ns(steps=5) < 1_000_000_000
