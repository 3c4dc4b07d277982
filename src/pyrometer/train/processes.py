"""What the kernel says of processes: whether they live, whether they were stopped, whether memory killed them."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_BOOTED_BEFORE_S = 60.0  # by how much a wall clock may have been set since


def state(pid: int) -> str | None:
    """R, S, D, T (stopped by a signal), t (by a debugger); None when it is gone. A zombie is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None if PROC.is_dir() and (PROC / "self").exists() else _signalled(pid)
    letter = text.rpartition(")")[2].split()[0]
    return None if letter in "ZXx" else letter


def is_same(pid: int, wall_ns: int, monotonic_ns: int) -> bool:
    """Whether the living process of this number was there already at that time, which both clocks say."""
    try:
        ticks = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return True
    booted_ago_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    if wall_ns / 1e9 < time.time() - booted_ago_s - _BOOTED_BEFORE_S:
        return False
    # seconds since boot, as the kernel counts the starts of processes; one second for its ticks
    then_s = booted_ago_s - (time.perf_counter_ns() - monotonic_ns) / 1e9
    return ticks / os.sysconf("SC_CLK_TCK") <= then_s + 1.0


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


def _signalled(pid: int) -> str | None:
    """Where there is no /proc: whether it is there at all."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "R"
