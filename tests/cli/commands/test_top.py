"""`pyrometer top` on a real terminal: keys, sizes, quitting, a server that stops answering."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.cli.commands.top import _View
from pyrometer.cli.terminal_keys import keys_of
from pyrometer.render.top_text import COLUMNS, GAP, fitting, header, safe, table
from pyrometer.store import Store
from tests.support.clusters import cluster, job, run, steps
from tests.support.server_process import serving

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LONG_S = 60.0
LEFT = "\x1b[?1049l"  # the alternate screen


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """Two workloads, one of which trains."""
    folder = tmp_path_factory.mktemp("busy") / "data"
    other = [r for r in job("yolo", pods=2, gpus=1) if getattr(r, "pod_uid", "") != "yolo-0"]
    llama = [r for r in job(pods=1) if getattr(r, "pod_uid", "llama-0") == "llama-0"]
    trained = [window for rank in range(2) for window in steps(rank, 0, 120, forward_ms=30_000, backward_ms=25_000)]
    with Store(folder, create=True) as store:
        store.append([*cluster(), *llama, *other, *run(ranks=2), *trained])
    return folder


class Terminal:
    """A terminal that runs a command."""

    def __init__(self, *arguments: object, columns: int, lines: int) -> None:
        self.master, self.slave = os.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyrometer", *map(str, arguments)],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**environment, "TERM": "xterm-256color"},
        )
        self.output = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Presses keys and forgets the output before them."""
        self.output = ""
        os.write(self.master, keys.encode())

    def until(self, wanted: str) -> str:
        """The output without colors, once it contains a text."""
        end_s = time.monotonic() + LONG_S
        while wanted not in ESCAPES.sub("", self.output):
            assert time.monotonic() < end_s, f"{wanted!r} never came: {ESCAPES.sub('', self.output)[-3000:]}"
            self._read(0.2)
        return ESCAPES.sub("", self.output)

    def ended(self) -> int:
        """The exit code. Reads the last output meanwhile, so that the command can write it."""
        end_s = time.monotonic() + LONG_S
        while self.process.poll() is None:
            assert time.monotonic() < end_s
            self._read(0.1)
        self._read(0.0)
        return self.process.returncode

    def _read(self, timeout_s: float) -> None:
        if select.select([self.master], [], [], timeout_s)[0]:
            self.output += os.read(self.master, 65536).decode(errors="ignore")


@contextmanager
def terminal(*arguments: object, columns: int = 160, lines: int = 20):
    one = Terminal(*arguments, columns=columns, lines=lines)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        os.close(one.master)
        os.close(one.slave)


def restored(one: Terminal) -> bool:
    return LEFT in one.output and termios.tcgetattr(one.slave) == one.before


def test_keys_and_resizing_change_the_view_and_q_quits(busy):
    with terminal("top", "--data", busy, "--every", "0.3") as top:
        shown = top.until("by dollars per hour")
        assert "$14 per hour for 4 GPUs: 3 held, 1 free" in shown
        assert shown.index("llama") < shown.index("yolo")
        assert "step 12,000" in shown
        assert termios.tcgetattr(top.slave) != top.before
        top.type("j")
        assert "PyTorchJob ml/yolo" in top.until("PyTorchJob ml/yolo")
        top.type("\x1b[A")
        top.until("PyTorchJob ml/llama")
        top.type("s")
        top.until("by waste")
        top.type("/yo")
        assert "llama" not in top.until("/yo▏").rpartition("pyrometer top")[2]
        top.type("\r")
        top.until("filter “yo”")
        top.output = ""
        top.resize(44, 10)
        narrow = top.until("1–1 of 1")
        assert "team" not in narrow
        assert all(len(line) <= 44 for line in narrow.rpartition("pyrometer top")[2].splitlines())
        top.type("q")
        assert top.ended() == 0
        assert restored(top)


def test_ctrl_c_quits(busy):
    with terminal("top", "--data", busy) as top:
        top.until("by dollars per hour")
        top.type("\x03")
        assert top.ended() == 0
        assert restored(top)
        assert "Traceback" not in top.output


