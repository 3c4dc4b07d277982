"""The sender: one process a node takes what ranks put into the spool, and brings it to a server in order.

It is the parent that `pyrometer run` is, or a process of its own beside the ranks (`start_beside`). Parts turn into
bodies on disk, a few ahead; a thread offers the oldest body until it is taken, for ever. A body is removed when the
server has acknowledged it: one whose acknowledgement got lost comes twice, byte for byte, and counts once over there.
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

from pyrometer.train import environment
from pyrometer.train.otlp import Bodies
from pyrometer.train.spool import Spool, SpoolError, spool_folder
from pyrometer.train.target import PostOutcome, PostResult, TargetError, TelemetryTarget, target_of
from pyrometer.train.watch import Watcher

EVERY_S = 1.0
COLLECT_EVERY_S = 5.0  # so that a rank's news travel together
TIDY_EVERY_S = 10.0
MAX_BODIES_AHEAD = 8  # bodies; what waits longer stays in parts, of which the least valuable messages can go
PARTS_BYTES = 2**18  # turned into bodies at a time; JSON is several times as large
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
HURRIED_PAUSE_S = 0.1
FLUSH_S, CLOSE_S = 10.0, 0.5
TAKE_OVER_S = 15.0  # the sender before this one may be about to end
LOG_BYTES = 2**18


class FlushResult(NamedTuple):
    """What did not get through."""

    files: int  # wait for the next sender
    refused: int
    error: str  # what the target said last of those


class Sender:
    """Sends what is in a spool, in two threads of its own, while it holds the spool's lock."""

    def __init__(self, spool: Spool, target: TelemetryTarget, *, watcher: Watcher | None = None) -> None:
        from pyrometer import __version__

        self._spool, self._target = spool, target
        self.watcher = watcher or Watcher(spool)
        self._bodies = Bodies(environment.read_words("PYROMETER_REDACT"), version=__version__)
        self._stop = threading.Event()
        self._hurry = threading.Event()  # the end is near: no long pauses
        self._news = threading.Event()  # there are bodies
        self._log = _Log(spool.folder / "sender.log")
        self._rounds = 0
        self._refused = 0
        self._error = self._refusal = ""
        self._collector = threading.Thread(target=self._keep_collecting, name="pyrometer-collect", daemon=True)
        self._poster = threading.Thread(target=self._keep_posting, name="pyrometer-post", daemon=True)

    def start(self) -> None:
        """Begins. Where another process sends already, this one takes over when that ends."""
        with contextlib.suppress(OSError):
            self._spool.acquire()  # before any rank asks whether it is served
        self._collector.start()
        self._poster.start()

    def flush(self, limit_s: float, given_up: Callable[[], bool] = bool) -> FlushResult:
        """Brings over what is here, for so long at most; what is left stays for the next sender."""
        end, rounds = time.monotonic() + limit_s, self._rounds
        self._hurry.set()
        self._news.set()
        # a whole round, so that ranks that have just ended were looked at
        _until(lambda: self._rounds >= rounds + 2, limit_s, every_s=0.02)
        self._spool.wait_sent(max(end - time.monotonic(), 0), given_up)
        files = len(self._spool.bodies()) + len(self._spool.parts())
        return FlushResult(files, self._refused, self._error if files else self._refusal)

    def close(self) -> None:
        """Ends, and lets another process send. A body on its way is sent again by that one."""
        self._stop.set()
        self._hurry.set()
        self._news.set()
        for thread in (self._collector, self._poster):
            thread.join(CLOSE_S)  # a server that is slow is not waited for
        self._spool.release()

    # -- parts into bodies ---------------------------------------------------------------------------------------------

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
            except Exception as error:  # one bad file must not end a node's telemetry
                self._log.write(f"{type(error).__name__}: {error}")
            self._rounds += 1
            self._sleep(EVERY_S)

    def _sleep(self, pause_s: float) -> None:
        """A pause that is short when the end is near."""
        if self._hurry.wait(pause_s):
            self._stop.wait(min(pause_s, HURRIED_PAUSE_S))

    def collect(self) -> None:
        """Turns the oldest parts into bodies, unless enough of those wait."""
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
            except OSError:  # no room on disk: all of it another time
                for path in made:
                    path.unlink(missing_ok=True)
                raise
            for part in parts:
                part.unlink(missing_ok=True)
            if self._bodies.unreadable > unreadable:
                self._log.write(f"{self._bodies.unreadable - unreadable} messages made no sense and were left out.")
            self._news.set()

    # -- bodies to the server ------------------------------------------------------------------------------------------

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
            elif answer.fate is PostOutcome.RETRY:
                self._error = answer.text
                self._log.write(f"{self._target.display_url} does not take telemetry now: {answer.text}.")
                self._pause(answer.retry_after_s, failures)
                failures += 1
            else:
                failures, self._error = 0, ""
        self._target.close()

    def _post(self, path: Path) -> PostResult:
        """Offers a body. It is gone once it was taken, and put aside when it is not wanted."""
        answer = self._target.post(path.name, path.read_bytes())
        if answer.fate is PostOutcome.ACCEPTED:
            path.unlink(missing_ok=True)
            self._log.write(f"{self._target.display_url}: {answer.text}." if answer.text else "")
        elif answer.fate is PostOutcome.REFUSED:
            self._spool.refuse(path)
            self._refused += 1
            self._refusal = answer.text
            self._log.write(
                f"{self._target.display_url} refuses telemetry, which lies in {path.parent}: {answer.text}."
            )
        return answer

    def _pause(self, requested_s: float, failures: int) -> None:
        """Longer from failure to failure, and as long as the server asked for; nodes do not come back all at once."""
        grown_s = min(FIRST_PAUSE_S * 2.0 ** min(failures, 10), MAX_PAUSE_S)
        if requested_s:
            self._stop.wait(max(requested_s, grown_s))
        else:
            self._sleep(grown_s * random.uniform(0.75, 1.25))  # noqa: S311


