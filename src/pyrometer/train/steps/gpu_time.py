"""Time on the GPU: events on the stream of sampled steps, which are read a step or more later and never waited for.

The host runs ahead of the GPU, so only the GPU's clock knows how long a phase took there. An event is recorded at every
mark of a sampled step. The time between two events is what the GPU did, or waited for, in that phase. Recording an
event costs the host about 10 µs, so only as many steps are sampled as the measured cost allows. A number like the loss
is copied to memory that the host reads later. That costs as much and has a budget of its own.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from pyrometer.train.steps.ring import BACKWARD, COMM, MEASURED

EVENTS_NS = 10_000  # per step on average, for recording events
EVENTS_SHARE = 0.01  # of a step, at most
COPY_SHARE = 0.001  # of the time, for copying losses: the loss of every step from 10 ms on
MAX_PENDING_STEPS = 32
MAX_COPIES = 128
# bit patterns that no GPU writes
_SENTINELS = {8: ("q", 0x7FF8_0BAD_0BAD_0BAD), 4: ("i", 0x7FC0_0BAD), 2: ("h", 0x7FEB)}
MAX_RESOLVED_STEPS = 4_096
AVERAGE_OVER = 16  # steps


class TimedStep(NamedTuple):
    """A sampled step on the GPU: milliseconds by phase."""

    number: int  # of the step, in this process
    amounts_ms: list[float]


class _PendingStep(NamedTuple):
    number: int
    first: Any
    marks: list[tuple[int, Any]]


class _PinnedSlots:
    """Pinned memory for numbers of one type. A slot contains a pattern that no GPU writes until its number arrives."""

    def __init__(self, torch: Any, dtype: Any) -> None:
        code, self._sentinel = _SENTINELS[dtype.itemsize]
        numbers = torch.empty(MAX_COPIES, dtype=dtype, pin_memory=True)
        whole = (ctypes.c_char * (MAX_COPIES * dtype.itemsize)).from_address(numbers.data_ptr())
        self._memory: memoryview[int] = memoryview(whole).cast("B").cast(code)  # type: ignore[call-overload]
        self._tensors = list(numbers.unbind())
        self._free = list(range(MAX_COPIES))

    def copy(self, tensor: Any) -> int | None:
        """Starts to copy a number to a free slot; None if there is none."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._memory[slot] = self._sentinel
        self._tensors[slot].copy_(tensor, non_blocking=True)
        return slot

    def read(self, slot: int) -> float | None:
        """Reads a slot and frees it; None if the number has not arrived."""
        if self._memory[slot] == self._sentinel:
            return None
        number = float(self._tensors[slot].item())
        self._free.append(slot)
        return number