@pytest.mark.heavy
def test_unreachable_server_is_shown_and_sigterm_quits(busy, tmp_path):
    folder = shutil.copytree(busy, tmp_path / "data")
    with serving(folder) as client:
        one = terminal("top", "--server", client.base_url, "--every", "0.3")
        top = one.__enter__()
        shown = top.until("by dollars per hour")
        assert str(client.base_url).rstrip("/") in shown
        top.output = ""
    try:
        shown = top.until("does not answer")
        assert "llama" in top.until("by dollars per hour")  # the last view stays
        top.output = ""
        top.process.send_signal(signal.SIGTERM)
        assert top.ended() == 128 + signal.SIGTERM
        assert restored(top)
    finally:
        one.__exit__(None, None, None)


def test_top_without_a_terminal_prints_once(pyrometer, busy):
    lines = pyrometer("top", "--data", busy).lines
    assert lines[0].startswith(f"pyrometer top · {busy}")
    assert lines[1].startswith("$14 per hour for 4 GPUs: 3 held, 1 free; ")
    assert lines[3].split()[:3] == ["workload", "team", "user"]
    assert [line.split()[0] for line in lines[4:]] == ["llama", "yolo"]
    assert "\x1b" not in "\n".join(lines)
    answer = pyrometer("top", "--data", busy, "-o", "json", "--limit", "1").json
    assert ([row["workload"]["name"] for row in answer["rows"]], answer["others"]) == (["llama"], 1)
    assert "is not a whole number" in pyrometer("top", "--data", busy, "--limit", "few").failed(2)
    assert "does not answer" in pyrometer("top", "--server", "http://127.0.0.1:9").failed(1)


# -- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind_ms", "origin", "ending"),
    [(60_000, None, "UTC"), (7 * 60_000, None, "UTC (7 min behind)"), (7 * 60_000, "simulated", "UTC (simulated)")],
)
def test_header_shows_the_age_of_the_data(pyrometer, busy, behind_ms, origin, ending):
    answer = pyrometer("top", "--data", busy, "-o", "json").json
    at_ms = round(datetime.fromisoformat(answer["at"]).timestamp() * 1000)
    first = header(answer | {"origin": origin}, "data", now_ms=at_ms + behind_ms)[0]
    assert first.plain.endswith(ending)


@given(st.text(max_size=30))
def test_view_accepts_any_typed_text(typed):
    for key in keys_of(typed):
        assert key.isprintable()
        _View().after(key, 3, 2)


@given(st.lists(st.sampled_from(["j", "k", "up", "down", "page_up", "page_down", "g", "G", "s", "/", "escape", "x"])))
def test_selection_stays_within_the_rows(keys):
    view = _View()
    for key in keys:
        view = view.after(key, 5, 3)
        assert 0 <= view.selected < 5


@given(st.lists(st.integers(1, 40), min_size=len(COLUMNS), max_size=len(COLUMNS)), st.integers(1, 300))
def test_fitting_keeps_the_required_columns(widths, width):
    kept, given_widths = fitting(widths, width)
    needed = sum(given_widths[i] for i in kept) + GAP * (len(kept) - 1)
    always = [i for i, column in enumerate(COLUMNS) if column.drop_order == 0]
    assert set(always) <= set(kept)
    assert needed <= width or kept == always
    assert fitting(widths, None) == (list(range(len(COLUMNS))), widths)


def test_control_characters_in_names_are_replaced():
    assert safe("a\x1b[2Jb\nc") == "a·[2Jb·c"
    row = {
        "workload": {"uid": "u", "kind": "Pod", "namespace": "ml", "name": "evil\x1b]0;x\x07"},
        "experiment": None,
        "team": "日本語",
        "user": None,
        "run": None,
        "gpus": 1.0,
        "state": None,
        "states": {},
        "usd_micro": None,
        "usd_micro_per_hour": None,
        "running_ms": None,
        "progress": None,
        "metric": None,
        "goodput": None,
        "spark": [],
    }
    lines = table([row], 60)
    assert "\x1b" not in lines[1].plain
    assert "日本語" in lines[1].plain
    assert lines[0].cell_len == lines[1].cell_len <= 60
