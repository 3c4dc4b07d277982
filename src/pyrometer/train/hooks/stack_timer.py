"""The timer of `faulthandler`, which writes the stack of a blocked interpreter. A process has only one."""

from __future__ import annotations

import faulthandler
import threading
from typing import IO, Any

from pyrometer.train.hooks.patching import Original, wrap


class StackTimer:
    """Shares the timer with the program: as soon as the program uses it, the SDK does not."""

    def __init__(self) -> None:
        self.is_taken = False
        self._original = faulthandler.dump_traceback_later
        self._lock = threading.Lock()
        wrap(faulthandler, "dump_traceback_later", self._program_arms)

    def arm(self, after_s: float, file: IO[str]) -> None:
        """Writes all stacks to the file after this time, unless it is called again before."""
        with self._lock:
            self._original(after_s, file=file)

    def before_fork(self, *, armed: bool) -> None:
        """Stops the timer until the next beat: its thread is not copied, and a fork would wait for it."""
        self._lock.acquire()
        if armed and not self.is_taken:
            faulthandler.cancel_dump_traceback_later()

    def after_fork(self) -> None:
        """Continues, in the parent and in the child."""
        self._lock.release()

    def _program_arms(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        self.is_taken = True
        return original(*args, **kwargs)