class CudaTimer:
    """Times the phases of sampled steps on the GPU. Only `ready` may be called by another thread than the training
    thread."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)
        self._capturing = torch.cuda.is_current_stream_capturing
        self._pool: list[Any] = []
        self._slots: dict[Any, _PinnedSlots] = {}
        self._copies: deque[tuple[_PinnedSlots, int, Callable[[float], None]]] = deque()
        self._copy_ns = 10_000.0  # of one copy, on average
        self._copy_at_ns = 0  # when the next copy is allowed
        self._pending: deque[_PendingStep] = deque()
        self.resolved: deque[TimedStep] = deque(maxlen=MAX_RESOLVED_STEPS)
        self.sampling = False
        self._first: Any = None
        self._marks: list[tuple[int, Any]] = []
        self._ready: Any = None
        self._spent_ns = 0  # on the current sampled step
        self._sampled_ns = 200_000.0  # how much more a sampled step costs, on average
        self._step_ns = 0.0
        self._last_end: tuple[int, int] | None = None  # when it ended, and its number
        self.every = 16  # one in this many steps is sampled
        self.next_at = 2

    # -- A sampled step ------------------------------------------------------------------------------------------------

    def mark(self, phase: int) -> None:
        """The training thread is at a mark that ends `phase`."""
        began = perf_counter_ns()
        if self._capturing():  # a CUDA graph is being captured, and must not contain these events
            self._discard_sample()
            return
        if phase == BACKWARD and self._ready is not None:
            self._marks.append((BACKWARD, self._ready))
            self._ready = None
            phase = COMM
        self._marks.append((phase, self._record()))
        self._spent_ns += perf_counter_ns() - began

    def ready(self) -> None:
        """The last gradient is computed. Autograd's thread uses the stream that computed it."""
        began = perf_counter_ns()
        if not self._capturing():
            self._ready = self._record()
        self._spent_ns += perf_counter_ns() - began

    # -- Single numbers ------------------------------------------------------------------------------------------------

    def may_copy(self) -> bool:
        """Whether the budget allows to copy a loss now."""
        return perf_counter_ns() >= self._copy_at_ns

    def copy(self, tensor: Any, callback: Callable[[float], None]) -> None:
        """Copies a number from the GPU without waiting. `callback` gets it some steps later."""
        if self._capturing():
            return
        dtype = tensor.dtype
        if not dtype.is_floating_point or dtype.itemsize not in _SENTINELS:
            tensor, dtype = tensor.double(), self._torch.float64
        slots = self._slots.get(dtype)
        if slots is None:
            slots = self._slots[dtype] = _PinnedSlots(self._torch, dtype)
        began = perf_counter_ns()
        slot = slots.copy(tensor)
        if slot is not None:
            self._copies.append((slots, slot, callback))
        now = perf_counter_ns()
        self._copy_ns += (
            min(now - began, 4 * self._copy_ns) - self._copy_ns
        ) / AVERAGE_OVER  # a full queue blocks, which is not the cost of a copy
        self._copy_at_ns = max(self._copy_at_ns, now) + round(self._copy_ns / COPY_SHARE)

    def read_copies(self) -> None:
        """Passes on the numbers that have arrived, the oldest first."""
        while self._copies:
            slots, slot, callback = self._copies[0]
            number = slots.read(slot)
            if number is None:
                return
            self._copies.popleft()
            callback(number)

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def step_ended(self, count: int) -> None:
        """An optimizer has stepped: completes a sampled step, and decides whether the next step is sampled."""
        began = perf_counter_ns()
        if self._last_end is not None and count > self._last_end[1]:
            took = (began - self._last_end[0]) / (count - self._last_end[1])
            self._step_ns += (took - self._step_ns) / (AVERAGE_OVER if self._step_ns else 1)
        self._last_end = (began, count)
        if self.sampling:
            self.sampling = False
            if self._marks:
                self._pending.append(_PendingStep(count, self._first, self._marks))
            self._marks, self._ready = [], None
        if self._copies:
            self.read_copies()
        if self._pending:
            self._resolve()
        if count + 1 >= self.next_at and len(self._pending) < MAX_PENDING_STEPS and not self._capturing():
            self._first = self._record()
            self.sampling = True
            self._settle(perf_counter_ns() - began)
            self.next_at = count + 1 + self.every

    def _settle(self, now_ns: int) -> None:
        """Adapts the sampling rate to what sampled steps cost."""
        spent, self._spent_ns = self._spent_ns, now_ns
        if spent:
            self._sampled_ns += (spent - self._sampled_ns) / AVERAGE_OVER
        budget = min(EVENTS_NS, EVENTS_SHARE * self._step_ns) if self._step_ns else EVENTS_NS
        self.every = max(1, min(1024, round(self._sampled_ns / budget + 0.5)))

    def _resolve(self) -> None:
        """Reads the steps that the GPU has finished, the oldest first."""
        while self._pending:
            pending = self._pending[0]
            if not pending.marks[-1][1].query():
                return
            self._pending.popleft()
            amounts = [0.0] * MEASURED
            before = pending.first
            for phase, event in pending.marks:
                amounts[phase] += max(0.0, before.elapsed_time(event))
                before = event
            self.resolved.append(TimedStep(pending.number, amounts))
            self._pool.append(pending.first)
            self._pool.extend(event for _, event in pending.marks)

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event

    def _discard_sample(self) -> None:
        self.sampling = False
        self._marks = []
        self._ready = None
