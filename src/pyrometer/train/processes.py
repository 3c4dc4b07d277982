"""What the kernel says of processes: whether they live, whether they were stopped, whether memory killed them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_BOOTED_BEFORE_S = 60.0  # by how much a wall clock may have been set since


class Process(NamedTuple):
    """A process that lives."""

    state: str  # R, S, D, T (stopped by a signal), t (by a debugger)
    started: int  # in the kernel's ticks since the machine began


def living(pid: int) -> Process | None:
    """The process of a number; None when it is gone. A zombie is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - once a second for every rank
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None if PROC.joinpath("self").exists() else _probe_by_signal(pid)
    state = words[0].decode()
    return None if state in "ZXx" else Process(state, int(words[19]))


def was_there(process: Process, wall_ns: int, monotonic_ns: int) -> bool:
    """Whether a process has been there since a time, which both clocks say: else it has a dead one's number."""
    if not process.started:
        return True
    booted_ago_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    if wall_ns / 1e9 < time.time() - booted_ago_s - _BOOTED_BEFORE_S:
        return False
    # seconds since boot, as the kernel counts the starts of processes; one second for its ticks
    then_s = booted_ago_s - (time.perf_counter_ns() - monotonic_ns) / 1e9
    return process.started / os.sysconf("SC_CLK_TCK") <= then_s + 1.0


def oom_kills(memory: Path | None) -> int | None:
    """How many processes of a cgroup the kernel has killed for want of memory."""
    try:
        text = memory.read_text() if memory else ""
    except OSError:
        return None
    counts = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    return int(counts["oom_kill"]) if counts.get("oom_kill", "").isdecimal() else None


def memory_events(pid: int) -> Path | None:
    """The file in which a process' cgroup counts that."""
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
    """Where there is no /proc: whether it is there at all."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return Process("R", 0)
