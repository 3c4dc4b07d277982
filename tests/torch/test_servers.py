"""Servers that are absent, die, answer with errors or not at all: training does not notice, and nothing is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from pyrometer.store import Store
from tests.support.kube_server import free_port
from tests.support.otlp_server import Collector, logs, plain, points
from tests.support.training_processes import environment, start_run, torchrun

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAM = Path(__file__).parent / "programs" / "steady.py"
pytestmark = pytest.mark.heavy


@contextmanager
def serving(folder: Path, port: int, *, killed: bool = False) -> Iterator[None]:
    """A server that listens; at the end it is stopped, or killed."""
    command = [sys.executable, "-m", "pyrometer", "serve", "--data", str(folder), "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(None))
    assert process.stderr is not None
    with process.stderr:
        assert any("Listening" in line for line in process.stderr)
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
            process.stderr.read()
            process.wait(timeout=60)


def steady(folder: Path, steps: int, ranks: int, *where: str, **variables: str) -> subprocess.Popen[str]:
    arguments = [str(folder), str(steps), "0.03"]
    command = torchrun(PROGRAM, *arguments, ranks=ranks) if ranks > 1 else [sys.executable, str(PROGRAM), *arguments]
    return start_run(command, *where, PYROMETER_RUN="steady", TMPDIR=str(folder), **variables)


def ended(process: subprocess.Popen[str], folder: Path, rank: int = 0) -> list[float]:
    """How long the steps of a rank took, without their pauses."""
    _, error = process.communicate(timeout=180)
    assert process.returncode == 0, error
    return json.loads((folder / f"{rank}.json").read_text())


def stored(folder: Path) -> dict[str, list[tuple]]:
    """What a server has of the run, in order."""
    with Store(folder) as store:
        store.expose_all(["step_window", "batch", "metric", "event"])
        ask = lambda sql: store.connection.execute(sql).fetchall()  # noqa: E731
        return {
            "windows": ask("SELECT rank, first_step, steps FROM step_window ORDER BY ALL"),
            "batches": ask("SELECT rank, step, send_index, coalesce(len(rows), len(samples)) FROM batch ORDER BY ALL"),
            "metrics": ask("SELECT rank, step, value FROM metric WHERE name = 'number' ORDER BY ALL"),
            "saves": ask("SELECT rank, step FROM event WHERE kind = 'checkpoint_saved' ORDER BY ALL"),
        }


def complete(held: dict[str, list[tuple]], steps: int, ranks: int) -> None:
    """Every step is in one window of its rank, every batch, number and save there once."""
    every = [(rank, step) for rank in range(ranks) for step in range(steps)]
    assert held["batches"] == [(rank, step, step, 4) for rank, step in every]
    assert held["metrics"] == [(rank, step, float(step)) for rank, step in every]
    assert held["saves"] == [(rank, step + 1) for rank, step in every if step % 50 == 0]
    in_windows = [(rank, first + n) for rank, first, count in held["windows"] for n in range(count)]
    assert in_windows == [(rank, step) for rank, step in every if step]


def test_late_and_killed_server_receives_everything(tmp_path):
    data, port, steps = tmp_path / "data", free_port(), 400
    process = steady(tmp_path, steps, 1, "--server", f"http://127.0.0.1:{port}", PYROMETER_FLUSH_S="60")
    time.sleep(6)
    with serving(data, port, killed=True):
        time.sleep(6)
    with serving(data, port):
        took = ended(process, tmp_path)
    complete(stored(data), steps, 1)
    third = steps // 3
    absent, last = median(took[20:third]), median(took[-third:])
    assert absent < 3 * last + 0.005


@pytest.mark.parametrize("moods", [["slow"] * 6, ["drop", "500", "lost", "429", "lost", "503"]])
def test_unreliable_server_receives_everything_once(tmp_path, moods):
    steps = 200
    collector = Collector()
    collector.moods = list(moods)
    process = steady(tmp_path, steps, 1, "--server", collector.url, PYROMETER_FLUSH_S="60")
    took = ended(process, tmp_path)
    collector.close()
    assert not collector.moods
    numbers = {int(point.as_double) for _, name, point in points(collector.taken) if name == "number"}
    assert numbers == set(range(steps))
    records = [plain(record.attributes) for _, record in logs(collector.taken)]
    batches = {one["pyrometer.step"] for one in records if one["event.name"] == "pyrometer.batch"}
    assert batches == set(range(steps))
    third = steps // 3
    assert median(took[20:third]) < 3 * median(took[-third:]) + 0.005


def test_one_sender_per_node_delivers_everything_and_exits(tmp_path):
    data, port, steps, ranks = tmp_path / "data", free_port(), 100, 2
    with serving(data, port):
        variables = environment(
            None,
            PYROMETER_ENDPOINT=f"http://127.0.0.1:{port}",
            PYROMETER_RUN="steady",
            TMPDIR=str(tmp_path),
            PYROMETER_WINDOW_S="1",
        )
        command = torchrun(PROGRAM, str(tmp_path), str(steps), "0.05", ranks=ranks)
        process = subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        most = 0
        while process.poll() is None:
            most = max(most, len(senders(tmp_path)))
            time.sleep(0.2)
        ended(process, tmp_path)
        assert most == 1
        end = time.monotonic() + 60
        while senders(tmp_path):
            assert time.monotonic() < end
            time.sleep(0.2)
    complete(stored(data), steps, ranks)


def senders(folder: Path) -> list[int]:
    """Senders whose spool is in a folder."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                words, variables = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
            except OSError:
                continue
            if b"pyrometer.train.ship.sender" in words and os.fsencode(f"PYROMETER_SPOOL={folder}") in variables:
                found.append(int(path.name))
    return found
