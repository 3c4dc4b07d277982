"""Closes step windows: steps of the ring become messages, and limits and budgets adapt to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyrometer.train.steps import fold, ring
from pyrometer.train.steps.mark_budget import MarkBudget

if TYPE_CHECKING:
    from pyrometer.train.run.meeting import Meeting
    from pyrometer.train.run.outbox import Outbox
    from pyrometer.train.run.stall_detection import ProgressMonitor
    from pyrometer.train.steps.gpu_memory import GpuMemory
    from pyrometer.train.steps.recorder import Recorder
    from pyrometer.train.steps.sample_lineage import Lineage

MIN_STEPS_FOR_BUDGET = 32  # steps, to know how long a step takes before the first window is closed
WORK_COLUMNS = {"samples": ring.SAMPLES, "tokens": ring.TOKENS}


class StepWindows:
    """The windows of one rank. All ranks end their windows at the same steps, which the meeting decides."""

    def __init__(
        self,
        recorder: Recorder,
        outbox: Outbox,
        meeting: Meeting,
        progress: ProgressMonitor,
        lineage: Lineage,
        identity: dict[str, Any],
        flops_per_sample: float,
    ) -> None:
        self._ring = recorder.ring
        self._recorder = recorder
        self._outbox = outbox
        self._meeting = meeting
        self._progress = progress
        self._lineage = lineage
        self._identity = identity
        self.flops = flops_per_sample  # per sample, or per token where steps have tokens
        self._flops_per = "samples"
        self.budget = MarkBudget(recorder)
        self.memory: GpuMemory | None = None

    def set_flops(self, operations: int) -> None:
        """The current step has taken this many operations so far."""
        samples, tokens = (self._recorder.row[column] for column in WORK_COLUMNS.values())
        self._flops_per = "tokens" if tokens else "samples"
        if operations and (tokens or samples):
            self.flops = operations / (tokens or samples)

    def close_complete(self) -> bool:
        """Closes the windows whose last step is complete. Returns whether there was one."""
        view = self._ring.view
        count = view[ring.COUNT]
        folded = max(view[ring.FOLDED], 1)
        if folded == 1 and count > MIN_STEPS_FOR_BUDGET:
            self._apply_budget(fold.median_step_ns(self._ring, count - MIN_STEPS_FOR_BUDGET, count))
        closed = False
        while True:
            after = self._meeting.window_end(folded, count, self._steps_s)
            if after is None or after > count:
                break
            self._close(folded, after)
            folded = after
            closed = True
        if self._meeting.size:
            boundary = (count // self._meeting.size + 1) * self._meeting.size
            if self._recorder.whole_at > boundary or self._recorder.whole_at < count:
                self._recorder.whole_at = boundary
        return closed

    def close_last(self) -> None:
        """Closes the window of all steps that are left."""
        folded = max(self._ring.view[ring.FOLDED], 1)
        if folded < self._ring.view[ring.COUNT]:
            self._close(folded, self._ring.view[ring.COUNT])

    def _steps_s(self, first: int, after: int) -> float:
        """How long the steps from `first` to before `after` took."""
        (begin_ns,) = self._ring.column(ring.BEGIN_NS, first, first + 1)
        (end_ns,) = self._ring.column(ring.END_NS, after - 1, after)
        return (end_ns - begin_ns) / 1e9

    def _close(self, first: int, after: int) -> None:
        timer = self._recorder.device
        window = fold.window(self._ring, first, after, list(timer.resolved) if timer is not None else ())
        self._ring.view[ring.FOLDED] = after
        if window is None:
            return
        if timer is not None:
            while timer.resolved and timer.resolved[0].number < after:
                timer.resolved.popleft()
        if self.memory is not None:
            window |= self.memory.fields()
        if self.flops and window.get(self._flops_per):
            window["flops"] = int(self.flops * window[self._flops_per])
        self._outbox.messages.append(("window", window))
        self._progress.observe_slowest_step(window["step_max_us"] / 1e6)
        step_ns = window["step_p50_us"] * 1000
        self._recorder.slow_ns = 2 * step_ns
        self.budget.measure(first, after)
        self._apply_budget(step_ns)

    def _apply_budget(self, step_ns: int) -> None:
        """All steps are marked with several ranks, to see in which phase one waits for another, and with a loader,
        because all its batches are paired with steps."""
        self.budget.apply(step_ns, can_skip=self._identity["ranks"] == 1 and not self._lineage.loaders)
