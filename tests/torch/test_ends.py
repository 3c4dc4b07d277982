"""The outcome of a run matches the exit code of its process, and the program behaves as without the SDK."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyrometer.train.ship.spool import Spool
from tests.support.training_processes import command_answer, environment, start_run

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAM = Path(__file__).parent / "programs" / "ends.py"
pytestmark = pytest.mark.heavy

PLANTED = "ValueError: planted in two lines"
# What those that fail end with.
ERRORS = {
    "fail": PLANTED,
    "hook_before": PLANTED,
    "hook_after": PLANTED,
    "hook_exits": PLANTED,
    "caught": PLANTED,
    "chained": "RuntimeError: raised last",
    "group": "ExceptionGroup: of two (2 sub-exceptions)",
    "syntax": "SyntaxError: invalid syntax",
    "message": "SystemExit: no more data",
    "system_exit": "exit code 3",
    "negative": "exit code 255",
    "at_once": "exit code 4",
    "from_c": "exit code 8",
    "terminated": "exit code 7",
}


def outcome(status: int) -> str:
    """What an exit status means."""
    return "killed" if status < 0 else "failed" if status else "succeeded"


def left_by(folder: Path) -> tuple[dict[str, int], dict[str, str]]:
    """How each way ended, and what it wrote to stderr."""
    statuses: dict[str, int] = json.loads((folder / "statuses.json").read_text())
    written = {way: (folder / f"{way}.err").read_text() for way in statuses}
    return statuses, {way: re.sub(r"0x[0-9a-f]+", "0x", text) for way, text in written.items()}


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, str]]:
    """The program without Pyrometer."""
    folder = tmp_path_factory.mktemp("unwatched")
    subprocess.run([sys.executable, str(PROGRAM), str(folder)], env=environment(None), check=True, timeout=300)
    statuses, errors = left_by(folder)
    assert {statuses[way] for way in ("success", "whole_byte", "thread_fails", "atexit_fails", "hook_leaves")} == {0}
    assert (statuses["system_exit"], statuses["message"], statuses["negative"], statuses["killed"]) == (3, 1, 255, -9)
    return statuses, errors


def check(data: Path, folder: Path, unwatched: tuple[dict[str, int], dict[str, str]]) -> None:
    """The program ended as it does unwatched, and every run has the outcome of its process."""
    statuses, errors = left_by(folder)
    assert statuses == unwatched[0]
    assert {way: text for way, text in errors.items() if text != unwatched[1][way]} == {}
    rows: list[dict[str, Any]] = command_answer(data, "runs")["rows"]
    assert {row["run"]: row["outcome"] for row in rows} == {way: outcome(code) for way, code in statuses.items()}
    errors_by_run = {row["run"]: row["failure"]["error"] for row in rows if row["failure"] and row["failure"]["error"]}
    assert errors_by_run == ERRORS


def test_outcome_matches_the_exit_code_under_pyrometer_run(tmp_path, unwatched):
    process = start_run([sys.executable, str(PROGRAM), str(tmp_path)], "--data", str(tmp_path / "data"))
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    check(tmp_path / "data", tmp_path, unwatched)


def test_outcome_matches_the_exit_code_with_only_an_endpoint(tmp_path, unwatched):
    data, spool = tmp_path / "data", tmp_path / "spool"
    variables = environment(spool, PYROMETER_WINDOW_S="1")
    variables["PYROMETER_ENDPOINT"] = data.as_uri()
    subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], env=variables, check=True, timeout=300)
    end = time.monotonic() + 120
    while not (sender := Spool(spool)).acquire():  # the sender ends when it has sent everything
        assert time.monotonic() < end
        time.sleep(0.2)
    sender.release()
    check(data, tmp_path, unwatched)


@pytest.mark.parametrize("way", ["system_exit", "hook_leaves", "killed"])
def test_outcome_matches_the_exit_code_of_the_command_itself(tmp_path, unwatched, way):
    process = start_run([sys.executable, str(PROGRAM), str(tmp_path), way], "--data", str(tmp_path / "data"))
    process.communicate(timeout=300)
    status = unwatched[0][way]
    assert process.returncode == (status if status >= 0 else 128 - status)
    (row,) = command_answer(tmp_path / "data", "runs")["rows"]
    assert (row["run"], row["outcome"]) == (way, outcome(status))


EXITING_RANK = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    if step == 15 and dist.get_rank() == 1:
        sys.exit(*map(eval, sys.argv[1:]))
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("code", "error"), [("3", "exit code 3"), ("'no more data'", "SystemExit: no more data")])
def test_failure_names_the_rank_that_exited_first(tmp_path, code, error):
    program = tmp_path / "program.py"
    program.write_text(EXITING_RANK)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = start_run([*launcher, str(program), code], "--data", str(tmp_path / "data"))
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 1, stderr
    (row,) = command_answer(tmp_path / "data", "runs")["rows"]
    assert (row["outcome"], row["failure"]["rank"], row["failure"]["error"]) == ("failed", 1, error)
