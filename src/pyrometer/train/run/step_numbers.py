"""Global step numbers: the number of the first step of this process, and how it becomes known."""

from __future__ import annotations

from collections.abc import Collection

from pyrometer.train.run.outbox import Outbox
from pyrometer.train.steps import ring

MIN_LOGGED_STEPS = 3
MIN_OFFSET = 10  # steps; a smaller offset may be a program that counts from 1, or logs ahead of the optimizer


class StepNumbers:
    """Maps the steps of this process, which are counted from 0, to the numbers of the whole run.

    Sources in order of trust: `pyrometer.init`, the framework or the checkpoint, the steps that the program logs.
    """

    def __init__(self, rank_ring: ring.Ring, outbox: Outbox, first_step: int | None) -> None:
        self._view = rank_ring.view
        self._outbox = outbox
        self._view[ring.FIRST_STEP] = first_step or 0
        self._is_configured = self.is_known = first_step is not None

    def number(self, count: int) -> int:
        """The global number of the step that this process counts as `count`."""
        return self._view[ring.FIRST_STEP] + count

    def begin_at(self, step: int) -> None:
        """Sets the global number of the first step of this process."""
        self.is_known = True
        self._view[ring.FIRST_STEP] = step
        if step:
            self._outbox.run(resumed_step=step, urgent=True)  # so that an attempt that ends at once is known to resume

    def take_from_framework(self, step: int) -> None:
        """A framework reports the step it begins with. It knows better than the state of an optimizer."""
        if step != self.number(0) and not self._is_configured:
            self.begin_at(step)

    def take_from_logs(self, logged: Collection[tuple[int, int]]) -> None:
        """Detects a resumed program by the steps it logs: all of them are ahead of ours by the same large number."""
        offsets = {step - count for count, step in logged}
        if not self.is_known and len(logged) >= MIN_LOGGED_STEPS and len(offsets) == 1 and min(offsets) >= MIN_OFFSET:
            self.begin_at(offsets.pop())
