"""The hot path: where the training thread is, and how long it was in each phase of a step.

Every mark gives the time since the mark before to exactly one phase, so the phases of a step add up to it. A mark costs
half a microsecond by itself and some three inside of a program, whose own work has driven this code out of the
processor's caches: what counts is how little of memory and of the interpreter is touched. So a step is one list until
it is written, in one place; an `array` here, or a slice of a memoryview, would cost as much as the rest of a mark.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrometer.train.ring import (  # isort: skip
    BACKWARD, BEGIN_NS, CHECKPOINT, COLUMNS, COMM, COMPILE, COPY, COUNT, DATA, END_NS, EVALUATE, FLAGS, FORWARD, HEADER,
    LIGHT, MEASURED, MOVED_NS, OPTIMIZER, OTHER, PHASE, SKIPPED,
)  # fmt: skip
from pyrometer.train.work import Work

if TYPE_CHECKING:
    from pyrometer.train.device import CudaTimer
    from pyrometer.train.ring import Ring

# What is between two phases belongs to one of them: what follows the arrival of a batch is its copy to the device, what
# follows forward is the loss, what follows backward clips gradients, unless another batch comes first.
_PHASE_AFTER = {DATA: COPY, FORWARD: FORWARD, BACKWARD: OPTIMIZER}
_BETWEEN = {
    (OTHER, FORWARD): COPY, (BACKWARD, FORWARD): COPY, (BACKWARD, DATA): OTHER, (FORWARD, DATA): OTHER,
    (FORWARD, EVALUATE): EVALUATE, (DATA, DATA): OTHER, (DATA, OPTIMIZER): OTHER, (FORWARD, OPTIMIZER): OPTIMIZER,
    (DATA, BACKWARD): FORWARD, (OTHER, BACKWARD): FORWARD,  # its forward was not seen
}  # fmt: skip
_GAP = tuple(
    tuple(_BETWEEN.get((before, after), _PHASE_AFTER.get(before, OTHER)) for after in range(MEASURED))
    for before in range(MEASURED)
)
_IDLE_PHASE = tuple(
    _PHASE_AFTER.get(phase, OTHER) for phase in range(MEASURED)
)  # where a rank is that comes no further
_REPEATABLE = (FORWARD, BACKWARD)  # for another optimizer, perhaps
MAX_KEPT_STEPS = 64  # whole steps that wait to be folded
LAST_DOUBLING = 512  # first steps 1, 2, 4, 8, …: the same on all ranks, whatever they agree on later
CACHE_FACTOR = 9  # times as much does it cost in a program, with getting there and taking the loss: 50 µs to 5.5
MAX_MARKS = 4_096  # of one step: a step with more is not kept whole


class KeptStep(NamedTuple):
    """A step that is kept whole: its marks as (phase, from, to), and the batches it used."""

    number: int  # of the step, in this process
    begin_ns: int
    end_ns: int
    marks: list[tuple[int, int, int]]
    named: list[tuple[str, int, int]]
    slow: bool


class Recorder:
    """One training thread, step by step. Its methods are called by the hooks, and only there."""

    __slots__ = (
        "begin_ns", "closable", "count", "device", "ends", "evaluating", "every", "expected", "inside", "kept",
        "last_ns", "light", "marks", "named", "on_close", "phase", "ready_ns", "ring", "row", "rows", "slow_ns",
        "stack", "stepped", "thread", "view", "whole_at", "work",
    )  # fmt: skip

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.view = ring.view
        self.rows = ring.rows
        self.thread = get_ident()
        self.row = [0] * COLUMNS  # the step that goes on, as it will be written
        self.work = Work()
        self.stack: list[int] = []
        self.inside = False  # of a phase, not between two
        self.phase = OTHER  # the one it is in, or was in last
        self.evaluating = False  # since a forward without gradients, until one with them
        self.count = 0
        self.begin_ns = self.last_ns = perf_counter_ns()
        self.ready_ns = 0  # when this rank's own gradients were there
        self.closable = False
        self.stepped: set[int] = set()  # optimizers, in this step
        self.expected: set[int] = set()  # those that step before it is over, where each has a backward of its own
        self.marks: deque[tuple[int, int, int]] = deque(maxlen=MAX_MARKS)
        self.named: list[tuple[str, int, int]] = []
        self.kept: deque[KeptStep] = deque(maxlen=MAX_KEPT_STEPS)
        self.whole_at = 1  # the next step that is kept whole, whatever it takes
        self.slow_ns = 1 << 62  # steps that take longer are kept whole
        self.every = 1  # one step in so many is marked; of the others only the length is taken
        self.light = False  # the step that comes is one of those
        self.ends: list[int] = []  # when those that are not written yet were over
        self.device: CudaTimer | None = None
        self.on_close: Any = None  # called after each step, with its number

    def adopt_thread(self) -> None:
        """This thread is the one that trains, whichever built the optimizer."""
        if get_ident() != self.thread:
            self.thread = get_ident()
            self.stack.clear()
            self.inside = False
            self.last_ns = perf_counter_ns()

    # -- marks --------------------------------------------------------------------------------------------------------

    def enter(self, phase: int) -> bool:
        """The thread begins something; False when it is another thread that does."""
        if get_ident() != self.thread:
            return False
        previous = self.phase
        if self.inside:
            outer = previous
            gap = (
                FORWARD if phase == BACKWARD and previous == OPTIMIZER else previous
            )  # an optimizer's closure: the loss
        else:
            if self.ends:
                self._write_ends()
            outer = -1 - previous
            gap = EVALUATE if self.evaluating else _GAP[previous][phase]
            if self.closable and phase != OPTIMIZER and (phase not in _REPEATABLE or self._is_over()):
                self._close()
        last = self.last_ns
        self.last_ns = now = perf_counter_ns()  # first: what follows may start a garbage collection, which marks too
        self.row[gap] += now - last
        self.marks.append((gap, last, now))
        self.stack.append(outer)
        self.inside = True
        self.phase = phase
        view = self.view
        view[PHASE] = phase
        view[MOVED_NS] = now
        device = self.device
        if device is not None and device.sampling:
            device.mark(gap)
        return True

    def leave(self) -> None:
        """The thread ends what it began last."""
        phase, last = self.phase, self.last_ns
        self.last_ns = now = perf_counter_ns()
        if phase == BACKWARD and last < self.ready_ns <= now:  # after that, it only waits for the others' gradients
            ready = self.ready_ns
            self.row[BACKWARD] += ready - last
            self.marks.append((BACKWARD, last, ready))
            phase, last = COMM, ready
        self.row[phase] += now - last
        self.marks.append((phase, last, now))
        phase = self.phase
        outer = self.stack.pop()
        view = self.view
        if outer >= 0:
            self.phase = outer
            view[PHASE] = outer
        else:
            self.inside = False
            if phase >= CHECKPOINT:  # a save, a collection: it goes on where it was
                self.phase = -1 - outer
            view[PHASE] = EVALUATE if self.evaluating else _IDLE_PHASE[self.phase]
        view[MOVED_NS] = now
        device = self.device
        if device is not None and device.sampling:
            device.mark(phase)

    def ready(self) -> None:
        """The last gradient of this rank is there. May be called by another thread (autograd's, on CUDA)."""
        now = perf_counter_ns()
        self.ready_ns = now
        view = self.view
        view[PHASE] = COMM
        view[MOVED_NS] = now
        device = self.device
        if device is not None and device.sampling:
            device.ready()

    # -- what the marks mean ------------------------------------------------------------------------------------------

    def enter_evaluation(self) -> bool:
        """A root module is called without gradients: the program evaluates, since its first batch was asked for."""
        if get_ident() != self.thread:
            return False
        if not self.evaluating and not self.inside:
            if self.closable:
                self._close()
            row = self.row
            for phase in (DATA, COPY, OTHER):
                row[EVALUATE] += row[phase]
                row[phase] = 0
            self.evaluating = True
        return self.enter(EVALUATE)

    def evaluates(self, yes: bool) -> None:
        """A framework says where an evaluation begins and ends: what was before this moment is not, or is, part of it.

        While it goes on, whatever is between two marks is part of it.
        """
        if not self.inside and self.evaluating != yes and self.enter(EVALUATE):
            self.leave()
            self.evaluating = yes

    def has_begun(self) -> bool:
        """Whether the step with the current number is being trained, or was and is not closed yet."""
        row = self.row
        return self.closable or self.phase in _REPEATABLE or bool(row[FORWARD] or row[BACKWARD])

    def enter_optimizer(self, optimizer: object) -> bool:
        """An optimizer steps. One that has stepped already begins another step."""
        if self.closable and id(optimizer) in self.stepped and get_ident() == self.thread:
            self.expected &= self.stepped  # others never came
            self._close()
        return self.enter(OPTIMIZER)

    def leave_optimizer(self, optimizer: object, *, skipped: bool = False) -> bool:
        """An optimizer has stepped, or had to skip its update. If no other one does, the step is over.

        False when it is another thread's.
        """
        if self.phase != OPTIMIZER or not self.inside or get_ident() != self.thread:
            return False
        self.leave()
        self.work.optimizer(self.row)
        self.stepped.add(id(optimizer))
        if skipped:
            self.row[FLAGS] |= SKIPPED
        self.closable = True
        self.evaluating = False
        device = self.device
        if device is not None:
            device.step_ended(self.count)
        if self.every > 1 or self.light:
            self._lighten()
        return True

    def include(self) -> None:
        """Our own work after an optimizer belongs to its step, which still goes on for the program."""
        if self.closable:
            last = self.last_ns
            self.last_ns = now = perf_counter_ns()
            self.row[OTHER] += now - last
            self.marks.append((OTHER, last, now))

    # -- steps without marks ------------------------------------------------------------------------------------------

    def expect(self, optimizer: object) -> None:
        """There is an optimizer. With several of them all steps are marked, to see which of them belong together."""
        self.expected.add(id(optimizer))
        if len(self.expected) > 1:
            self.light = False

    def _lighten(self) -> None:
        """Where steps are so short that marks would be felt, those that come go without, up to the next one in turn."""
        if self.light:
            self.row[FLAGS] |= LIGHT
        device = self.device
        alone = self.every > 1 and len(self.expected) < 2 and not self.inside
        self.light = alone and not (device is not None and device.sampling)
        if self.light:
            self._close()

    def passed(self) -> None:
        """Enough steps went without marks, or something was marked between them: an evaluation, a save."""
        if self.marks:
            end = self.ends.pop()
            self.count -= 1
            self.row[OTHER] += end - self.last_ns
            self.row[FLAGS] |= LIGHT
            self.last_ns = end
            self._close()
        else:
            self._write_ends()
        self.light = False

    def _write_ends(self) -> None:
        view, begin = self.view, self.begin_ns
        number = view[COUNT]
        for end in self.ends:
            place = HEADER + number % self.rows * COLUMNS
            for column in range(place, place + COLUMNS):
                view[column] = 0
            view[place + OTHER] = end - begin
            view[place + BEGIN_NS] = begin
            view[place + END_NS] = end
            view[place + FLAGS] = LIGHT
            begin = end
            number += 1
        self.ends.clear()
        self.begin_ns = self.last_ns = view[MOVED_NS] = begin
        view[COUNT] = number

    # -- the end of a step --------------------------------------------------------------------------------------------

    def name(self, text: str, from_ns: int, to_ns: int) -> None:
        """A span that the program named itself."""
        if len(self.named) < MAX_MARKS:
            self.named.append((text, from_ns, to_ns))

    def finish(self) -> None:
        """There is no more to come: a step that is over is closed."""
        if self.closable:
            self._close()
        if self.ends:
            self._write_ends()

    def _is_over(self) -> bool:
        return len(self.expected) < 2 or self.expected <= self.stepped

    def _close(self) -> None:
        self.closable = False
        if self.ends:
            self._write_ends()
        count, end = self.count, self.last_ns  # the optimizer's end, or that of the backward in which it stepped
        row, view, begin = self.row, self.view, self.begin_ns
        row[BEGIN_NS] = begin
        row[END_NS] = end
        place = HEADER + count % self.rows * COLUMNS
        for amount in row:
            view[place] = amount
            place += 1
        slow = end - begin > self.slow_ns and self._work_ns(end - begin) > self.slow_ns
        if slow or count >= self.whole_at:
            self._keep(count, end, slow=slow)
        self.row = [0] * COLUMNS
        self.marks.clear()
        if self.named:
            self.named.clear()
        self.begin_ns = end
        self.stepped.clear()
        self.ready_ns = 0
        self.count = view[COUNT] = count + 1
        if self.on_close is not None:
            self.on_close(count)

    def _work_ns(self, length_ns: int) -> int:
        row = self.row
        return length_ns - row[CHECKPOINT] - row[EVALUATE] - row[COMPILE]

    def _keep(self, count: int, end: int, *, slow: bool) -> None:
        if count >= self.whole_at:
            self.whole_at = max(2 * count, 1) if count < LAST_DOUBLING else 1 << 62  # until another one is chosen
        if len(self.marks) < MAX_MARKS:  # else a long evaluation between two steps has pushed out some of them
            self.kept.append(KeptStep(count, self.begin_ns, end, list(self.marks), list(self.named), slow))


def cost_of_marks_ns(steps: int = 50) -> int:
    """What the marks of an ordinary step cost on this machine, roughly: measured here, where all is in the caches."""
    from pyrometer.train.ring import Ring

    optimizer = object()
    trial = Recorder(Ring.in_memory())
    trial.whole_at = 1 << 62
    costs = []
    for _ in range(steps):
        began = perf_counter_ns()
        for phase in (DATA, FORWARD, BACKWARD):
            trial.enter(phase)
            trial.leave()
        trial.enter_optimizer(optimizer)
        trial.leave_optimizer(optimizer)
        costs.append(perf_counter_ns() - began)
    return CACHE_FACTOR * sorted(costs)[steps // 2]
