"""Progress bars for long work, on stderr and only on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_S = 1.0  # shorter work shows no bar


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what)
    started_s = time.monotonic()
    running = False

    def progress(done: int, total: int) -> None:
        nonlocal running
        if not running and time.monotonic() - started_s > QUIET_S and done < total:
            bar.start()
            running = True
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if running:
            bar.stop()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner for work whose progress is unknown."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(what)
    timer = threading.Timer(QUIET_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the spinner right now
        status.stop()
