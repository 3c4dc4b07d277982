"""Parts of benchmarks/detect.py: real PyTorch runs of several processes on this machine, with a planted fault or none.

The program (live/train.py) knows nothing of faults, and who plants them (live/plant.py, or a signal) nothing of
Pyrometer.

A run is watched as a user would: with `pyrometer run --data`, and `why` in a loop. What is measured:
whether the fault is named, with the right rank; how long after it began (seconds, steps); what else was claimed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from detect_table import Row, Tally

HERE = Path(__file__).parent / "live"
SETTINGS = {
    "finding_min_ms": 5_000,
    "finding_min_usd_micro": 0,
}  # as for recordings: minutes of a run, not nights of a cluster


class Case(NamedTuple):
    """A run, what is planted in it, and what is to be found."""

    name: str
    arguments: tuple[str, ...] = ()
    fault: str = ""  # as plant.py takes it
    send: signal.Signals | None = None  # from outside, to a rank
    to_rank: int = 0
    at_step: int = 0
    cause: str | None = None
    culprit: dict[str, Any] | None = None
    ranks: int = 4
    restarts: int = 0
    twice: bool = False  # a second copy runs at the same time
    hang_limit_s: float = 15.0
    longest_s: float = 150.0
    ends: bool = True  # by itself; else it is ended once the fault was found


class Seen(NamedTuple):
    """What came of a case."""

    case: Case
    planted_s: float | None  # since the epoch
    found_s: float | None
    steps_until: int | None
    finding: dict[str, Any] | None
    others: list[dict[str, Any]]
    states: dict[str, int]

    @property
    def right(self) -> bool:
        """The fault was named, with its culprit, and nothing else was."""
        return self.named == (self.case.cause is not None) and not self.others and self.culprit is not False

    @property
    def named(self) -> bool:
        return self.finding is not None

    @property
    def culprit(self) -> bool | None:
        """Whether every field that was planted is named; None where there is none."""
        if self.case.culprit is None or self.finding is None:
            return None
        found = self.finding["culprit"] or {}
        return all(found.get(name) == value for name, value in self.case.culprit.items())

    def tallies(self) -> Iterator[tuple[str, Tally]]:
        for one in self.others:
            yield one["cause"], Tally(found=1)
        if self.case.cause is not None:
            has = int(self.case.culprit is not None and self.named)
            yield self.case.cause, Tally(1, int(self.named), int(self.named), has, int(bool(self.culprit)))

    def line(self) -> str:
        """As a line of a table."""
        found = ", ".join(one["cause"] for one in [self.finding, *self.others] if one) or "nothing"
        named = ", ".join(f"{name} {value}" for name, value in (self.case.culprit or {}).items())
        late_s = None if self.found_s is None or self.planted_s is None else self.found_s - self.planted_s
        after = "–" if late_s is None else f"{late_s:.1f} s"
        if late_s is not None and self.case.cause == "hang":
            after += f" ({late_s - self.case.hang_limit_s:.1f} s after the limit)"
        steps = "–" if self.steps_until is None or self.planted_s is None else str(self.steps_until)
        right = {None: "–", True: f"{named}: right", False: f"{named}: wrong"}[self.culprit]
        return f"| {self.case.name} | {self.case.cause or 'nothing'} | {found} | {right} | {after} | {steps} |"


_LONG = ("--steps", "100000")
_STEPS = ("--steps", "140", "--accumulate", "4")  # of some 0.2 s, and longer with a fault
CASES = (
    Case(
        "SIGSTOP of a rank",
        _LONG,
        send=signal.SIGSTOP,
        to_rank=2,
        at_step=200,
        cause="hang",
        culprit={"rank": 2},
        ends=False,
    ),
    Case(
        "a rank asleep in its loop",
        _LONG,
        fault="sleep,rank=1,from=200,s=600",
        cause="hang",
        culprit={"rank": 1},
        ends=False,
    ),
    Case(
        "a rank in C that holds the interpreter",
        _LONG,
        fault="in_c,rank=3,from=200,s=600",
        cause="hang",
        culprit={"rank": 3},
        ends=False,
    ),
    Case("slow loader on all ranks", _STEPS, fault="slow_loader,from=60,s=0.004", cause="data_stall"),
    Case(
        "slow loader on one rank",
        _STEPS,
        fault="slow_loader,rank=2,from=60,s=0.003",
        cause="straggler",
        culprit={"rank": 2, "phase": "data"},
    ),
    Case(
        "slow backward on one rank",
        _STEPS,
        fault="slow_backward,rank=1,from=60,s=0.015",
        cause="straggler",
        culprit={"rank": 1, "phase": "backward"},
    ),
    Case(
        "slow forward on one rank",
        _STEPS,
        fault="slow_forward,rank=3,from=60,s=0.05",
        cause="straggler",
        culprit={"rank": 3, "phase": "forward"},
    ),
    Case(
        "garbage collection on one rank",
        _STEPS,
        fault="garbage,rank=0,from=60,s=0.2",
        cause="straggler",
        culprit={"rank": 0, "phase": "garbage"},
    ),
    Case("NaN in the data of one rank", ("--steps", "600"), fault="nan,rank=1,from=200", cause="diverged"),
    Case(
        "a killed rank, resumed from a checkpoint",
        ("--steps", "400", "--every", "200"),
        send=signal.SIGKILL,
        to_rank=1,
        at_step=330,
        cause="lost_work",
        restarts=1,
    ),
    Case(
        "out of memory, resumed",
        ("--steps", "400", "--every", "200"),
        fault="out_of_memory,rank=2,from=330",
        cause="out_of_memory",
        culprit={"rank": 2},
        restarts=1,
    ),
    Case("sleeps on after training", ("--steps", "100"), fault="sleep_on,s=60", cause="idle_held"),
    Case("the same run again", ("--steps", "300"), cause="duplicate_run", twice=True, ranks=2),
)

CLEAN = (
    Case("plain", ("--steps", "400")),
    Case("evaluates often", ("--steps", "300", "--evaluate", "20")),
    Case("saves often", ("--steps", "300", "--every", "5", "--width", "1024")),
    Case("compiles", ("--steps", "300", "--compile"), ranks=2),
    Case("accumulates gradients", ("--steps", "150", "--accumulate", "4")),
    Case("another batch size from half way on", ("--steps", "400", "--batch", "32", "--batch-later", "96")),
    Case("loader workers", ("--steps", "300", "--workers", "1"), ranks=2),
    Case("one rank", ("--steps", "600"), ranks=1),
)


class _Run:
    """One launch of the program, watched."""

    def __init__(self, case: Case, folder: Path, data: Path) -> None:
        self.case, self.folder = case, folder
        (folder / "progress").mkdir(parents=True)
        train = HERE / "train.py"
        program = [str(HERE / "plant.py"), case.fault, str(train)] if case.fault else [str(train)]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
        launch += ["--max-restarts", str(case.restarts), *program, str(folder), *case.arguments]
        watched = [sys.executable, "-m", "pyrometer", "run", "--no-gpus", "--data", str(data), "--"]
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYROMETER_HANG_LIMIT_S": str(case.hang_limit_s)}
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(watched + launch, env=variables, stdout=self.log, stderr=self.log, text=True)

    @property
    def planted_s(self) -> float | None:
        """When the fault began."""
        lines = _lines(self.folder / "planted")
        return float(lines[0][-1]) if lines else None

    def steps(self, since_s: float) -> int:
        """How many steps the rank that is furthest has done since."""
        return max(sum(line[0] == "step" and float(line[2]) >= since_s for line in lines) for lines in self._progress())

    def send(self) -> None:
        """Sends the case's signal, once its rank is far enough."""
        case = self.case
        if case.send is None or self.planted_s is not None:
            return
        lines = _lines(self.folder / "progress" / str(case.to_rank))
        if lines and lines[-1][0] == "step" and int(lines[-1][1]) >= case.at_step:
            (self.folder / "planted").write_text(f"{case.send.name} {case.to_rank} {lines[-1][1]} {time.time():.3f}\n")
            os.kill(self._pids()[case.to_rank], case.send)

    def end(self) -> None:
        """Ends it, if it has not ended."""
        if self.process.poll() is None:
            for pid in self._pids().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.terminate()
        self.process.wait(60)
        self.log.close()

    def _pids(self) -> dict[int, int]:
        return {
            rank: int([line for line in lines if line[0] == "pid"][-1][1])
            for rank, lines in enumerate(self._progress())
            if lines
        }

    def _progress(self) -> list[list[list[str]]]:
        return [_lines(self.folder / "progress" / str(rank)) for rank in range(self.case.ranks)]


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def ran(case: Case, folder: Path) -> Seen:
    """Runs a case to its end, asking `why` all the time."""
    data = folder / "data"
    began_s = time.time()
    runs = [_Run(case, folder / str(number), data) for number in range(2 if case.twice else 1)]
    found_s, steps = None, None
    try:
        while time.time() - began_s < case.longest_s and any(run.process.poll() is None for run in runs):
            runs[0].send()
            if found_s is None and _named(case, why_answer(data, case)) is not None:
                found_s = time.time()
                steps = runs[0].steps(runs[0].planted_s or began_s)
                if not case.ends:
                    break
            time.sleep(0.2)
    finally:
        for run in runs:
            run.end()
    answer = why_answer(data, case)
    if answer is None:
        raise RuntimeError(
            f"{case.name}: no findings and no run were recorded. {(folder / '0' / 'log').read_text()[-2000:]}"
        )
    finding = _named(case, answer)
    return Seen(
        case,
        runs[0].planted_s,
        found_s,
        steps,
        finding,
        [one for one in answer["findings"] if one is not finding],
        {row["state"]: row["gpu_ms"] for row in answer["states"]},
    )