class _Log:
    """Says a thing when it is new. Nobody reads it until something is wrong, so it stays small."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = ""

    def write(self, text: str) -> None:
        """A line in the spool's `sender.log`; no text: all is well again."""
        if text == self._last:
            return
        again, self._last = bool(self._last) and not text, text
        line = "All is well again." if again else text
        if not line:
            return
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > LOG_BYTES:
                self._path.replace(self._path.with_suffix(".log.1"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")


def _oldest_parts(parts: list[Path], size: int) -> list[Path]:
    """The first parts, until they are so large together: at least one."""
    chosen = []
    for part in parts:
        chosen.append(part)
        with contextlib.suppress(OSError):
            size -= part.stat().st_size
        if size <= 0:
            break
    return chosen


# -- a process of its own ---------------------------------------------------------------------------------------------

_MAIN = "import sys; sys.path.append(sys.argv[1]); from pyrometer.train.sender import main; sys.exit(main())"


def start_beside(folder: Path, endpoint: str) -> bool:
    """Starts a sender beside the ranks, unless their spool has one. It ends by itself, after the last rank.

    It takes variables over from the training program and nothing else: no site, no `.pth`, no path.
    """
    spool = Spool(folder)
    if not spool.acquire():
        return False
    spool.release()
    import subprocess

    # two folders up from the package's own: the one it was imported from
    library = str(Path(__file__).resolve().parent.parent.parent)
    subprocess.Popen(  # noqa: S603 - this very interpreter
        [sys.executable, "-I", "-S", "-c", _MAIN, library],
        env={**os.environ, "PYROMETER_SPOOL": str(folder), "PYROMETER_ENDPOINT": endpoint},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    return True


def main() -> int:
    """Sends until every rank is gone and all is sent, or the limit after the last rank has passed."""
    import signal

    try:
        spool = Spool(spool_folder()).make()
        target = target_of()
    except (SpoolError, TargetError) as error:
        sys.stderr.write(f"pyrometer: {error}\n")
        return 1
    if not _until(spool.acquire, TAKE_OVER_S):
        return 0  # somebody else sends
    stopping = threading.Event()
    # set by another thread: this one may hold the event's lock when the signal comes
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stopping.set).start())
    while spool.acquire():
        sender = Sender(spool, target)
        sender.start()
        while not stopping.wait(EVERY_S) and sender.watcher.alone_s() <= 2 * EVERY_S:
            pass
        sender.flush(environment.read_number("PYROMETER_FLUSH_S", FLUSH_S))
        sender.close()
        # a rank that came while this one had the lock, and so started no other
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
