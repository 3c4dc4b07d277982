"""Judges whether this rank makes progress, and reports where it is stuck, with its stack."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections import deque
from pathlib import Path
from statistics import median
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from pyrometer.train.run.stall_limits import stall_limits_s
from pyrometer.train.steps import ring, training_loop

if TYPE_CHECKING:
    from pyrometer.train.hooks.stack_timer import StackTimer
    from pyrometer.train.run.outbox import Outbox
    from pyrometer.train.run.step_numbers import StepNumbers
    from pyrometer.train.steps.recorder import Recorder

MAX_STACK_CHARACTERS = 16_384
SLOW_STEP_DECAY = 0.9  # per window: how fast a slow step is forgotten


class ProgressMonitor:
    """Looks about once a second at how long the training thread has been where it is."""

    def __init__(
        self, recorder: Recorder, outbox: Outbox, steps: StepNumbers, stack_timer: StackTimer, hang_limit_s: float
    ) -> None:
        self._ring = recorder.ring
        self._recorder = recorder
        self._outbox = outbox
        self._steps = steps
        self._stack_timer = stack_timer
        self._hang_limit_s = hang_limit_s
        self._loops: list[training_loop.Loop] = []  # candidates for the training loop, the innermost first
        self._slow_step_s = 0.0
        self._slowest_steps_s: deque[float] = deque([0.0] * 4, maxlen=5)  # the slowest step of each of the last windows
        self._left_loop = False  # the current report is `loop_ended`, not `stuck`
        self._stack_file: IO[str] | None = None
        self._cannot_write_stack = False

    # -- limits -------------------------------------------------------------------------------------------------------

    def limits_s(self) -> dict[str, float]:
        """How long this rank may make no progress, by phase."""
        return stall_limits_s(self._hang_limit_s, self._slow_step_s)

    def observe_slowest_step(self, slow_s: float) -> None:
        """Adapts the limits to the slowest step of a window."""
        self._slowest_steps_s.append(slow_s)
        if slow_s > self.limits_s()["default"]:
            slow_s = median(self._slowest_steps_s)  # a single step that hung must not raise the limit
        self._slow_step_s = max(slow_s, SLOW_STEP_DECAY * self._slow_step_s)

    # -- the training loop --------------------------------------------------------------------------------------------

    def find_loops(self, torch: Any) -> None:
        """Finds the loops of the program that the calling thread is in, at the end of its first step."""
        libraries = (Path(torch.__file__).parent, Path(__file__).parent.parent)
        self._loops = training_loop.enclosing_loops(sys._getframe(), [f"{folder}{os.sep}" for folder in libraries])

    def still_in_loop(self, frame: FrameType) -> None:
        """Drops loops that the program has left while it trains: they are only a part of the training loop."""
        if len(self._loops) > 1:
            self._loops = [one for one in self._loops if one.contains(frame)] or self._loops

    # -- judgment -----------------------------------------------------------------------------------------------------

    def check(self, now_ns: int) -> None:
        """Reports when the rank gets stuck and when it continues."""
        view, recorder = self._ring.view, self._recorder
        moved_ns, phase = view[ring.MOVED_NS], ring.PHASES[view[ring.PHASE]]
        if view[ring.STUCK_NS] and moved_ns != view[ring.STUCK_NS]:  # reported by this rank or by the watcher
            self._report_unstuck(moved_ns)
        limits_s = self.limits_s()
        limit_s = limits_s.get(phase, limits_s["default"]) if recorder.count else limits_s["startup"]
        trains = bool(recorder.expected) or recorder.count > 0
        still_ns = now_ns - moved_ns
        if trains and not view[ring.STUCK_NS] and still_ns > limits_s["default"] * 1e9:
            frame = sys._current_frames().get(recorder.thread)
            # A program that has left its loop is not inside a long evaluation or checkpoint of that loop.
            left_loop = bool(self._loops) and not recorder.inside and not self._loops[0].contains(frame)
            if left_loop or still_ns > limit_s * 1e9:
                self._report_stuck(moved_ns, phase, frame, left_loop=left_loop)
        self._arm_stack_timer(limit_s)

    def _report_stuck(self, moved_ns: int, phase: str, frame: FrameType | None, *, left_loop: bool) -> None:
        self._ring.view[ring.STUCK_NS] = moved_ns
        self._left_loop = left_loop
        at_ms, step = self._ring.wall_ns(moved_ns) // 1_000_000, self._steps.number(self._recorder.count)
        if left_loop:
            self._outbox.event("loop_ended", at_ms=at_ms, step=step)
        else:
            stack = "".join(traceback.format_stack(frame))[-MAX_STACK_CHARACTERS:] if frame else ""
            self._outbox.event("stuck", at_ms=at_ms, step=step, reason=phase, message=stack)
        self._outbox.event("alive", urgent=True)  # its time tells how long the rank has been stuck by now

    def _report_unstuck(self, moved_ns: int) -> None:
        kind = "loop_resumed" if self._left_loop else "unstuck"
        self._left_loop = False
        self._ring.view[ring.STUCK_NS] = 0
        at_ms, step = self._ring.wall_ns(moved_ns) // 1_000_000, self._steps.number(self._recorder.count)
        self._outbox.event(kind, at_ms=at_ms, step=step, urgent=True)

    # -- the stack of a blocked interpreter ---------------------------------------------------------------------------

    def _arm_stack_timer(self, limit_s: float) -> None:
        """If this thread does not run again in time, C code holds the interpreter: C then writes the stack itself."""
        if self._cannot_write_stack or self._stack_timer.is_taken:
            return
        try:
            if self._stack_file is None:
                self._stack_file = self._ring.path.with_suffix(".stack").open("w")
            self._stack_timer.arm(limit_s + 1, self._stack_file)
        except (OSError, ValueError, RuntimeError):
            self._cannot_write_stack = True

    def close(self) -> None:
        """Stops the timer that would write the stack."""
        if not self._stack_timer.is_taken and self._stack_file is not None:
            faulthandler.cancel_dump_traceback_later()
