"""Time on the GPU: events on the stream of sampled steps, read a step or more later, never waited for.

The host runs ahead of the GPU, so only the GPU's own clock says how long a phase took there: an event is recorded at
every mark of a sampled step, and what lies between two of them is what the GPU did, or waited, in that phase. Recording
one costs some 10 µs of the host, so steps are sampled: as many as the budget allows, by what it measures itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from pyrometer.train.ring import BACKWARD, COMM, MEASURED

BUDGET_NS = 20_000  # a step, on average, for everything that the SDK does on the host
BUDGET_SHARE = 0.02  # and never more than this of a step
MOST_PENDING = 32
MOST_RESOLVED = 4_096
SLOWLY = 16  # the newest step counts for one part in as many


class Timed(NamedTuple):
    """A sampled step as the GPU saw it: milliseconds by phase."""

    number: int  # of the step, in this process
    amounts_ms: list[float]


class _Pending(NamedTuple):
    number: int
    first: Any
    marks: list[tuple[int, Any]]
    copies: list[tuple[Any, Any]]  # (what to call with the number, where it will be)


class Device:
    """The CUDA side of a recorder. All of it runs on the training thread, but for `ready`."""

    def __init__(self, torch: Any, base_ns: int) -> None:
        self._cuda = torch.cuda
        self._new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)
        self._capturing = torch.cuda.is_current_stream_capturing
        self._pool: list[Any] = []
        self._free_slots = list(torch.zeros(MOST_PENDING, dtype=torch.float64, pin_memory=True).unbind())
        self._pending: deque[_Pending] = deque()
        self.resolved: deque[Timed] = deque(maxlen=MOST_RESOLVED)
        self.sampling = False
        self._first: Any = None
        self._marks: list[tuple[int, Any]] = []
        self._copies: list[tuple[Any, Any]] = []
        self._ready: Any = None
        self._base_ns = base_ns  # what the marks of a step cost without events
        self._spent_ns = 0  # on this sampled step
        self._sampled_ns = 200_000.0  # what a sampled step costs more, on average
        self._step_ns = 0.0
        self._last_end_ns = 0
        self.every = 16  # one step in so many is sampled
        self.next_at = 2

    # -- a sampled step -----------------------------------------------------------------------------------------------

    def mark(self, phase: int) -> None:
        """The training thread is at a mark, which ends `phase`."""
        began = perf_counter_ns()
        if self._capturing():  # a graph is being recorded: our events must not be in it
            self._drop()
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

    def copy(self, tensor: Any, then: Any) -> bool:
        """Brings one number of the GPU over, without waiting: `then` is called with it some steps later."""
        if not self.sampling or not self._free_slots or self._capturing():
            return False
        began = perf_counter_ns()
        slot = self._free_slots.pop()
        slot.copy_(tensor, non_blocking=True)
        self._copies.append((then, slot))
        self._spent_ns += perf_counter_ns() - began
        return True

    def step_ended(self, count: int) -> None:
        """An optimizer has stepped: a sampled step is complete, and perhaps the next one is sampled."""
        began = perf_counter_ns()
        if self._last_end_ns:
            took = began - self._last_end_ns
            self._step_ns += (took - self._step_ns) / (SLOWLY if self._step_ns else 1)
        self._last_end_ns = began
        if self.sampling:
            self.sampling = False
            if self._marks:
                self._pending.append(_Pending(count, self._first, self._marks, self._copies))
            self._marks, self._copies, self._ready = [], [], None
        if self._pending:
            self._resolve()
        if count + 1 >= self.next_at and len(self._pending) < MOST_PENDING and not self._capturing():
            self._first = self._record()
            self.sampling = True
            self._settle(perf_counter_ns() - began)
            self.next_at = count + 1 + self.every

    def _settle(self, now_ns: int) -> None:
        """From what a sampled step cost, how many may be."""
        spent, self._spent_ns = self._spent_ns, now_ns
        if spent:
            self._sampled_ns += (spent - self._sampled_ns) / SLOWLY
        budget = BUDGET_NS if not self._step_ns else min(BUDGET_NS, BUDGET_SHARE * self._step_ns)
        left = budget - self._base_ns
        self.every = max(1, min(1024, round(self._sampled_ns / left + 0.5) if left > 0 else 1024))

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
            self.resolved.append(Timed(pending.number, amounts))
            self._pool.append(pending.first)
            self._pool.extend(event for _, event in pending.marks)
            for then, slot in pending.copies:
                then(slot.item())
                self._free_slots.append(slot)

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event

    def _drop(self) -> None:
        self.sampling = False
        self._marks = []
        self._free_slots.extend(slot for _, slot in self._copies)
        self._copies = []
        self._ready = None
