"""What the kernel knows about processes: whether they live, are stopped, or were killed for lack of memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_BOOTED_BEFORE_S = 60.0  # how far the wall clock may have been set since


class Process(NamedTuple):
    """A process that lives."""

    state: str  # R, S, D, T (stopped by a signal), t (stopped by a debugger)
    started: int  # in ticks of the kernel since the machine booted


def living(pid: int) -> Process | None:
    """The process with this number; None if it has ended. A zombie has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called once per second for every rank
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None if PROC.joinpath("self").exists() else _probe_by_signal(pid)
    state = words[0].decode()
    return None if state in "ZXx" else Process(state, int(words[19]))


def was_there(process: Process, wall_ns: int, monotonic_ns: int) -> bool:
    """Whether a process has existed since a time, given by both clocks. Otherwise it reuses the number of a dead
    process."""
    if not process.started:
        return True
    booted_ago_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    if wall_ns / 1e9 < time.time() - booted_ago_s - _BOOTED_BEFORE_S:
        return False
    # seconds since boot, like the start of a process; one second of tolerance for the length of a tick
    then_s = booted_ago_s - (time.perf_counter_ns() - monotonic_ns) / 1e9
    return process.started / os.sysconf("SC_CLK_TCK") <= then_s + 1.0


def oom_kills(memory: Path | None) -> int | None:
    """How many processes of a cgroup the kernel has killed for lack of memory."""
    try:
        text = memory.read_text() if memory else ""
    except OSError:
        return None
    counts = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    return int(counts["oom_kill"]) if counts.get("oom_kill", "").isdecimal() else None


def memory_events(pid: int) -> Path | None:
    """The file in which the cgroup of a process counts such kills."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            candidates = [
                CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control",
                CGROUPS / "memory/memory.oom_control",
            ]
        elif not controllers:
            candidates = [CGROUPS / path.lstrip("/") / "memory.events", CGROUPS / "memory.events"]
        else:
            continue
        for candidate in candidates:  # inside of a container its own cgroup is the root
            if candidate.exists():
                return candidate
    return None


def _probe_by_signal(pid: int) -> Process | None:
    """For systems without /proc: whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return Process("R", 0)
