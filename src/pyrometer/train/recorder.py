"""The hot path: where the training thread is, and how long it was in each phase of a step.

Every mark gives the time since the mark before to exactly one phase, so the phases of a step add up to it. A mark costs
less than half a microsecond: two clock readings of a step would be cheaper only by losing that.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrometer.train.ring import (  # isort: skip
    BACKWARD, CHECKPOINT, COMM, COMPILE, COPY, COUNT, DATA, EVALUATE, FORWARD, HEADER, MEASURED, MOVED_NS, OPTIMIZER,
    LIGHT, OTHER, PHASE, SKIPPED,
)  # fmt: skip

if TYPE_CHECKING:
    from pyrometer.train.device import Device
    from pyrometer.train.ring import Ring

# What is between two phases belongs to one of them: what follows the arrival of a batch is its copy to the device, what
# follows forward is the loss, what follows backward clips gradients, unless another batch comes first.
_AFTER = {DATA: COPY, FORWARD: FORWARD, BACKWARD: OPTIMIZER}
_BETWEEN = {
    (OTHER, FORWARD): COPY, (BACKWARD, FORWARD): COPY, (BACKWARD, DATA): OTHER, (FORWARD, DATA): OTHER,
    (FORWARD, EVALUATE): EVALUATE, (DATA, DATA): OTHER, (DATA, OPTIMIZER): OTHER, (FORWARD, OPTIMIZER): OPTIMIZER,
    (DATA, BACKWARD): FORWARD, (OTHER, BACKWARD): FORWARD,  # its forward was not seen
}  # fmt: skip
_GAP = tuple(
    tuple(_BETWEEN.get((before, after), _AFTER.get(before, OTHER)) for after in range(MEASURED))
    for before in range(MEASURED)
)
_THEN = tuple(_AFTER.get(phase, OTHER) for phase in range(MEASURED))  # where a rank is that comes no further
_AGAIN = (FORWARD, BACKWARD)  # for another optimizer, perhaps
_NOTHING = (0,) * MEASURED
MOST_KEPT = 64  # whole steps that wait to be folded
DOUBLING = 512  # first steps 1, 2, 4, 8, …: the same on all ranks, whatever they agree on later
MOST_MARKS = 4_096  # of one step: a step with more is not kept whole


class Kept(NamedTuple):
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
        "amounts", "begin_ns", "closable", "count", "device", "evaluating", "every", "expected", "flags", "inside",
        "kept", "last_ns", "light", "marks", "named", "on_close", "phase", "ready_ns", "ring", "rows",
        "samples", "slow_ns", "spilled", "stack", "stepped", "thread", "tokens", "view", "whole_at",
    )  # fmt: skip

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.view = ring.view
        self.rows = ring.rows
        self.thread = get_ident()
        self.amounts = [0] * MEASURED
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
        self.marks: list[tuple[int, int, int]] = []
        self.named: list[tuple[str, int, int]] = []
        self.kept: deque[Kept] = deque(maxlen=MOST_KEPT)
        self.whole_at = 1  # the next step that is kept whole, whatever it takes
        self.slow_ns = 1 << 62  # steps that take longer are kept whole
        self.spilled = False
        self.every = 1  # one step in so many is marked; of the others only the length is taken
        self.light = False  # the step that comes is one of those
        self.samples = self.tokens = self.flags = 0
        self.device: Device | None = None
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
        now = perf_counter_ns()
        if self.closable and phase != OPTIMIZER and not self.inside and (phase not in _AGAIN or self._is_over()):
            self._close()
        was = self.phase
        if self.inside:
            gap = FORWARD if phase == BACKWARD and was == OPTIMIZER else was  # an optimizer's closure: the loss
        else:
            gap = EVALUATE if self.evaluating else _GAP[was][phase]
        last = self.last_ns
        self.last_ns = now  # first: what follows may start a garbage collection, which marks too
        self.amounts[gap] += now - last
        marks = self.marks
        if len(marks) >= MOST_MARKS:  # a long evaluation between two steps: it is not kept whole
            marks.clear()
            self.spilled = True
        marks.append((gap, last, now))
        self.stack.append(was if self.inside else -1 - was)
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
        now = perf_counter_ns()
        phase, last, ready = self.phase, self.last_ns, self.ready_ns
        self.last_ns = now
        if phase == BACKWARD and last < ready <= now:  # after that, backward only waits for the others' gradients
            self.amounts[BACKWARD] += ready - last
            self.marks.append((BACKWARD, last, ready))
            self.amounts[COMM] += now - ready
            self.marks.append((COMM, ready, now))
        else:
            self.amounts[phase] += now - last
            self.marks.append((phase, last, now))
        outer = self.stack.pop()
        view = self.view
        if outer >= 0:
            self.phase = outer
            view[PHASE] = outer
        else:
            self.inside = False
            if phase >= CHECKPOINT:  # a save, a collection: it goes on where it was
                self.phase = -1 - outer
            then = _THEN[self.phase]
            view[PHASE] = EVALUATE if self.evaluating else then
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

    def enter_forward(self, *, gradients: bool) -> bool:
        """A root module is called. Without gradients it evaluates: since its first batch was asked for."""
        if gradients:
            self.evaluating = False
            return self.enter(FORWARD)
        if get_ident() != self.thread:
            return False
        if not self.evaluating and not self.inside:
            if self.closable:
                self._close()
            amounts = self.amounts
            for phase in (DATA, COPY, OTHER):
                amounts[EVALUATE] += amounts[phase]
                amounts[phase] = 0
            self.evaluating = True
        return self.enter(EVALUATE)

    def enter_optimizer(self, optimizer: object) -> bool:
        """An optimizer steps. One that has stepped already begins another step."""
        if self.closable and id(optimizer) in self.stepped and get_ident() == self.thread:
            self.expected &= self.stepped  # others never came
            self._close()
        return self.enter(OPTIMIZER)

    def leave_optimizer(self, optimizer: object, *, skipped: bool = False) -> None:
        """An optimizer has stepped, or had to skip its update. If no other one does, the step is over."""
        self.leave()
        self.stepped.add(id(optimizer))
        if skipped:
            self.flags |= SKIPPED
        self.closable = True
        self.evaluating = False
        device = self.device
        if device is not None:
            device.step_ended(self.count)
        if self.every > 1:
            self._lighten()

    def pass_step(self) -> None:
        """An optimizer has stepped in a step without marks."""
        if get_ident() != self.thread:
            return
        if self.closable:
            self._close()
        now = perf_counter_ns()
        self.amounts[OTHER] += now - self.last_ns
        self.last_ns = self.view[MOVED_NS] = now
        self.flags |= LIGHT
        self.closable = True
        self._lighten()

    def _lighten(self) -> None:
        """Whether the next step is marked: where steps are so short that marks would be felt, only some are."""
        device = self.device
        self.light = (
            (self.count + 1) % self.every != 0
            and len(self.expected) < 2
            and not (device is not None and device.sampling)
        )

    def name(self, text: str, from_ns: int, to_ns: int) -> None:
        """A span that the program named itself."""
        if len(self.named) < MOST_MARKS:
            self.named.append((text, from_ns, to_ns))

    def finish(self) -> None:
        """There is no more to come: a step that is over is closed."""
        if self.closable:
            self._close()

    def _is_over(self) -> bool:
        return len(self.expected) < 2 or self.expected <= self.stepped

    def _close(self) -> None:
        self.closable = False
        count, end = self.count, self.last_ns  # the optimizer's end, or that of the backward in which it stepped
        place = HEADER + count % self.rows
        rows, view = self.rows, self.view
        begin, amounts = self.begin_ns, self.amounts
        spent = 0
        for amount in amounts:
            view[place] = amount
            spent += amount
            place += rows
        view[place] = begin  # BEGIN_NS, END_NS, SAMPLES, TOKENS, FLAGS: as the ring declares them
        view[place + rows] = end
        view[place + 2 * rows] = self.samples
        view[place + 3 * rows] = self.tokens
        view[place + 4 * rows] = self.flags
        took = spent - amounts[CHECKPOINT] - amounts[EVALUATE] - amounts[COMPILE]
        slow = took > self.slow_ns
        if (slow or count >= self.whole_at) and not self.spilled and not self.flags & LIGHT:
            if count >= self.whole_at:
                self.whole_at = max(2 * count, 1) if count < DOUBLING else 1 << 62  # until another one is chosen
            self.kept.append(Kept(count, begin, end, self.marks, self.named, slow))
            self.marks = []
            self.named = []
        else:
            self.marks.clear()
            self.named.clear()
        amounts[:] = _NOTHING
        self.begin_ns = end
        self.spilled = False
        self.samples = self.tokens = self.flags = 0
        self.stepped.clear()
        self.ready_ns = 0
        self.count = count + 1
        view[COUNT] = count + 1
        if self.on_close is not None:
            self.on_close(count)


def cost_of_marks_ns(steps: int = 50) -> int:
    """What the marks of an ordinary step cost on this machine, measured."""
    from pyrometer.train.ring import Ring

    optimizer = object()
    trial = Recorder(Ring.of_nowhere())
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
    return 3 * sorted(costs)[steps // 2]  # and twice as much for getting there, looking at tensors, taking the loss