def why_answer(data: Path, case: Case) -> dict[str, Any] | None:
    """What `pyrometer why --all` says of the folder now; None while nothing is there."""
    from pyrometer.cli.command_support import answer_from, open_store
    from pyrometer.model.settings import Settings, with_values
    from pyrometer.questions.registry import question
    from pyrometer.store.inbox import of_training

    if not (data / "pyrometer.duckdb").exists() and not of_training(data).paths():
        return None
    settings = with_values(Settings(), {**SETTINGS, "hang_limit_ms": round(1000 * case.hang_limit_s)}, "the benchmark")
    try:
        with open_store(data) as store:
            return answer_from(store, settings, question("why", {"all": "1"}, settings), str(data))
    except click.ClickException:  # nothing to account for yet
        return None


def _named(case: Case, answer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The finding of the case's cause."""
    return next((one for one in (answer or {}).get("findings", ()) if one["cause"] == case.cause), None)


def faults(args: argparse.Namespace) -> Iterator[Row]:
    """Every planted fault, one run after the other."""
    yield from _rows("live", "PyTorch runs with a planted fault", CASES, args)


def clean(args: argparse.Namespace) -> Iterator[Row]:
    """Runs with which nothing is wrong."""
    yield from _rows("clean", "PyTorch runs without a fault", CLEAN, args)


def _rows(part: str, what: str, cases: Sequence[Case], args: argparse.Namespace) -> Iterator[Row]:
    wanted = [case for case in cases if not args.case or any(word in case.name for word in args.case)]
    causes: dict[str, Tally] = {}
    gpu_ms, notes, lines = 0, [], []
    for number, case in enumerate(wanted, 1):
        with tempfile.TemporaryDirectory() as folder:
            seen = ran(case, Path(folder))
        gpu_ms += sum(seen.states.values())
        for cause, tally in seen.tallies():
            causes[cause] = causes.get(cause, Tally()).plus(tally)
        notes += [f"{case.name}: {one['cause']} {one['title']}: {'; '.join(one['evidence'])}" for one in seen.others]
        notes += [] if seen.right else [f"{case.name}: {seen.finding and seen.finding['culprit']}"]
        lines.append(seen.line())
        yield Row(
            part,
            what,
            "full",
            "live",
            number,
            len(wanted),
            gpu_ms / 86_400_000,
            dict(causes),
            None,
            tuple(notes),
            tuple(lines),
        )
