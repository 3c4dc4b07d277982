"""Ranks that cannot report themselves: killed, stopped, blocked in C. Real processes, rings and stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from pyrometer.train.run.stall_limits import stall_limits_s
from pyrometer.train.ship import processes
from pyrometer.train.ship import watcher as watch
from pyrometer.train.ship.spool import Spool
from pyrometer.train.ship.watcher import Watcher
from pyrometer.train.steps import ring as columns
from pyrometer.train.steps.ring import Ring
from tests.support.rank_processes import python, rank

LIMITS = '{"default": 0.5}'


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(watch, "SILENT_NS", 200_000_000)
    monkeypatch.setattr(watch, "STACK_S", 2.0)


@pytest.fixture
def spool(tmp_path) -> Spool:
    return Spool(tmp_path / "spool").make()


@pytest.fixture
def watcher(spool) -> Watcher:
    return Watcher(spool)


@pytest.fixture
def ranks(tmp_path):
    """Starts ranks, and ends those that are left."""
    begun = []

    def start(script: str, **more: str):
        begun.append(rank(script, tmp_path, **more))
        return begun[-1]

    yield start
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def published(spool: Spool) -> list[tuple[dict, str, dict]]:
    """All messages except windows: identity, kind, fields."""
    everything = [
        (who, *message) for part in spool.parts() for who, messages in [spool.read(part)] for message in messages
    ]
    return [(who, kind, words) for who, kind, words in everything if kind != "window"]


def look_until(watcher: Watcher, condition, limit_s: float = 15.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        watcher.look()
        time.sleep(0.02)


def kinds(spool: Spool) -> list[str]:
    return [words.get("kind", kind) for _, kind, words in published(spool)]


def test_killed_rank_gets_an_outcome(ranks, watcher, spool):
    process = ranks("sys.stdin.read()")
    assert not watcher.look()
    assert watcher.alone_s() < 1
    assert list(watcher.runs) == ["r1"]
    before_ms = time.time_ns() // 1_000_000
    process.kill()
    process.wait()
    look_until(watcher, lambda: not list(spool.ranks.iterdir()))
    who, kind, words = published(spool)[-1]
    assert (who["rank"], kind, words["outcome"]) == (0, "run", "killed")
    assert before_ms - 2000 <= words["ended_ms"] <= time.time_ns() // 1_000_000
    assert words["reason"] == "the process ended, and its exit code or signal is unknown"
    assert published(spool).count((who, kind, words)) == 1
    watcher.look()
    assert watcher.alone_s() >= 0
    assert not watcher.living()


def test_unpublished_steps_of_a_killed_rank_become_a_window(ranks, watcher, spool):
    process = ranks("sys.stdin.read()")
    watcher.look()
    process.kill()
    process.wait()
    look_until(watcher, lambda: "run" in kinds(spool))
    messages = [message for part in spool.parts() for message in spool.read(part)[1]]
    # three steps, the first of which belongs to the start
    assert [(kind, words.get("steps")) for kind, words in messages] == [("window", 2), ("run", None)]


def test_rank_that_reported_its_end_is_ignored(ranks, watcher, spool):
    process = ranks("sys.stdin.readline(); here.view[ring.ENDED] = 1")
    watcher.look()
    process.communicate("\n")
    look_until(watcher, lambda: not list(spool.ranks.iterdir()))
    assert published(spool) == []


def test_rank_that_died_before_the_watcher_is_dated_by_its_ring(ranks, spool):
    process = ranks("os.kill(os.getpid(), 9)")
    process.wait()
    time.sleep(0.3)
    watcher = Watcher(spool)
    watcher.look()
    ((_, _, words),) = published(spool)
    assert words["ended_ms"] < time.time_ns() // 1_000_000 - 250
    assert list(watcher.runs) == []  # of an earlier time


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ("os.abort()", "killed", "SIGABRT"),
        ("os._exit(3)", "failed", "exit code 3"),
        ("os._exit(0)", "succeeded", "exit code 0"),
    ],
)
def test_child_outcome_comes_from_its_wait_status(ranks, watcher, spool, script, outcome, reason):
    process = ranks(f"sys.stdin.readline(); {script}")
    watcher.child = process.pid
    watcher.look()
    process.stdin.write("\n")
    process.stdin.flush()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    watcher.look()  # a zombie by now, and its exit status is unknown
    assert published(spool) == []
    watcher.exited(process.pid, process.wait())
    watcher.look()
    *ends, (_, _, words) = published(spool)
    assert (words["outcome"], words["reason"]) == (outcome, reason)
    assert [(end["kind"], end["reason"]) for _, _, end in ends] == [("exit", reason)] * (outcome == "failed")


ENDS = {
    "raise SystemExit(3)": 3,
    "sys.exit(256)": 0,
    "sys.exit(-1)": 255,
    "sys.exit('message')": 1,
    "exit()": 0,
    "1 / 0": 1,
    "import ctypes; ctypes.CDLL(None).exit(9)": 9,
    "exits.exits_now(4); os._exit(4)": 4,
    "os.close(1); os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x')": 120,
    "import atexit; atexit.register(lambda: 1 / 0)": 0,
    "raise KeyboardInterrupt": -2,
    "os.abort()": -6,
    "os.closerange(3, 256)": 0,
    "os.fork() or sys.exit(5); os.wait(); os.kill(os.getpid(), 9)": -9,
    "os.fork() or sys.exit(5); os.wait(); sys.exit(6)": 6,
}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("script", ENDS)
def test_exit_code_is_read_from_the_ring(ranks, watcher, spool, script, ended):
    record = "from pyrometer.train.run import exits; exits.record(here)"
    process = ranks(f"{record}; here.view[ring.ENDED] = {int(ended)}; sys.stdin.readline()\n{script}")
    watcher.look()
    process.communicate("\n")
    code = ENDS[script]
    assert process.returncode == code  # as without us
    look_until(watcher, lambda: not list(spool.ranks.iterdir()))
    *ends, (_, _, words) = published(spool)
    assert words["outcome"] == ("killed" if code < 0 else "failed" if code else "succeeded")
    assert code < 0 or words["reason"] == f"exit code {code}"
    assert [(end["kind"], end["reason"]) for _, _, end in ends] == [("exit", f"exit code {code}")] * (code > 0)


def test_exit_event_has_the_time_of_the_exit_unless_an_exception_explains_it(ranks, watcher, spool):
    record = (
        "from pyrometer.train.run import exits; exits.record(here); here.view[ring.LEFT_NS] = time.perf_counter_ns()"
    )
    for explained in (0, 1):
        process = ranks(f"{record}; here.view[ring.EXPLAINED] = {explained}; time.sleep(0.5); raise SystemExit(3)")
        process.wait()
        gone_ms = time.time_ns() // 1_000_000
        look_until(watcher, lambda: not list(spool.ranks.iterdir()))
        if not explained:
            began_by_ms = gone_ms - 500
    (end,) = (words for _, _, words in published(spool) if words.get("kind") == "exit")
    assert kinds(spool).count("run") == 2
    assert end["time_ms"] <= began_by_ms


def test_outcome_reported_by_the_rank_wins(ranks, watcher, spool):
    """A worker of a framework: its function has returned, and its process is killed later."""
    process = ranks(
        "from pyrometer.train.run import exits; exits.record(here)\n"
        "here.view[ring.EXIT] = 0; here.view[ring.ENDED] = 1; sys.stdin.readline(); sys.exit(3)"
    )
    watcher.look()
    process.communicate("\n")
    look_until(watcher, lambda: not list(spool.ranks.iterdir()))
    assert published(spool) == []


def test_oom_kill_is_distinguished_from_other_kills(ranks, watcher, spool, tmp_path, monkeypatch):
    counts = tmp_path / "memory.events"
    counts.write_text("low 0\nhigh 12\nmax 40\noom 1\noom_kill 1\n")
    monkeypatch.setattr(processes, "memory_events", lambda pid: counts)
    process = ranks("sys.stdin.read()")
    watcher.look()
    counts.write_text("low 0\nhigh 12\nmax 90\noom 2\noom_kill 2\n")
    process.kill()
    process.wait()
    look_until(watcher, lambda: "run" in kinds(spool))
    assert kinds(spool) == ["oom_killed", "run"]
    assert published(spool)[-1][2]["reason"] == "OOMKilled"


def test_stopped_rank_is_stuck_until_it_continues(ranks, watcher, spool):
    process = ranks("for line in sys.stdin: step()", LIMITS=LIMITS)
    watcher.look()
    process.send_signal(signal.SIGSTOP)
    look_until(watcher, lambda: "stuck" in kinds(spool))
    ring = Ring.open(spool.ranks / f"{process.pid}.ring")
    ((who, kind, words),) = published(spool)
    assert (who["rank"], kind) == (0, "event")
    assert words == {
        "time_ms": ring.wall_ns(ring.snapshot().moved_ns) // 1_000_000,
        "kind": "stuck",
        "step": 3,
        "reason": "forward",
        "message": "stopped by a signal (state T)",
    }
    for _ in range(5):
        watcher.look()
    assert kinds(spool) == ["stuck"]
    process.send_signal(signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    look_until(watcher, lambda: "unstuck" in kinds(spool))
    unstuck = published(spool)[-1][2]
    assert unstuck["time_ms"] == ring.wall_ns(ring.snapshot().moved_ns) // 1_000_000
    assert unstuck["step"] == 4
    ring.close()


def test_rank_blocked_in_c_is_stuck_with_its_stack(ranks, watcher, spool):
    process = ranks(
        "import ctypes\n"
        "file = (spool.ranks / f'{os.getpid()}.stack').open('w')\n"
        "faulthandler.dump_traceback_later(0.6, file=file)\n"
        "def held_by_c():\n    ctypes.PyDLL(None).sleep(30)\n"
        "held_by_c()",
        LIMITS=LIMITS,
    )
    look_until(watcher, lambda: "stuck" in kinds(spool))
    ((_, _, words),) = published(spool)
    assert words["reason"] == "forward"
    assert words["message"].startswith("Timeout (0:00:00.600000)!")
    assert "in held_by_c" in words["message"]
    assert process.poll() is None


def test_silent_rank_without_a_stack_is_stuck(ranks, watcher, spool):
    ranks("import ctypes; ctypes.PyDLL(None).sleep(30)", LIMITS=LIMITS)
    look_until(watcher, lambda: "stuck" in kinds(spool))
    assert published(spool)[0][2]["message"].startswith("no stack (state ")


@pytest.mark.heavy
def test_responsive_rank_is_not_reported_by_the_watcher(ranks, watcher, spool):
    script = "here.view[ring.STUCK_NS] = {stuck_ns}\nwhile True:\n    {beat}\n    time.sleep(0.05)"
    beats = script.format(stuck_ns=0, beat="here.view[ring.BEAT_NS] = time.perf_counter_ns()")
    reported = script.format(stuck_ns=1, beat="pass")  # reported before C code blocked the interpreter
    ranks(beats, LIMITS=LIMITS)
    ranks(reported, LIMITS=LIMITS, RANK="1")
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        watcher.look()
        time.sleep(0.05)
    assert published(spool) == []


@pytest.mark.heavy
def test_stuck_limit_depends_on_the_phase(ranks, watcher, spool):
    ranks("step(ring.CHECKPOINT); time.sleep(60)", LIMITS='{"default": 0.3, "checkpoint": 60}')
    process = ranks("step(ring.BACKWARD); time.sleep(60)", LIMITS='{"default": 0.3, "checkpoint": 60}', RANK="1")
    look_until(watcher, lambda: "stuck" in kinds(spool))
    assert [(who["pid"], words["reason"]) for who, _, words in published(spool)] == [(process.pid, "backward")]


@pytest.mark.parametrize("written", ["{}", '{"checkpoint": 1}', '{"default": 2, "checkpoint": 5}'])
def test_rank_without_written_limits_gets_the_default_table(ranks, watcher, spool, monkeypatch, written):
    ranks("sys.stdin.read()", LIMITS=written)
    watcher.look()
    (seen,) = watcher._ranks.values()
    monkeypatch.setenv("PYROMETER_HANG_LIMIT_S", "90")
    limits_s = {
        phase: watch._limit_s(seen, seen.ring.snapshot()._replace(phase=number))
        for number, phase in enumerate(columns.PHASES)
    }
    if "default" in written:
        assert limits_s == {phase: 5 if phase == "checkpoint" else 2 for phase in columns.PHASES}
    else:
        table = stall_limits_s(90.0)
        assert limits_s == {phase: table.get(phase, 90.0) for phase in columns.PHASES}
        assert (limits_s["checkpoint"], limits_s["evaluate"], limits_s["startup"]) == (900, 300, 1800)


def test_reused_pid_is_not_the_rank(spool, tmp_path):
    process = rank("sys.stdin.read()", tmp_path)
    process.kill()
    process.communicate()
    ring = Ring.open(spool.ranks / f"{process.pid}.ring")
    living = python("import sys; print('here', flush=True); sys.stdin.read()", tmp_path)
    living.stdout.readline()
    ring.view[columns.PID] = living.pid
    ring.view[columns.MONOTONIC_NS] -= 3_600_000_000_000  # an hour before it began
    ring.close()
    for path in list(spool.ranks.iterdir()):
        path.rename(path.with_name(f"{living.pid}{path.suffix}"))
    Watcher(spool).look()
    assert kinds(spool) == ["run"]
    assert list(spool.ranks.iterdir()) == []
    living.kill()
    living.communicate()


def test_ring_that_was_set_aside_is_reported_separately(ranks, spool):
    process = ranks("sys.stdin.read()")
    spool.set_aside(process.pid)  # as if another process with this number had come
    watcher = Watcher(spool)
    watcher.look()
    assert kinds(spool) == ["run"]
    assert list(spool.ranks.iterdir()) == []


def test_invalid_ring_files_of_dead_processes_are_removed(spool, watcher):
    (spool.ranks / "999999999.ring").write_bytes(b"x" * 4096)
    (spool.ranks / f"{os.getpid()}.ring").write_bytes(b"")
    assert not watcher.look()
    assert [path.name for path in spool.ranks.iterdir()] == [f"{os.getpid()}.ring"]


def test_idle_ranks_are_reported_alive(ranks, watcher, spool, monkeypatch):
    monkeypatch.setattr(watch, "STILL_NS", 300_000_000)
    ranks("step(); say('moved'); sys.stdin.read()", RANK="0")
    ranks("sys.stdin.read()", RANK="1")
    look_until(watcher, lambda: "alive" in kinds(spool))
    ((_, _, words),) = [one for one in published(spool) if one[2].get("kind") == "alive"]
    assert abs(words["time_ms"] - time.time_ns() // 1_000_000) < 5_000
    watcher.look()
    assert kinds(spool).count("alive") == 1  # not again for a while


def test_stuck_rank_is_reported_alive_repeatedly(ranks, watcher, spool, monkeypatch):
    monkeypatch.setattr(watch, "STILL_NS", 300_000_000)
    process = ranks("sys.stdin.read()", LIMITS=LIMITS)
    look_until(watcher, lambda: "alive" in kinds(spool))
    process.send_signal(signal.SIGSTOP)
    look_until(watcher, lambda: "stuck" in kinds(spool))
    look_until(watcher, lambda: kinds(spool).count("alive") == 2)
