"""How a rank ends: which exception or exit code explains it, and with which outcome."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from pyrometer.train.run import exits
from pyrometer.train.steps import ring

if TYPE_CHECKING:
    from pyrometer.train.run.outbox import Outbox
    from pyrometer.train.ship.spool import Message
    from pyrometer.train.steps.recorder import Recorder


class _FailedExit(NamedTuple):
    """The program began to exit with a failure."""

    step_count: int  # steps by then: a program that trains on has changed its mind
    error: BaseException | None


class Ending:
    """Observes how the program exits. The watcher reads the exit code itself from the ring, where it is stored."""

    def __init__(self, recorder: Recorder, outbox: Outbox) -> None:
        self._ring = recorder.ring
        self._recorder = recorder
        self._outbox = outbox
        self._failed_exit: _FailedExit | None = None

    def exiting(self, code: Any, caught: BaseException | None) -> None:
        """The program calls `sys.exit`, perhaps because of an exception that it caught."""
        failed = code not in (None, 0)
        if failed and not _is_failure(caught):
            caught = SystemExit(code)
        self._failed_exit = _FailedExit(self._recorder.count, caught) if failed else None
        self._ring.view[ring.LEFT_NS] = time.perf_counter_ns() if failed else 0

    def exiting_at_once(self, code: Any, caught: BaseException | None, *, can_report: bool) -> Message | None:
        """The program calls `os._exit`. Returns the exception that explains a failure, if it can be reported."""
        self._ring.view[ring.BEAT_NS] = self._ring.view[ring.LEFT_NS] = time.perf_counter_ns()
        error = exits.uncaught() or caught
        return self._explanation(error) if code and can_report and _is_failure(error) else None

    def child_exiting(self) -> None:
        """A process of `multiprocessing` exits. `multiprocessing` handles the exception itself, after this."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            self.exiting(error.code, error.__context__)
        elif error is not None:
            self._failed_exit = _FailedExit(self._recorder.count, error)

    def failed(self, error: BaseException) -> None:
        """An exception ended the training, but a framework keeps the process."""
        self._outbox.messages.append(_exception(error, time.time_ns() // 1_000_000))

    def conclude(self) -> str | None:
        """The process ends. Returns the outcome of the rank, or None where the watcher reads the exit code."""
        failed = self._failed_exit
        if failed is not None and failed.step_count != self._recorder.count:
            failed = None
        error = exits.uncaught() or (failed.error if failed is not None else None)
        if failed is None or not self._ring.view[ring.LEFT_NS]:
            self._ring.view[ring.LEFT_NS] = time.perf_counter_ns()
        if _is_failure(error):
            self._outbox.messages.append(self._explanation(error))
        if self._ring.stores_exit():
            return None
        if failed is None and isinstance(error, KeyboardInterrupt):
            return "killed"
        return "succeeded" if failed is None and error is None else "failed"

    def _explanation(self, error: BaseException) -> Message:
        """The exception that explains the exit code, with the time at which the program began to exit."""
        view = self._ring.view
        view[ring.EXPLAINED] = 1
        return _exception(error, self._ring.wall_ns(view[ring.LEFT_NS]) // 1_000_000)


def _exception(error: BaseException, at_ms: int) -> Message:
    fields = {"kind": "exception", "reason": type(error).__name__, "message": exits.describe(error)}
    return "event", {"time_ms": at_ms, **fields}


def _is_failure(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether an exception explains a failure. Of those that end a program on purpose, only one with a message does."""
    if isinstance(error, SystemExit):
        return not isinstance(error.code, int | None)
    return error is not None and not isinstance(error, KeyboardInterrupt)
