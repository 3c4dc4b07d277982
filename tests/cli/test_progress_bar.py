"""Progress bars and spinners: drawn only for slow work and only on a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time

import pytest

from pyrometer.cli import progress_bar as progress
from pyrometer.cli.progress_bar import progress_bar, waiting


class Terminal(io.StringIO):
    """A stderr that is a terminal or not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


def drawn(monkeypatch, *, is_terminal, quiet_s, steps=4):
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal))
    with progress_bar("Accounting") as report:
        for done in range(steps + 1):
            report(done, steps)
    return sys.stderr.getvalue()


def test_progress_bar_is_drawn_for_slow_work_on_a_terminal(monkeypatch):
    text = drawn(monkeypatch, is_terminal=True, quiet_s=-1)
    assert "Accounting" in text
    assert "%" in text


def test_progress_bar_is_not_drawn_for_short_work(monkeypatch):
    assert drawn(monkeypatch, is_terminal=True, quiet_s=1_000) == ""


def test_progress_bar_is_not_drawn_for_finished_work(monkeypatch):
    assert drawn(monkeypatch, is_terminal=True, quiet_s=-1, steps=0) == ""


def test_progress_bar_is_not_drawn_without_a_terminal(monkeypatch):
    assert drawn(monkeypatch, is_terminal=False, quiet_s=-1) == ""


def test_progress_bar_is_erased_when_work_fails(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_S", -1)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal(True))

    def fail():
        with progress_bar("Accounting") as report:
            report(0, 2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sys.stderr.getvalue().endswith("\x1b[2K")  # the line is wiped: what comes next begins on a clean one


def waited(monkeypatch, *, is_terminal, quiet_s, until=lambda text: True):
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal))
    with waiting("Looking for causes"):
        deadline_s = time.monotonic() + 10
        while not until(sys.stderr.getvalue()) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    return sys.stderr.getvalue()


def test_waiting_shows_a_spinner_for_slow_work(monkeypatch):
    printed = "Looking for causes"
    assert printed in waited(monkeypatch, is_terminal=True, quiet_s=0, until=lambda text: printed in text)


def test_waiting_shows_nothing_for_short_work_or_without_a_terminal(monkeypatch):
    assert waited(monkeypatch, is_terminal=True, quiet_s=1_000) == ""
    assert waited(monkeypatch, is_terminal=False, quiet_s=0) == ""


IMPATIENT = "import sys; from pyrometer.cli import main, progress_bar; progress_bar.QUIET_S = -1; main(sys.argv[1:])"


@pytest.mark.heavy
def test_import_draws_a_progress_bar_on_a_terminal(h200, tmp_path):
    """The bar goes to the terminal on stderr, and only the answer goes to stdout."""
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-c", IMPATIENT, "import", "recording", str(h200), "--out", str(tmp_path / "data")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment) as running:
        os.close(stderr)
        shown = b""
        while True:
            try:
                read = os.read(terminal, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not read:
                break
            shown += read
        out = running.stdout.read().decode()
    os.close(terminal)
    assert running.returncode == 0, shown
    assert "Accounting" in shown.decode()
    assert "Accounting" not in out
    assert "GPU-minutes" in out


@pytest.mark.heavy
def test_import_draws_no_progress_bar_without_a_terminal(h200, tmp_path):
    command = [sys.executable, "-c", IMPATIENT, "import", "recording", str(h200), "--out", str(tmp_path / "data")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""
