"""The sender: one process per node takes what ranks put into the spool and sends it to a server, in order.

The sender is `pyrometer run` itself or a process next to the ranks (`start_beside`). Parts are encoded as bodies on
disk, a few ahead. A thread offers the oldest body until the server accepts it, without a limit. A body is removed after
the server has acknowledged it. If the acknowledgment gets lost, the body is sent again byte for byte, and the server
counts it once.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyrometer.train.run import environment
from pyrometer.train.ship.otlp_json import Bodies
from pyrometer.train.ship.spool import Spool, SpoolError, spool_folder
from pyrometer.train.ship.target import PostOutcome, PostResult, TargetError, TelemetryTarget, target_of
from pyrometer.train.ship.watcher import Watcher

EVERY_S = 1.0
COLLECT_EVERY_S = 5.0  # so that the messages of a rank are sent together
TIDY_EVERY_S = 10.0
MAX_BODIES_AHEAD = 8  # messages wait in parts otherwise, of which the least valuable can be dropped
PARTS_BYTES = 2**18  # encoded at a time; JSON is several times larger
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
HURRIED_PAUSE_S = 0.1
FLUSH_S, CLOSE_S = 10.0, 0.5
TAKE_OVER_S = 15.0  # the previous sender may be about to end
LOG_BYTES = 2**18


class FlushResult(NamedTuple):
    """What could not be sent."""

    files: int  # they wait for the next sender
    refused: int
    error: str  # the last response to them


class Sender:
    """Sends what is in a spool, in two threads of its own, while it holds the lock of the spool."""

    def __init__(self, spool: Spool, target: TelemetryTarget, *, watcher: Watcher | None = None) -> None:
        from pyrometer import __version__

        self._spool, self._target = spool, target
        self.watcher = watcher or Watcher(spool)
        self._bodies = Bodies(environment.read_words("PYROMETER_REDACT"), version=__version__)
        self._stop = threading.Event()
        self._hurry = threading.Event()  # the process is about to end: pauses are short
        self._news = threading.Event()  # there are new bodies
        self._log = _Log(spool.folder / "sender.log")
        self._rounds = 0
        self._refused = 0
        self._error = self._refusal = ""
        self._collector = threading.Thread(target=self._keep_collecting, name="pyrometer-collect", daemon=True)
        self._poster = threading.Thread(target=self._keep_posting, name="pyrometer-post", daemon=True)

    def start(self) -> None:
        """Starts to send. If another process sends already, this one takes over when that process ends."""
        with contextlib.suppress(OSError):
            self._spool.acquire()  # before a rank checks whether there is a sender
        self._collector.start()
        self._poster.start()

    def flush(self, limit_s: float, given_up: Callable[[], bool] = bool) -> FlushResult:
        """Sends what is in the spool, up to a time limit. The rest stays for the next sender."""
        end, rounds = time.monotonic() + limit_s, self._rounds
        self._hurry.set()
        self._news.set()
        # two complete rounds, so that ranks that have just ended are included
        _until(lambda: self._rounds >= rounds + 2, limit_s, every_s=0.02)
        self._spool.wait_sent(max(end - time.monotonic(), 0), given_up)
        files = len(self._spool.bodies()) + len(self._spool.parts())
        return FlushResult(files, self._refused, self._error if files else self._refusal)

    def close(self) -> None:
        """Stops, and lets another process send. That process repeats a body that is being sent now."""
        self._stop.set()
        self._hurry.set()
        self._news.set()
        for thread in (self._collector, self._poster):
            thread.join(CLOSE_S)  # a slow server is not waited for
        self._spool.release()

    # -- Encoding ------------------------------------------------------------------------------------------------------

    def _keep_collecting(self) -> None:
        collect_at_s = tidy_at_s = 0.0
        while not self._stop.is_set():
            try:
                if self._spool.acquire():
                    now_s = time.monotonic()
                    urgent = self.watcher.look() | self._spool.hurried()
                    if now_s >= tidy_at_s:
                        tidy_at_s = now_s + TIDY_EVERY_S
                        self._spool.tidy()
                    if urgent or now_s >= collect_at_s or self._hurry.is_set():
                        collect_at_s = now_s + COLLECT_EVERY_S
                        self.collect()
                    self._target.expire()
            except Exception as error:  # a bad file must not end the telemetry of a node
                self._log.write(f"{type(error).__name__}: {error}")
            self._rounds += 1
            self._sleep(EVERY_S)

    def _sleep(self, pause_s: float) -> None:
        """A pause that is short when the process is about to end."""
        if self._hurry.wait(pause_s):
            self._stop.wait(min(pause_s, HURRIED_PAUSE_S))

    def collect(self) -> None:
        """Encodes the oldest parts as bodies, unless enough bodies wait."""
        from gzip import compress

        while len(self._spool.bodies()) < MAX_BODIES_AHEAD:
            parts = _oldest_parts(self._spool.parts(), PARTS_BYTES)
            if not parts:
                return
            unreadable = self._bodies.unreadable
            made: list[Path] = []
            try:
                for signal, body in self._bodies.of(held for held in map(self._spool.read, parts) if held is not None):
                    made.append(self._spool.add_body(signal, compress(body, compresslevel=4, mtime=0)))
            except OSError:  # no space on the disk: try everything again later
                for path in made:
                    path.unlink(missing_ok=True)
                raise
            for part in parts:
                part.unlink(missing_ok=True)
            if self._bodies.unreadable > unreadable:
                self._log.write(f"{self._bodies.unreadable - unreadable} malformed messages were skipped.")
            self._news.set()

    # -- Sending -------------------------------------------------------------------------------------------------------

    def _keep_posting(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._news.clear()
            bodies = self._spool.bodies() if self._spool.held else []
            try:
                answer = self._post(bodies[0]) if bodies else None
            except Exception as error:
                answer = PostResult(PostOutcome.RETRY, f"{type(error).__name__}: {error}")
            if answer is None:
                self._news.wait(HURRIED_PAUSE_S if self._hurry.is_set() else EVERY_S)
            elif answer.outcome is PostOutcome.RETRY:
                self._error = answer.text
                self._log.write(f"{self._target.display_url} does not accept telemetry at the moment: {answer.text}.")
                self._pause(answer.retry_after_s, failures)
                failures += 1
            else:
                failures, self._error = 0, ""
        self._target.close()

    def _post(self, path: Path) -> PostResult:
        """Offers a body. Removes it if it was accepted, and moves it to `refused` if it was refused."""
        answer = self._target.post(path.name, path.read_bytes())
        if answer.outcome is PostOutcome.ACCEPTED:
            path.unlink(missing_ok=True)
            self._log.write(f"{self._target.display_url}: {answer.text}." if answer.text else "")
        elif answer.outcome is PostOutcome.REFUSED:
            self._spool.refuse(path)
            self._refused += 1
            self._refusal = answer.text
            self._log.write(
                f"{self._target.display_url} refused telemetry: {answer.text}. It was moved to {path.parent}."
            )
        return answer

    def _pause(self, requested_s: float, failures: int) -> None:
        """Waits longer after each failure, and not less than the server requested. Nodes do not return at the
        same time."""
        grown_s = min(FIRST_PAUSE_S * 2.0 ** min(failures, 10), MAX_PAUSE_S)
        if requested_s:
            self._stop.wait(max(requested_s, grown_s))
        else:
            self._sleep(grown_s * random.uniform(0.75, 1.25))  # noqa: S311


class _Log:
    """Writes a line when it differs from the previous one. The file stays small, because it is only read for
    troubleshooting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = ""

    def write(self, text: str) -> None:
        """Writes a line to the spool's `sender.log`. An empty text means that there is no problem any more."""
        if text == self._last:
            return
        again, self._last = bool(self._last) and not text, text
        line = "The problem is resolved." if again else text
        if not line:
            return
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > LOG_BYTES:
                self._path.replace(self._path.with_suffix(".log.1"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")


def _oldest_parts(parts: list[Path], size: int) -> list[Path]:
    """The first parts up to a total size, but at least one."""
    chosen = []
    for part in parts:
        chosen.append(part)
        with contextlib.suppress(OSError):
            size -= part.stat().st_size
        if size <= 0:
            break
    return chosen


# -- A separate process ------------------------------------------------------------------------------------------------

_MAIN = "import sys; sys.path.append(sys.argv[1]); from pyrometer.train.ship.sender import main; sys.exit(main())"


def start_beside(folder: Path, endpoint: str) -> bool:
    """Starts a sender next to the ranks, unless their spool has one. It ends after the last rank.

    It inherits the environment of the training program and nothing else: no `site`, no `.pth` files, no path.
    """
    spool = Spool(folder)
    if not spool.acquire():
        return False
    spool.release()
    import subprocess

    # the folder that contains the package
    library = str(Path(__file__).resolve().parent.parent.parent.parent)
    subprocess.Popen(  # noqa: S603 - this very interpreter
        [sys.executable, "-I", "-S", "-c", _MAIN, library],
        env={**os.environ, "PYROMETER_SPOOL": str(folder), "PYROMETER_ENDPOINT": endpoint},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    return True


def main() -> int:
    """Sends until all ranks have ended and everything is sent, or until the time limit after the last rank."""
    import signal

    try:
        spool = Spool(spool_folder()).make()
        target = target_of()
    except (SpoolError, TargetError) as error:
        sys.stderr.write(f"pyrometer: {error}\n")
        return 1
    if not _until(spool.acquire, TAKE_OVER_S):
        return 0  # another process sends
    stopping = threading.Event()
    # Set by another thread, because this one may hold the lock of the event when the signal arrives.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stopping.set).start())
    while spool.acquire():
        sender = Sender(spool, target)
        sender.start()
        while not stopping.wait(EVERY_S) and sender.watcher.alone_s() <= 2 * EVERY_S:
            pass
        sender.flush(environment.read_number("PYROMETER_FLUSH_S", FLUSH_S))
        sender.close()
        # A rank that started while this process had the lock did not start a sender of its own.
        if stopping.is_set() or not sender.watcher.living():
            break
    return 0


def _until(condition: Callable[[], bool], limit_s: float, *, every_s: float = 0.25) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(every_s)
    return True


if __name__ == "__main__":
    sys.exit(main())
