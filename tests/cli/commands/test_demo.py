"""`pyrometer demo`: its text, its page, and a live night."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The output of the demo in a pipe."""
    folder = tmp_path_factory.mktemp("demo") / "night"
    command = [sys.executable, "-m", "pyrometer", "demo", "--out", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return folder, ran


def test_demo_without_a_terminal_explains_the_night_and_exits(demo):
    folder, ran = demo
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Oct 8, 2026, 20:00 – Oct 9, 08:00 UTC (12 h), simulated" in ran.stdout
    assert re.search(r"^\$1\d,\d{3} for 3,648 GPU-hours, \$\d,\d{3} wasted \(\d+%\)$", ran.stdout, re.MULTILINE)
    assert f"HTML report: {folder / 'why.html'}" in ran.stdout
    assert "Served at" not in ran.stdout
    assert max(len(line) for line in ran.stdout.splitlines()[2:-2]) <= 80
    page = (folder / "why.html").read_text(encoding="utf-8")
    assert "· simulated" in page
    assert "<script" not in page


def test_demo_findings_match_the_truth(demo, cached_pyrometer):
    folder, _ = demo
    scored = cached_pyrometer("score", folder, "-o", "json").json
    assert scored["precision"] >= 0.9
    assert scored["recall"] >= 0.9
    assert scored["culprit"] == 1.0
    assert scored["state_error"] < 0.01


def test_demo_has_many_different_causes(demo):
    folder, _ = demo
    causes = {planted["cause"] for planted in json.loads((folder / "truth.json").read_text())["findings"]}
    assert len(causes) >= 8


def on_a_terminal(arguments, until):
    """Runs a command on a pseudo-terminal, calls `until` with the output so far until it returns a value."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "pyrometer", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment) as running:
        os.close(end)
        watchdog = threading.Timer(300, running.kill)
        watchdog.start()
        shown, found = "", None
        while found is None:
            shown += os.read(terminal, 4096).decode(errors="replace")
            found = until(shown)
        running.send_signal(signal.SIGINT)
        running.wait()
        watchdog.cancel()
    os.close(terminal)
    return found, shown, running.returncode


def _url(shown):
    where = re.search(r"Listening on (http://127\.0\.0\.1:\d+)", shown)
    return where and where[1]


def fetched(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def _page_and_burn(shown):
    url = _url(shown)
    return url and (fetched(url), json.loads(fetched(f"{url}/api/v1/burn?all=1")))


@pytest.mark.heavy
def test_demo_on_a_terminal_serves_the_page_until_ctrl_c(tmp_path):
    (page, burn), shown, code = on_a_terminal(["demo", "--out", str(tmp_path / "night")], _page_and_burn)
    assert '<script type="module" src="/page/app.js">' in page
    assert round(burn["total"]["usd"]) == 12136
    assert " wasted" in shown
    assert code == 0


@pytest.mark.heavy
def test_live_demo_grows_to_the_whole_night(cached_pyrometer, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pyrometer.cli.commands.demo.LIVE_SPEED", 6_000
    )  # a tenth of the time that a person would look at it
    folder = tmp_path / "night"
    printed = "\n".join(cached_pyrometer("demo", "--live", "--out", folder).lines).replace(",", "")
    dollars = [int(found) for found in re.findall(r"\$(\d+) for", printed)]
    assert dollars == sorted(dollars)
    assert dollars[0] < dollars[-1]  # how often it tells between depends on the machine
    assert dollars[-1] == 12136
    assert "$12,136" in (folder / "why.html").read_text()


def _burn_twice(shown):
    """The open page receives updates, and the total grows."""
    url = _url(shown)
    if url is None:
        return None
    totals, revisions = [], []
    with urllib.request.urlopen(f"{url}/api/v1/live", timeout=60) as news:
        for line in news:
            if line.startswith(b"data: ") and b"revision" in line:
                revisions.append(json.loads(line[6:])["revision"])
                totals.append(json.loads(fetched(f"{url}/api/v1/burn?all=1"))["total"]["usd_micro"])
            if len(totals) == 3:
                break
    return revisions, totals


@pytest.mark.heavy
def test_live_demo_updates_the_page(tmp_path):
    (revisions, totals), _, code = on_a_terminal(["demo", "--live", "--out", str(tmp_path / "night")], _burn_twice)
    assert code == 0
    assert len(set(revisions)) == 3
    assert totals == sorted(set(totals))
