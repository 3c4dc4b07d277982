"""Processes and cgroups, as the kernel reports them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pyrometer.train.ship import processes


def test_memory_events_of_this_process_are_readable():
    found = processes.memory_events(os.getpid())
    if found is None:
        pytest.skip("needs a cgroup that counts memory")
    assert processes.oom_kills(found) is not None


def test_living_process_has_a_state_and_a_start():
    process = processes.living(os.getpid())
    assert process is not None
    assert process.state == "R"
    assert process.started > 0


def test_ended_process_and_zombie_are_not_living():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.living(child.pid) is None  # a zombie
    child.wait()
    assert processes.living(child.pid) is None


def test_was_there_rejects_processes_that_began_later():
    process = processes.living(os.getpid())
    assert process is not None
    now_ns, monotonic_ns = time.time_ns(), time.perf_counter_ns()
    hour_ns = 3_600_000_000_000
    assert processes.was_there(process, now_ns, monotonic_ns)
    assert not processes.was_there(process, now_ns - hour_ns, monotonic_ns - 100 * 24 * hour_ns)
    assert not processes.was_there(process, 0, 0)  # before the machine booted
    assert processes.was_there(processes.Process("R", 0), 0, 0)  # the start is unknown


@pytest.mark.parametrize(
    ("text", "kills"), [("low 0\noom_kill 3\n", 3), ("oom 1\n", None), ("", None), ("oom_kill x\n", None)]
)
def test_oom_kills_are_read_from_the_counters_of_a_cgroup(tmp_path, text, kills):
    (tmp_path / "memory.events").write_text(text)
    assert processes.oom_kills(tmp_path / "memory.events") == kills


def test_oom_kills_of_a_missing_file_are_unknown(tmp_path):
    assert processes.oom_kills(None) is None
    assert processes.oom_kills(tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("cgroup", "events"),
    [
        ("0::/pod\n", "pod/memory.events"),
        ("0::/gone\n", "memory.events"),  # in a container its own cgroup is the root
        ("5:cpu:/x\n4:cpu,memory:/pod\n", "memory/pod/memory.oom_control"),
    ],
)
def test_memory_events_are_in_the_cgroup_of_the_process(tmp_path, monkeypatch, cgroup, events):
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "CGROUPS", tmp_path / "cgroups")
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(cgroup)
    for name in ("pod/memory.events", "memory.events", "memory/pod/memory.oom_control"):
        (tmp_path / "cgroups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroups" / name).write_text("oom_kill 0\n")
    assert processes.memory_events(7) == tmp_path / "cgroups" / events
    assert processes.memory_events(8) is None
