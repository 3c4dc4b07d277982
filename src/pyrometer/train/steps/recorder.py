"""The hot path: where the training thread is, and how long it was in each phase of a step.

Every mark assigns the time since the previous mark to exactly one phase, so the phases of a step add up to it. A mark
costs half a microsecond by itself, and about three inside of a program whose own work has evicted this code from the
processor's caches. So what counts is how little memory and how few interpreter operations a mark touches. A step is one
list until it is written to the ring in one place: an `array`, or a slice of a memoryview, would cost as much as the
rest of a mark.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrometer.train.steps.ring import (
    BACKWARD,
    BEGIN_NS,
    CHECKPOINT,
    COLUMNS,
    COMM,
    COMPILE,
    COPY,
    COUNT,
    DATA,
    END_NS,
    EVALUATE,
    FLAGS,
    FORWARD,
    HEADER,
    LIGHT,
    MEASURED,
    MOVED_NS,
    OPTIMIZER,
    OTHER,
    PHASE,
    SKIPPED,
)
from pyrometer.train.steps.step_work import Work

if TYPE_CHECKING:
    from pyrometer.train.steps.gpu_time import CudaTimer
    from pyrometer.train.steps.ring import Ring

# The time between two phases belongs to one of them: after the arrival of a batch it is the copy to the device, after
# forward it is the loss, after backward it is gradient clipping, unless another batch comes first.
_PHASE_AFTER = {DATA: COPY, FORWARD: FORWARD, BACKWARD: OPTIMIZER}
_BETWEEN = {
    (OTHER, FORWARD): COPY,
    (BACKWARD, FORWARD): COPY,
    (BACKWARD, DATA): OTHER,
    (FORWARD, DATA): OTHER,
    (FORWARD, EVALUATE): EVALUATE,
    (DATA, DATA): OTHER,
    (DATA, OPTIMIZER): OTHER,
    (FORWARD, OPTIMIZER): OPTIMIZER,
    (DATA, BACKWARD): FORWARD,
    (OTHER, BACKWARD): FORWARD,  # its forward was not seen
}
_GAP = tuple(
    tuple(_BETWEEN.get((before, after), _PHASE_AFTER.get(before, OTHER)) for after in range(MEASURED))
    for before in range(MEASURED)
)
# the phase of a rank that makes no progress after this one
_IDLE_PHASE = tuple(_PHASE_AFTER.get(phase, OTHER) for phase in range(MEASURED))
_REPEATABLE = (FORWARD, BACKWARD)  # phases that may be repeated for another optimizer
MAX_KEPT_STEPS = 64  # steps that wait to be published as spans
LAST_DOUBLING = 512  # of the first steps 1, 2, 4, 8, … are kept: the same on all ranks, whatever they agree on later
CACHE_FACTOR = 9  # a mark costs this many times more in a program, with the hook and the loss: 50 µs instead of 5.5 µs
MAX_MARKS = 4_096  # per step; a step with more marks is not kept


class KeptStep(NamedTuple):
    """A step that is kept with all of its marks (phase, from, to) and named spans."""

    number: int  # of the step, in this process
    begin_ns: int
    end_ns: int
    marks: list[tuple[int, int, int]]
    named: list[tuple[str, int, int]]
    slow: bool


class Recorder:
    """Records one training thread, step by step. Only the hooks call its methods."""

    __slots__ = (
        "begin_ns",
        "closable",
        "count",
        "device",
        "ends",
        "evaluating",
        "every",
        "expected",
        "inside",
        "kept",
        "last_ns",
        "light",
        "marks",
        "named",
        "on_close",
        "phase",
        "ready_ns",
        "ring",
        "row",
        "rows",
        "slow_ns",
        "stack",
        "stepped",
        "thread",
        "view",
        "whole_at",
        "work",
    )

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.view = ring.view
        self.rows = ring.rows
        self.thread = get_ident()
        self.row = [0] * COLUMNS  # the current step, as it will be written
        self.work = Work()
        self.stack: list[int] = []
        self.inside = False  # whether the thread is in a phase, not between two phases
        self.phase = OTHER  # the current phase, or the previous one between two phases
        self.evaluating = False  # from a forward without gradients until one with gradients
        self.count = 0
        self.begin_ns = self.last_ns = perf_counter_ns()
        self.ready_ns = 0  # when all gradients of this rank were computed
        self.closable = False
        self.stepped: set[int] = set()  # optimizers that have stepped in this step
        # optimizers that step before a step is complete, where each has a backward of its own
        self.expected: set[int] = set()
        self.marks: deque[tuple[int, int, int]] = deque(maxlen=MAX_MARKS)
        self.named: list[tuple[str, int, int]] = []
        self.kept: deque[KeptStep] = deque(maxlen=MAX_KEPT_STEPS)
        self.whole_at = 1  # the next step that is kept, however long it takes
        self.slow_ns = 1 << 62  # steps that take longer are kept
        self.every = 1  # every n-th step is marked; only the length of the other steps is recorded
        self.light = False  # whether the coming step is not marked
        self.ends: list[int] = []  # when the steps ended that are not written yet
        self.device: CudaTimer | None = None
        self.on_close: Any = None  # called after each step with its number

    def adopt_thread(self) -> None:
        """The calling thread is the training thread, whichever thread created the optimizer."""
        if get_ident() != self.thread:
            self.thread = get_ident()
            self.stack.clear()
            self.inside = False
            self.last_ns = perf_counter_ns()

    # -- Marks ---------------------------------------------------------------------------------------------------------

    def enter(self, phase: int) -> bool:
        """The thread enters a phase; returns False for another thread than the training thread."""
        if get_ident() != self.thread:
            return False
        previous = self.phase
        if self.inside:
            outer = previous
            # the closure of an optimizer computes the loss
            gap = FORWARD if phase == BACKWARD and previous == OPTIMIZER else previous
        else:
            if self.ends:
                self._write_ends()
            outer = -1 - previous
            gap = EVALUATE if self.evaluating else _GAP[previous][phase]
            if self.closable and phase != OPTIMIZER and (phase not in _REPEATABLE or self._is_over()):
                self._close()
        last = self.last_ns
        # read before anything else: the next line may start a garbage collection, which makes marks too
        self.last_ns = now = perf_counter_ns()
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
        """The thread leaves the phase that it entered last."""
        phase, last = self.phase, self.last_ns
        self.last_ns = now = perf_counter_ns()
        # after its last gradient, a rank only waits for the gradients of the others
        if phase == BACKWARD and last < self.ready_ns <= now:
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
            if phase >= CHECKPOINT:  # after a save or a collection the thread is where it was before
                self.phase = -1 - outer
            view[PHASE] = EVALUATE if self.evaluating else _IDLE_PHASE[self.phase]
        view[MOVED_NS] = now
        device = self.device
        if device is not None and device.sampling:
            device.mark(phase)

    def ready(self) -> None:
        """The last gradient of this rank is computed. Another thread may call this (autograd's, on CUDA)."""
        now = perf_counter_ns()
        self.ready_ns = now
        view = self.view
        view[PHASE] = COMM
        view[MOVED_NS] = now
        device = self.device
        if device is not None and device.sampling:
            device.ready()

    # -- The meaning of marks ------------------------------------------------------------------------------------------

    def enter_evaluation(self) -> bool:
        """A root module is called without gradients: the program evaluates since it requested the batch."""
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
        """A framework begins or ends an evaluation. The time between marks belongs to the evaluation until it ends."""
        if not self.inside and self.evaluating != yes and self.enter(EVALUATE):
            self.leave()
            self.evaluating = yes

    def has_begun(self) -> bool:
        """Whether the step with the current number has begun and is not closed yet."""
        row = self.row
        return self.closable or self.phase in _REPEATABLE or bool(row[FORWARD] or row[BACKWARD])

    def enter_optimizer(self, optimizer: object) -> bool:
        """An optimizer steps. If it has already stepped in this step, a new step begins."""
        if self.closable and id(optimizer) in self.stepped and get_ident() == self.thread:
            self.expected &= self.stepped  # the other optimizers did not step
            self._close()
        return self.enter(OPTIMIZER)

    def leave_optimizer(self, optimizer: object, *, skipped: bool = False) -> bool:
        """An optimizer has stepped or skipped its update. If no other optimizer steps, the step is complete.

        Returns False for another thread.
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
        """The SDK's own work after an optimizer belongs to its step, which the program has not ended yet."""
        if self.closable:
            last = self.last_ns
            self.last_ns = now = perf_counter_ns()
            self.row[OTHER] += now - last
            self.marks.append((OTHER, last, now))

    # -- Steps without marks -------------------------------------------------------------------------------------------

    def expect(self, optimizer: object) -> None:
        """An optimizer exists. With several optimizers all steps are marked, to see which of them belong together."""
        self.expected.add(id(optimizer))
        if len(self.expected) > 1:
            self.light = False

    def _lighten(self) -> None:
        """Skips the marks of the next steps where steps are so short that marks would be noticeable."""
        if self.light:
            self.row[FLAGS] |= LIGHT
        device = self.device
        alone = self.every > 1 and len(self.expected) < 2 and not self.inside
        self.light = alone and not (device is not None and device.sampling)
        if self.light:
            self._close()

    def passed(self) -> None:
        """Enough steps were not marked, or something was marked between them: an evaluation or a save."""
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
        self.ring.write_lengths(self.begin_ns, self.ends)
        self.begin_ns = self.last_ns = self.ends[-1]
        self.ends.clear()

    # -- The end of a step ---------------------------------------------------------------------------------------------

    def name(self, text: str, from_ns: int, to_ns: int) -> None:
        """Adds a span that the program named."""
        if len(self.named) < MAX_MARKS:
            self.named.append((text, from_ns, to_ns))

    def finish(self) -> None:
        """The program has ended: closes the step if it is complete."""
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
        count, end = self.count, self.last_ns  # the end of the optimizer, or of the backward in which it stepped
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
            self.whole_at = max(2 * count, 1) if count < LAST_DOUBLING else 1 << 62  # until a window boundary is chosen
        if len(self.marks) < MAX_MARKS:  # otherwise a long evaluation between two steps has dropped some marks
            self.kept.append(KeptStep(count, self.begin_ns, end, list(self.marks), list(self.named), slow))


def cost_of_marks_ns(steps: int = 50) -> int:
    """A rough estimate of what the marks of a step cost on this machine, measured with warm caches."""
    from pyrometer.train.steps.ring import Ring

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
