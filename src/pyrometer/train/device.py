"""Time on the GPU: events on the stream of sampled steps, read a step or more later, never waited for.

The host runs ahead of the GPU, so only the GPU's own clock says how long a phase took there: an event is recorded at
every mark of a sampled step, and what lies between two of them is what the GPU did, or waited, in that phase. Recording
one costs some 10 µs of the host, so steps are sampled: as many as the budget allows, by what it measures itself. A
number (the loss) is copied to memory that the host looks at later; that costs as much, and is on a budget of its own.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from pyrometer.train.ring import BACKWARD, COMM, MEASURED

EVENTS_NS = 10_000  # a step, on average, for recording events
EVENTS_SHARE = 0.01  # and never more than this of a step
COPY_SHARE = 0.001  # of the time may go into copying the loss: every step's from 10 ms on
MAX_PENDING_STEPS = 32
MAX_COPIES = 128
_SENTINELS = {8: ("q", 0x7FF8_0BAD_0BAD_0BAD), 4: ("i", 0x7FC0_0BAD), 2: ("h", 0x7FEB)}  # no number that a GPU makes
MAX_RESOLVED_STEPS = 4_096
AVERAGE_OVER = 16  # the newest step counts for one part in as many


class TimedStep(NamedTuple):
    """A sampled step as the GPU saw it: milliseconds by phase."""

    number: int  # of the step, in this process
    amounts_ms: list[float]


class _PendingStep(NamedTuple):
    number: int
    first: Any
    marks: list[tuple[int, Any]]


class _PinnedSlots:
    """Pinned memory for numbers of one type. Each place holds a pattern that no GPU writes, until one has written."""

    def __init__(self, torch: Any, dtype: Any) -> None:
        code, self._sentinel = _SENTINELS[dtype.itemsize]
        numbers = torch.empty(MAX_COPIES, dtype=dtype, pin_memory=True)
        whole = (ctypes.c_char * (MAX_COPIES * dtype.itemsize)).from_address(numbers.data_ptr())
        self._memory: memoryview[int] = memoryview(whole).cast("B").cast(code)  # type: ignore[call-overload]
        self._tensors = list(numbers.unbind())
        self._free = list(range(MAX_COPIES))

    def copy(self, tensor: Any) -> int | None:
        """Lets the GPU write it to a place; None: there is none left."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._memory[slot] = self._sentinel
        self._tensors[slot].copy_(tensor, non_blocking=True)
        return slot

    def read(self, slot: int) -> float | None:
        """What was written there; the place is free again. None: nothing yet."""
        if self._memory[slot] == self._sentinel:
            return None
        number = float(self._tensors[slot].item())
        self._free.append(slot)
        return number


class CudaTimer:
    """The CUDA side of a recorder. All of it runs on the training thread, but for `ready`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)
        self._capturing = torch.cuda.is_current_stream_capturing
        self._pool: list[Any] = []
        self._slots: dict[Any, _PinnedSlots] = {}
        self._copies: deque[tuple[_PinnedSlots, int, Callable[[float], None]]] = deque()
        self._copy_ns = 10_000.0  # what a copy costs, on average
        self._copy_at_ns = 0  # when there may be another
        self._pending: deque[_PendingStep] = deque()
        self.resolved: deque[TimedStep] = deque(maxlen=MAX_RESOLVED_STEPS)
        self.sampling = False
        self._first: Any = None
        self._marks: list[tuple[int, Any]] = []
        self._ready: Any = None
        self._spent_ns = 0  # on this sampled step
        self._sampled_ns = 200_000.0  # what a sampled step costs more, on average
        self._step_ns = 0.0
        self._last_end: tuple[int, int] | None = None  # when, of which step
        self.every = 16  # one step in so many is sampled
        self.next_at = 2

    # -- a sampled step -----------------------------------------------------------------------------------------------

    def mark(self, phase: int) -> None:
        """The training thread is at a mark, which ends `phase`."""
        began = perf_counter_ns()
        if self._capturing():  # a graph is being recorded: our events must not be in it
            self._discard_sample()
            return
        if phase == BACKWARD and self._ready is not None:
            self._marks.append((BACKWARD, self._ready))
            self._ready = None
            phase = COMM
        self._marks.append((phase, self._record()))
        self._spent_ns += perf_counter_ns() - began

    def ready(self) -> None:
        """The last gradient is there; autograd's thread has the stream that computed it."""
        began = perf_counter_ns()
        if not self._capturing():
            self._ready = self._record()
        self._spent_ns += perf_counter_ns() - began

    # -- single numbers -----------------------------------------------------------------------------------------------

    def may_copy(self) -> bool:
        """Whether a loss that nobody asked for may be copied by now."""
        return perf_counter_ns() >= self._copy_at_ns

    def copy(self, tensor: Any, callback: Callable[[float], None]) -> None:
        """Brings one number of the GPU over, without waiting: `then` is called with it some steps later."""
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
        ) / AVERAGE_OVER  # a queue that is full waits
        self._copy_at_ns = max(self._copy_at_ns, now) + round(self._copy_ns / COPY_SHARE)

    def read_copies(self) -> None:
        """Hands on the numbers that have arrived, the oldest first."""
        while self._copies:
            slots, slot, callback = self._copies[0]
            number = slots.read(slot)
            if number is None:
                return
            self._copies.popleft()
            callback(number)

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_ended(self, count: int) -> None:
        """An optimizer has stepped: a sampled step is complete, and perhaps the next one is sampled."""
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
        """From what a sampled step cost, how many may be."""
        spent, self._spent_ns = self._spent_ns, now_ns
        if spent:
            self._sampled_ns += (spent - self._sampled_ns) / AVERAGE_OVER
        budget = min(EVENTS_NS, EVENTS_SHARE * self._step_ns) if self._step_ns else EVENTS_NS
        self.every = max(1, min(1024, round(self._sampled_ns / budget + 0.5)))

    def _resolve(self) -> None:
        """Reads what the GPU has finished, the oldest first."""
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
