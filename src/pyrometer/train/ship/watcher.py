"""The watcher: reports for ranks that cannot report themselves. It reads their rings and the state of their processes.

The ring of a killed rank contains the steps that it had not published. A rank that makes no progress while its
interpreter runs reports that itself. If its interpreter does not run either (C code holds it, or a signal stopped the
process), the rank is silent, and its stack is what `faulthandler` wrote.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyrometer.train.run.stall_limits import configured_hang_limit_s, stall_limits_s
from pyrometer.train.ship import processes
from pyrometer.train.ship.spool import Identity, Message, Spool
from pyrometer.train.steps import ring
from pyrometer.train.steps.ring import Ring, RingError, RingSnapshot

SILENT_NS = 5_000_000_000  # without a beat for this long, the interpreter of a rank does not run
STACK_S = 3.0  # how long to wait for the stack of a stuck rank
STACK_BYTES = 65_536
STILL_NS = 10_000_000_000  # ranks that make progress are known from their windows
ALIVE_EVERY_S, MAX_ALIVE_EVERY_S = 15.0, 300.0  # the interval grows while ranks stay stuck
_STOPPED = {"T": "stopped by a signal (state T)", "t": "stopped by a debugger (state t)"}


@dataclass
class _WatchedRank:
    """A rank as the watcher last saw it."""

    ring: Ring
    pid: int
    identity: Identity = field(default_factory=dict)
    limits_s: dict[str, float] = field(default_factory=dict)
    registered_ns: int = 0  # the modification time of its identity file
    started: int | None = None  # when its process started, in ticks of the kernel
    alive_ns: int = 0  # UTC: when it was last seen alive
    memory: Path | None = None
    oom_kills: int | None = None
    stuck: RingSnapshot | None = None  # where it was when this watcher reported it as stuck
    suspected_at_s: float | None = None  # when the watcher began to wait for its stack


class Watcher:
    """Watches all ranks of a spool. The process that has the lock of the spool calls `look` about once per second."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._ranks: dict[Path, _WatchedRank] = {}
        self._exits: dict[int, int] = {}
        self.child: int | None = None  # a child of this process, whose exit code `exited` will report
        self._alone_since_s = time.monotonic()
        self._alive_due_s = 0.0
        self._since_ns = time.time_ns()
        self.runs: dict[str, None] = {}  # names of the runs that began since the watcher started, in order

    def look(self) -> bool:
        """Checks every rank once. Returns whether there is an urgent message."""
        news = False
        for path in self._spool.rings():
            rank = self._ranks.get(path) or self._discover(path)
            if rank is None:
                continue
            self._read_identity(rank)
            process = self._process(rank)
            if process is None:
                news |= self._ended(rank)
            else:
                rank.alive_ns = time.time_ns()
                news |= self._check_progress(rank, process.state)
        if self._ranks:
            self._alone_since_s = time.monotonic()
        return news | self._report_alive()

    def _report_alive(self) -> bool:
        """Reports from time to time that ranks exist while all of them are stuck, so that the server sees time pass."""
        living = [rank for rank in self._ranks.values() if rank.started is not None and rank.identity]
        now_s, now_ns = time.monotonic(), time.perf_counter_ns()
        moved_ns = max((rank.ring.view[ring.MOVED_NS] for rank in living), default=now_ns)
        still_s = (now_ns - moved_ns) / 1e9
        if now_s < self._alive_due_s or still_s < STILL_NS / 1e9:
            return False
        with_news = self._alive_due_s == 0.0
        self._alive_due_s = now_s + max(ALIVE_EVERY_S, min(still_s / 8, MAX_ALIVE_EVERY_S))
        first = min(living, key=lambda rank: rank.pid)
        fields = self._report(first, [("event", {"time_ms": time.time_ns() // 1_000_000, "kind": "alive"})])
        return fields and with_news

    def alone_s(self) -> float:
        """For how long there has been no rank."""
        return time.monotonic() - self._alone_since_s

    def living(self) -> bool:
        """Whether a rank lives, registered or not."""
        return any(path.stem.isdecimal() and processes.living(int(path.stem)) for path in self._spool.rings())

    def exited(self, pid: int, status: int) -> None:
        """The exit code of a child process, or the signal that ended it as a negative number."""
        self._exits[pid] = status

    # -- Finding ranks -------------------------------------------------------------------------------------------------

    def _discover(self, path: Path) -> _WatchedRank | None:
        try:
            found = Ring.open(path)
            rank = _WatchedRank(found, found.view[ring.PID])
        except FileNotFoundError:
            return None
        except (OSError, RingError):  # incomplete, or of another version
            if not (path.stem.isdecimal() and processes.living(int(path.stem))):
                _remove_files(path)
            return None
        rank.memory = processes.memory_events(rank.pid)
        rank.oom_kills = processes.oom_kills(rank.memory)
        self._ranks[path] = rank
        return rank

    def _process(self, rank: _WatchedRank) -> processes.Process | None:
        """The process of a rank; None if it has ended, or if another process has its number now."""
        # otherwise its files were renamed
        found = processes.living(rank.pid) if rank.ring.path.stem == str(rank.pid) else None
        if found is None or found.started == rank.started:
            return found
        view = rank.ring.view
        if rank.started is not None or not processes.was_there(found, view[ring.WALL_NS], view[ring.MONOTONIC_NS]):
            return None
        rank.started = found.started
        return found

    def _read_identity(self, rank: _WatchedRank) -> None:
        path = rank.ring.path.with_suffix(".json")
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            written = path.stat().st_mtime_ns
            if written == rank.registered_ns:
                return
            registration = json.loads(path.read_bytes())
            limits = registration.pop("limits_s", None) or {}
            rank.limits_s = {str(phase): float(limit) for phase, limit in limits.items()}
            rank.identity, rank.registered_ns = registration, written
            name = registration.get("run") or registration.get("launch")
            if name and rank.ring.view[ring.WALL_NS] >= self._since_ns:
                self.runs[str(name)] = None

    # -- Living ranks --------------------------------------------------------------------------------------------------

    def _check_progress(self, rank: _WatchedRank, state: str) -> bool:
        """Reports a rank that is silent and makes no progress, and when it continues."""
        now_ns, snapshot = time.perf_counter_ns(), rank.ring.snapshot()
        if rank.stuck is not None:
            return self._report_unstuck(rank, rank.stuck, snapshot)
        still_s = (now_ns - snapshot.moved_ns) / 1e9
        silent = now_ns - snapshot.beat_ns > SILENT_NS and not snapshot.stuck_ns and not snapshot.ended
        if not silent or still_s <= _limit_s(rank, snapshot):
            rank.suspected_at_s = None
            return False
        stack = _STOPPED.get(state) or self._stack(rank, snapshot)
        rank.suspected_at_s = rank.suspected_at_s or time.monotonic()
        if stack is None and time.monotonic() - rank.suspected_at_s < STACK_S:
            return False
        rank.stuck, rank.suspected_at_s = snapshot, None
        rank.ring.view[ring.STUCK_NS] = snapshot.moved_ns  # so that the rank does not report it again
        self._alive_due_s = 0.0  # its time tells how long the rank has been stuck by now
        return self._report(rank, [_event(rank, snapshot, "stuck", message=stack or f"no stack (state {state})")])

    def _report_unstuck(self, rank: _WatchedRank, stuck: RingSnapshot, snapshot: RingSnapshot) -> bool:
        """Reports that a rank continues, unless the rank does so itself within a few beats."""
        if (snapshot.moved_ns, snapshot.steps) == (stuck.moved_ns, stuck.steps):
            return False
        rank.suspected_at_s = rank.suspected_at_s or time.monotonic()
        is_mine = snapshot.stuck_ns == stuck.moved_ns
        if is_mine and time.monotonic() - rank.suspected_at_s < SILENT_NS / 1e9:
            return False
        rank.stuck = rank.suspected_at_s = None
        if not is_mine:
            return False
        rank.ring.view[ring.STUCK_NS] = 0
        return self._report(rank, [_event(rank, snapshot, "unstuck")])

    def _stack(self, rank: _WatchedRank, snapshot: RingSnapshot) -> str | None:
        """The stack that `faulthandler` has written since the rank got stuck; None until it is complete."""
        path = rank.ring.path.with_suffix(".stack")
        try:
            written = path.stat()
            if not written.st_size or written.st_mtime_ns < rank.ring.wall_ns(snapshot.moved_ns):
                return None
            if time.time_ns() - written.st_mtime_ns < 200_000_000:  # it may still be writing
                return None
            with path.open("rb") as file:
                file.seek(max(written.st_size - STACK_BYTES, 0))
                text = file.read(STACK_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
        return text[text.rfind("Timeout (") if "Timeout (" in text else 0 :].strip() or None  # the newest of several

    # -- Dead ranks ----------------------------------------------------------------------------------------------------

    def _ended(self, rank: _WatchedRank) -> bool:
        """Reports what a dead rank had not published, and then removes its files."""
        path, snapshot = rank.ring.path, rank.ring.snapshot()
        if rank.pid == self.child and rank.pid not in self._exits:
            return False  # it has ended, and its exit code is about to be reported
        last = self._final_messages(rank, snapshot)
        if last and not self._report(rank, last):
            return False  # no space on the disk: try again later
        rank.ring.view[ring.ENDED] = 1
        rank.ring.close()
        _remove_files(path)
        del self._ranks[path]
        return True

    def _final_messages(self, rank: _WatchedRank, snapshot: RingSnapshot) -> list[Message]:
        """What a rank did not report: its last steps, and how it ended according to its exit code."""
        status = self._exits.get(rank.pid, rank.ring.exit_code())
        if snapshot.ended and (not rank.ring.view[ring.EXIT] or (status is None and not rank.ring.stores_exit())):
            return []  # it has reported its end itself
        messages = [] if snapshot.ended else _unfolded_windows(rank.ring)
        seen_ns = rank.ring.wall_ns(snapshot.beat_ns if snapshot.ended else max(snapshot.moved_ns, snapshot.beat_ns))
        ended_ms = max(rank.alive_ns, seen_ns) // 1_000_000
        run: dict[str, Any] = {"time_ms": ended_ms, "ended_ms": ended_ms, "outcome": "killed"}
        kills = processes.oom_kills(rank.memory)
        if status is not None:
            run.update(_outcome_of(status))
        if kills is not None and rank.oom_kills is not None and kills > rank.oom_kills and run["outcome"] == "killed":
            run["reason"] = "OOMKilled"
            fields = "The kernel killed a process of this container because it was out of memory."
            messages.append(_event(rank, snapshot, "oom_killed", message=fields, time_ms=ended_ms, reason="OOMKilled"))
        view = rank.ring.view
        if run["outcome"] == "failed" and not view[ring.EXPLAINED]:
            left_ms = rank.ring.wall_ns(view[ring.LEFT_NS]) // 1_000_000 if view[ring.LEFT_NS] else ended_ms
            messages.append(("event", {"time_ms": left_ms, "kind": "exit", "reason": run["reason"]}))
        run.setdefault("reason", "the process ended, and its exit code or signal is unknown")
        return [*messages, ("run", run)]

    def _report(self, rank: _WatchedRank, messages: list[Message]) -> bool:
        return self._spool.put(rank.identity or {"pid": rank.pid}, messages)


def _remove_files(path: Path) -> None:
    """Removes the files of a dead rank."""
    for file in path.parent.glob(f"{path.stem}.*"):
        file.unlink(missing_ok=True)


def _limit_s(rank: _WatchedRank, snapshot: RingSnapshot) -> float:
    """How long a rank may make no progress where it is."""
    phase = _phase(snapshot) if snapshot.steps else ring.PHASES[ring.STARTUP]
    limits_s = rank.limits_s if "default" in rank.limits_s else stall_limits_s(configured_hang_limit_s())
    return limits_s.get(phase, limits_s["default"])


def _phase(snapshot: RingSnapshot) -> str:
    return ring.PHASES[snapshot.phase] if 0 <= snapshot.phase < len(ring.PHASES) else ring.PHASES[ring.OTHER]


def _event(rank: _WatchedRank, snapshot: RingSnapshot, kind: str, **more: Any) -> Message:
    fields = {
        "time_ms": rank.ring.wall_ns(snapshot.moved_ns) // 1_000_000,
        "kind": kind,
        "step": snapshot.first_step + snapshot.steps,
        "reason": _phase(snapshot),
    }
    return "event", {**fields, **more}


def _unfolded_windows(left: Ring) -> list[Message]:
    """The window of the steps that a dead rank had not published."""
    try:
        return list(importlib.import_module("pyrometer.train.steps.fold").unfolded_windows(left))
    except Exception:  # the rank died while it wrote to the ring
        return []


def _outcome_of(status: int) -> dict[str, str]:
    """How a process ended, from its exit code."""
    if status < 0:
        name = signal.Signals(-status).name if -status in signal.valid_signals() else f"signal {-status}"
        return {"outcome": "killed", "reason": name}
    return {"outcome": "failed" if status else "succeeded", "reason": f"exit code {status}"}
