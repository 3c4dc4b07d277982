"""Ranks without PyTorch: small processes with a real ring in the role of training processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent.parent.parent / "src"

# Registers like a rank and runs three steps.
RANK = """
import faulthandler, json, os, sys, time
from pathlib import Path
from pyrometer.train.steps import ring
from pyrometer.train.steps.ring import Ring
from pyrometer.train.ship.spool import Spool, spool_folder

spool = Spool(spool_folder()).make()
spool.set_aside(os.getpid())
here = Ring.create(spool.ranks / f"{os.getpid()}.ring", rows=64)
identity = {"run": "r1", "launch": "l1", "rank": int(os.environ.get("RANK", "0")), "pid": os.getpid(), "host": "h"}
spool.register(identity, json.loads(os.environ.get("LIMITS", "{}")))

def step(phase=ring.FORWARD):
    view, number, now = here.view, here.view[ring.COUNT], time.perf_counter_ns()
    row = ring.HEADER + number % here.rows * ring.COLUMNS
    view[row + ring.FORWARD] = 1_000_000
    view[row + ring.BEGIN_NS] = now - 1_000_000
    view[row + ring.END_NS] = now
    view[ring.COUNT] = number + 1
    view[ring.PHASE] = phase
    view[ring.MOVED_NS] = view[ring.BEAT_NS] = now

def say(text):
    print(text, flush=True)

for _ in range(3):
    step()
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Environment variables for a process that depends on nothing but the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYROMETER_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(SOURCES), "PYROMETER_SPOOL": str(folder / "spool"), **more}


def python(script: str, folder: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """A Python that runs a script."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=environment(folder, **more),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def rank(script: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    """A rank that has run three steps and then runs the script."""
    process = python(f"{RANK}\nsay('ready')\n{script}", folder, **more)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
    return process
