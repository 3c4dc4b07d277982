"""The watcher: speaks for ranks that cannot. It looks at their rings and at the kernel's word on their processes.

A rank that was killed leaves a ring: what it had not handed on is in it. A rank that stands still while its interpreter
runs says so itself; one whose interpreter does not run either (C holds it, or a signal stopped the process) is silent,
and its stack is what `faulthandler` wrote.
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

from pyrometer.train import processes, ring
from pyrometer.train.ring import Moment, Ring, RingError
from pyrometer.train.spool import Identity, Message, Spool
from pyrometer.train.stall_limits import configured_hang_limit_s, stall_limits_s

SILENT_NS = 5_000_000_000  # an interpreter that has not run for this long does not run
STACK_S = 3.0  # how long to wait for a stack once a rank is found stuck
STACK_BYTES = 65_536
STILL_NS = 10_000_000_000  # ranks that come forward are heard of by their windows
ALIVE_EVERY_S, ALIVE_SELDOM_S = 15.0, 300.0  # less and less often
_STOPPED = {"T": "stopped by a signal (state T)", "t": "stopped by a debugger (state t)"}


@dataclass
class _Rank:
    """A rank as it was seen last."""

    ring: Ring
    pid: int
    identity: Identity = field(default_factory=dict)
    limits_s: dict[str, float] = field(default_factory=dict)
    told_at: int = 0  # when its identity was written, as its file says
    started: int | None = None  # its process, as the kernel counts
    alive_ns: int = 0  # UTC: when it was last seen alive
    memory: Path | None = None
    oom_kills: int | None = None
    stuck: Moment | None = None  # where it was when this watcher spoke for it
    suspect_s: float | None = None  # since when its stack is waited for


class Watcher:
    """Looks at all ranks of a spool. `look` is called about once a second by whoever holds the spool's lock."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._ranks: dict[Path, _Rank] = {}
        self._exits: dict[int, int] = {}
        self.child: int | None = None  # of this very process: how it ends will be told
        self._alone_since_s = time.monotonic()
        self._alive_due_s = 0.0
        self._since_ns = time.time_ns()
        self.runs: dict[str, None] = {}  # the names of runs that began since, in order

    def look(self) -> bool:
        """Looks at every rank once; whether there is news that should not wait."""
        news = False
        for path in self._spool.rings():
            rank = self._ranks.get(path) or self._met(path)
            if rank is None:
                continue
            self._read_identity(rank)
            process = self._process(rank)
            if process is None:
                news |= self._ended(rank)
            else:
                rank.alive_ns = time.time_ns()
                news |= self._judged(rank, process.state)
        if self._ranks:
            self._alone_since_s = time.monotonic()
        return news | self._alive()

    def _alive(self) -> bool:
        """Says now and then that ranks are there which all stand still: else nobody hears how time passes."""
        living = [rank for rank in self._ranks.values() if rank.started is not None and rank.identity]
        now_s, now_ns = time.monotonic(), time.perf_counter_ns()
        moved_ns = max((rank.ring.view[ring.MOVED_NS] for rank in living), default=now_ns)
        still_s = (now_ns - moved_ns) / 1e9
        if now_s < self._alive_due_s or still_s < STILL_NS / 1e9:
            return False
        with_news = self._alive_due_s == 0.0
        self._alive_due_s = now_s + max(ALIVE_EVERY_S, min(still_s / 8, ALIVE_SELDOM_S))
        first = min(living, key=lambda rank: rank.pid)
        said = self._say(first, [("event", {"time_ms": time.time_ns() // 1_000_000, "kind": "alive"})])
        return said and with_news

    def alone_s(self) -> float:
        """For how long no rank has been there."""
        return time.monotonic() - self._alone_since_s

    def living(self) -> bool:
        """Whether a rank is there that lives, known or not."""
        return any(path.stem.isdecimal() and processes.living(int(path.stem)) for path in self._spool.rings())

    def exited(self, pid: int, status: int) -> None:
        """The parent says how its child ended: the code, or the signal as a negative number."""
        self._exits[pid] = status

    # -- who is there --------------------------------------------------------------------------------------------------

    def _met(self, path: Path) -> _Rank | None:
        try:
            found = Ring.open(path)
            rank = _Rank(found, found.view[ring.PID])
        except FileNotFoundError:
            return None
        except (OSError, RingError):  # in the making, or of another version
            if not (path.stem.isdecimal() and processes.living(int(path.stem))):
                _remove(path)
            return None
        rank.memory = processes.memory_events(rank.pid)
        rank.oom_kills = processes.oom_kills(rank.memory)
        self._ranks[path] = rank
        return rank

    def _process(self, rank: _Rank) -> processes.Process | None:
        """A rank's process, if it lives: not another that has its number by now."""
        found = processes.living(rank.pid) if rank.ring.path.stem == str(rank.pid) else None  # else it stepped aside
        if found is None or found.started == rank.started:
            return found
        view = rank.ring.view
        if rank.started is not None or not processes.was_there(found, view[ring.WALL_NS], view[ring.MONOTONIC_NS]):
            return None
        rank.started = found.started
        return found

    def _read_identity(self, rank: _Rank) -> None:
        path = rank.ring.path.with_suffix(".json")
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            written = path.stat().st_mtime_ns
            if written == rank.told_at:
                return
            known = json.loads(path.read_bytes())
            limits = known.pop("limits_s", None) or {}
            rank.limits_s = {str(phase): float(limit) for phase, limit in limits.items()}
            rank.identity, rank.told_at = known, written
            name = known.get("run") or known.get("launch")
            if name and rank.ring.view[ring.WALL_NS] >= self._since_ns:
                self.runs[str(name)] = None

    # -- those that live -----------------------------------------------------------------------------------------------

    def _judged(self, rank: _Rank, state: str) -> bool:
        """Speaks for a rank that is silent and stands still, and when it moves again."""
        now_ns, moment = time.perf_counter_ns(), rank.ring.moment()
        if rank.stuck is not None:
            return self._moves_again(rank, rank.stuck, moment)
        still_s = (now_ns - moment.moved_ns) / 1e9
        silent = now_ns - moment.beat_ns > SILENT_NS and not moment.stuck_ns and not moment.ended
        if not silent or still_s <= _limit_s(rank, moment):
            rank.suspect_s = None
            return False
        stack = _STOPPED.get(state) or self._stack(rank, moment)
        rank.suspect_s = rank.suspect_s or time.monotonic()
        if stack is None and time.monotonic() - rank.suspect_s < STACK_S:
            return False
        rank.stuck, rank.suspect_s = moment, None
        rank.ring.view[ring.STUCK_NS] = moment.moved_ns  # so that the rank does not say it again
        self._alive_due_s = 0.0  # how long it has stood still is told with it
        return self._say(rank, [_event(rank, moment, "stuck", message=stack or f"no stack (state {state})")])

    def _moves_again(self, rank: _Rank, stuck: Moment, moment: Moment) -> bool:
        """Says so, unless the rank does, which has some beats' time for it."""
        if (moment.moved_ns, moment.steps) == (stuck.moved_ns, stuck.steps):
            return False
        rank.suspect_s = rank.suspect_s or time.monotonic()
        ours = moment.stuck_ns == stuck.moved_ns
        if ours and time.monotonic() - rank.suspect_s < SILENT_NS / 1e9:
            return False
        rank.stuck = rank.suspect_s = None
        if not ours:
            return False
        rank.ring.view[ring.STUCK_NS] = 0
        return self._say(rank, [_event(rank, moment, "unstuck")])

    def _stack(self, rank: _Rank, moment: Moment) -> str | None:
        """What `faulthandler` wrote since the rank has stood still; None until it has written all of it."""
        path = rank.ring.path.with_suffix(".stack")
        try:
            written = path.stat()
            if not written.st_size or written.st_mtime_ns < rank.ring.wall_ns(moment.moved_ns):
                return None
            if time.time_ns() - written.st_mtime_ns < 200_000_000:  # perhaps not the end of it
                return None
            with path.open("rb") as file:
                file.seek(max(written.st_size - STACK_BYTES, 0))
                text = file.read(STACK_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
        return text[text.rfind("Timeout (") if "Timeout (" in text else 0 :].strip() or None  # the newest of several

    # -- those that are gone -------------------------------------------------------------------------------------------

    def _ended(self, rank: _Rank) -> bool:
        """What a dead rank leaves is handed on; then its files go."""
        path, moment = rank.ring.path, rank.ring.moment()
        if rank.pid == self.child and rank.pid not in self._exits:
            return False  # it has ended, and is about to be told
        last = self._last_words(rank, moment)
        if last and not self._say(rank, last):
            return False  # no room on disk: another time
        rank.ring.view[ring.ENDED] = 1
        rank.ring.close()
        _remove(path)
        del self._ranks[path]
        return True

    def _last_words(self, rank: _Rank, moment: Moment) -> list[Message]:
        """What a rank left unsaid: its last steps, and how it ended, which its exit code decides."""
        status = self._exits.get(rank.pid, rank.ring.exit_code())
        if moment.ended and (not rank.ring.view[ring.EXIT] or (status is None and not rank.ring.stores_exit())):
            return []  # it has reported its end itself
        messages = [] if moment.ended else _rest(rank.ring)
        seen_ns = rank.ring.wall_ns(moment.beat_ns if moment.ended else max(moment.moved_ns, moment.beat_ns))
        ended_ms = max(rank.alive_ns, seen_ns) // 1_000_000
        run: dict[str, Any] = {"time_ms": ended_ms, "ended_ms": ended_ms, "outcome": "killed"}
        kills = processes.oom_kills(rank.memory)
        if status is not None:
            run.update(_exit(status))
        if kills is not None and rank.oom_kills is not None and kills > rank.oom_kills and run["outcome"] == "killed":
            run["reason"] = "OOMKilled"
            said = "The kernel killed a process of this container: it was out of memory."
            messages.append(_event(rank, moment, "oom_killed", message=said, time_ms=ended_ms, reason="OOMKilled"))
        view = rank.ring.view
        if run["outcome"] == "failed" and not view[ring.EXPLAINED]:
            left_ms = rank.ring.wall_ns(view[ring.LEFT_NS]) // 1_000_000 if view[ring.LEFT_NS] else ended_ms
            messages.append(("event", {"time_ms": left_ms, "kind": "exit", "reason": run["reason"]}))
        run.setdefault("reason", "its process is gone; which signal it was is not known")
        return [*messages, ("run", run)]

    def _say(self, rank: _Rank, messages: list[Message]) -> bool:
        return self._spool.put(rank.identity or {"pid": rank.pid}, messages)


def _remove(path: Path) -> None:
    """The files of a rank that is gone."""
    for file in path.parent.glob(f"{path.stem}.*"):
        file.unlink(missing_ok=True)


def _limit_s(rank: _Rank, moment: Moment) -> float:
    """How long a rank may stand still where it is."""
    phase = _phase(moment) if moment.steps else ring.PHASES[ring.STARTUP]
    limits_s = rank.limits_s if "default" in rank.limits_s else stall_limits_s(configured_hang_limit_s())
    return limits_s.get(phase, limits_s["default"])


def _phase(moment: Moment) -> str:
    return ring.PHASES[moment.phase] if 0 <= moment.phase < len(ring.PHASES) else ring.PHASES[ring.OTHER]


def _event(rank: _Rank, moment: Moment, kind: str, **more: Any) -> Message:
    said = {
        "time_ms": rank.ring.wall_ns(moment.moved_ns) // 1_000_000,
        "kind": kind,
        "step": moment.first_step + moment.steps,
        "reason": _phase(moment),
    }
    return "event", {**said, **more}


def _rest(left: Ring) -> list[Message]:
    """The steps that a dead rank had not handed on, folded."""
    try:
        return list(importlib.import_module("pyrometer.train.fold").rest(left))
    except Exception:  # a ring whose rank died while it wrote
        return []


def _exit(status: int) -> dict[str, str]:
    """How a process ended, as its parent was told."""
    if status < 0:
        name = signal.Signals(-status).name if -status in signal.valid_signals() else f"signal {-status}"
        return {"outcome": "killed", "reason": name}
    return {"outcome": "failed" if status else "succeeded", "reason": f"exit code {status}"}
