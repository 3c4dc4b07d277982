"""Logs of modded-nanogpt speed runs: GPT-2 trained to a validation loss on one machine, as written by rank 0.

A log has the source of the program (missing in some copies), the output of `nvidia-smi`, and one line per step and per
validation with a clock of the training time. The clock stops during validation and restarts at zero after the tenth
step; the earlier time is added again here. Imports, model building and validation are not in the log and take no time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyrometer.collect.source import Delivery, SourceError
from pyrometer.model import events
from pyrometer.model.records import Allocation, Event, Metric, Pod, Run, Slot, StepWindow, Workload, step_lengths
from pyrometer.model.units import SHARE_WHOLE

EXPERIMENT = "speedrun"
ENDINGS = (".log", ".txt")
MAX_LOG_BYTES = 64 * 2**20
MAX_GPUS = 64
MAX_STEPS = 1_000_000
MAX_RUN_MS = 30 * 86_400_000
WINDOW_MS = 10_000
WARM_UP = 10  # steps after which the program resets its clock
SLOW = 3  # times a usual step: slower first steps compile or warm up
MIN_USUAL_STEPS = 3  # needed to determine the usual duration of a step

_LINE = re.compile(
    r"step:(\d{1,9})/(\d{1,9})(?: (train|val)_loss:(\S{1,32}))? train_time:(\d{1,15})ms step_avg:\S{1,32}ms"
)
_GPU = re.compile(r"\|\s+(\d{1,3})\s+(\S.{0,60}?)\s+(?:On|Off)\s+\|\s+[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
_CLOCK = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ([A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2} \d{4})")
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")


class ProgressLine(NamedTuple):
    """One line of the log: the number of completed steps, and the clock."""

    steps: int
    at_ms: int
    metric: str | None
    value: float | None


class Log(NamedTuple):
    """A parsed log."""

    name: str
    start_ms: int  # from nvidia-smi, or else the date in the file name; without a time zone, read as UTC
    gpu_model: str
    gpus: int
    of_steps: int
    lines: list[ProgressLine]

    @property
    def done(self) -> list[ProgressLine]:
        """The lines of steps, one per step."""
        return [line for line in self.lines if line.metric != "val_loss"]

    @property
    def is_whole(self) -> bool:
        """Whether it ends with the last step and the validation after it."""
        return self.lines[-1].steps == self.of_steps and self.lines[-1].metric == "val_loss"


class SpeedrunLogs:
    """A log or a folder of logs. Each becomes one run on its own GPUs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Yields one delivery per log."""
        found = [self.path]
        if self.path.is_dir():
            found = sorted(path for path in self.path.iterdir() if path.suffix in ENDINGS and path.is_file())
        if not found:
            raise SourceError(f"{self.path} has no *.log or *.txt files. Pass a speed run log or a folder of logs.")
        for number, path in enumerate(found, 1):
            log = read_log(path)
            self.counts["runs"] += 1
            self.counts["steps"] += log.lines[-1].steps
            self.counts["logs that break off"] += not log.is_whole
            yield Delivery(list(records(log)), number / len(found))
        self.counts = +self.counts


# -- reading ----------------------------------------------------------------------------------------------------------


def read_log(path: Path) -> Log:
    """Parses a log. An incomplete log is read up to its end."""
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise SourceError(f"{path} is larger than {MAX_LOG_BYTES // 2**20} MiB, too large for a speed run log.")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}.") from None
    gpus: dict[int, str] = {}
    start_ms: int | None = None
    of_steps = 0
    clock = _Clock()
    lines: list[ProgressLine] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _LINE.fullmatch(line.rstrip()):
            try:
                of_steps = int(found[2])
                lines.append(_progress_line(found, clock, lines))
            except ValueError as error:
                raise SourceError(f"{path}, line {number}: {error}.") from None
        elif not lines and (gpu := _GPU.match(line)):
            gpus[int(gpu[1])] = gpu[2]
        elif start_ms is None and (clocked := _CLOCK.match(line)):
            start_ms = _utc_ms(clocked[1], "%b %d %H:%M:%S %Y")
    if not lines or lines[-1].steps == 0:
        raise SourceError(f"{path} is not a speed run log. It has no line like 'step:1/100 train_time:…ms'.")
    if not 0 < len(gpus) <= MAX_GPUS or len(set(gpus.values())) > 1:
        raise SourceError(f"{path} has no table of nvidia-smi with 1 to {MAX_GPUS} GPUs of one model before its steps.")
    if start_ms is None and (dated := _DATED.match(path.name)):
        start_ms = _utc_ms(dated[0], "%Y-%m-%d")
    if start_ms is None:
        raise SourceError(f"{path} has no start time: neither in the output of nvidia-smi nor as a date in its name.")
    return Log(path.stem, start_ms, next(iter(gpus.values())), len(gpus), of_steps, lines)


class _Clock:
    """The program's clock without its reset."""

    def __init__(self) -> None:
        self.before_ms = 0
        self.shown_ms = 0

    def at(self, shown_ms: int) -> int:
        if 2 * shown_ms < self.shown_ms:
            self.before_ms += self.shown_ms
            self.shown_ms = 0
        self.shown_ms = max(self.shown_ms, shown_ms)  # two lines about one step may be a millisecond apart
        return self.before_ms + self.shown_ms


def _progress_line(found: re.Match[str], clock: _Clock, lines: list[ProgressLine]) -> ProgressLine:
    steps, at_ms = int(found[1]), clock.at(int(found[5]))
    before = next((line.steps for line in reversed(lines)), 0)
    if not steps <= int(found[2]) <= MAX_STEPS:
        raise ValueError(f"step {steps} of {found[2]} is out of range; the limit is {MAX_STEPS:,}")
    if at_ms > MAX_RUN_MS:
        raise ValueError("its clock has run for more than a month")
    if steps != before + (found[3] != "val"):
        raise ValueError(f"step {steps} does not follow step {before}")
    metric = f"{found[3]}_loss" if found[3] else None
    return ProgressLine(steps, at_ms, metric, float(found[4]) if metric else None)


def _utc_ms(text: str, form: str) -> int | None:
    try:
        return round(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        return None


# -- telling ----------------------------------------------------------------------------------------------------------


def records(log: Log) -> Iterator[tuple[Any, ...]]:
    """A run with a rank on each GPU, which trains until the log ends. All ranks take their steps together."""
    start_ms, end_ms, uid = log.start_ms, log.start_ms + log.lines[-1].at_ms, f"{EXPERIMENT}/{log.name}"
    done = log.done
    slow, compiled_ms = opening(done)
    first_step_ms = start_ms + done[slow - 1].at_ms
    phase, outcome = ("Succeeded", "succeeded") if log.is_whole else ("Unknown", "unknown")
    yield from _holder(log, uid, phase)
    windows = list(_windows(log, done[slow:], first_step_ms, end_ms, uid))
    for rank in range(log.gpus):
        yield from _rank_records(log, rank, uid, first_step_ms, outcome)
        yield from (window._replace(rank=rank, slot_index=rank) for window in windows)
    if compiled_ms is not None:
        yield Event(
            time_ms=start_ms + compiled_ms,
            kind=events.COMPILED,
            duration_ms=compiled_ms,
            run=log.name,
            attempt=1,
            rank=0,
            step=0,
            message=f"the first {slow} of {WARM_UP} warm-up steps took that much longer than usual ones"
            if slow > 1
            else "the first step took that much longer than a usual one",
        )
    for line in log.lines:
        if line.metric is not None and line.value is not None:
            yield Metric(
                time_ms=start_ms + line.at_ms,
                run=log.name,
                attempt=1,
                rank=0,
                name=line.metric,
                value=line.value,
                step=line.steps,
                goal="min",
            )


def _holder(log: Log, uid: str, phase: str) -> Iterator[tuple[Any, ...]]:
    """The workload of a log and its pod, which holds all of its GPUs."""
    start_ms, end_ms = log.start_ms, log.start_ms + log.lines[-1].at_ms
    yield Workload(
        time_ms=end_ms,
        cluster=EXPERIMENT,
        workload_uid=uid,
        kind="Log",
        namespace=EXPERIMENT,
        name=log.name,
        experiment=EXPERIMENT,
        experiment_rule="log",
        team=EXPERIMENT,
        team_rule="log",
        created_ms=start_ms,
    )
    yield Pod(
        time_ms=end_ms,
        cluster=EXPERIMENT,
        pod_uid=uid,
        namespace=EXPERIMENT,
        name=log.name,
        phase=phase,
        workload_uid=uid,
        node_uid=uid,
        created_ms=start_ms,
        scheduled_ms=start_ms,
        started_ms=start_ms,
        ended_ms=end_ms,
        gpu_share=log.gpus * SHARE_WHOLE,
    )


def _rank_records(log: Log, rank: int, uid: str, first_step_ms: int, outcome: str) -> Iterator[tuple[Any, ...]]:
    """One rank with its GPU."""
    start_ms, end_ms = log.start_ms, log.start_ms + log.lines[-1].at_ms
    yield Slot(time_ms=end_ms, node_uid=uid, slot_index=rank, gpu_model=log.gpu_model, from_ms=start_ms, to_ms=end_ms)
    yield Allocation(
        time_ms=end_ms,
        pod_uid=uid,
        node_uid=uid,
        slot_index=rank,
        from_ms=start_ms,
        to_ms=end_ms,
        share=SHARE_WHOLE,
        source="log",
    )
    yield Run(
        time_ms=end_ms,
        run=log.name,
        attempt=1,
        rank=rank,
        started_ms=start_ms,
        ranks=log.gpus,
        cluster=EXPERIMENT,
        experiment=EXPERIMENT,
        workload_uid=uid,
        pod_uid=uid,
        node_uid=uid,
        slot_index=rank,
        first_step_ms=first_step_ms,
        ended_ms=end_ms,
        outcome=outcome,
        framework="pytorch",
    )


def opening(done: list[ProgressLine]) -> tuple[int, int | None]:
    """The number of startup steps, and how much longer than usual steps they took (compilation and other setup).

    There is no time if the log does not show it: too few steps, or a program that compiled before its clock started.
    """
    took = [line.at_ms - before for line, before in zip(done, [0, *(line.at_ms for line in done)], strict=False)]
    usually = took[WARM_UP + 1 :] if len(took) > WARM_UP + MIN_USUAL_STEPS else took[1:]
    if len(usually) < MIN_USUAL_STEPS:
        return 1, None
    usual_ms = median(usually)
    slow = next((number for number, ms in enumerate(took[:WARM_UP]) if ms <= SLOW * usual_ms), WARM_UP)
    return (slow, round(sum(took[:slow]) - slow * usual_ms)) if slow else (1, None)


def _windows(log: Log, steps: list[ProgressLine], from_ms: int, end_ms: int, uid: str) -> Iterator[StepWindow]:
    """Windows of about ten seconds of steps after startup, for rank 0."""
    took_us: list[int] = []
    begun_ms = at_ms = from_ms
    for number, step in enumerate(steps, 1):
        to_ms = log.start_ms + step.at_ms
        took_us.append(1000 * (to_ms - at_ms))
        at_ms = to_ms
        if to_ms - begun_ms >= WINDOW_MS or number == len(steps):
            until_ms = end_ms if number == len(steps) else to_ms
            yield StepWindow(
                time_ms=begun_ms,
                to_ms=until_ms,
                run=log.name,
                attempt=1,
                rank=0,
                node_uid=uid,
                slot_index=0,
                pod_uid=uid,
                first_step=step.steps - len(took_us),
                steps=len(took_us),
                step_p50_us=sorted(took_us)[len(took_us) // 2],
                step_max_us=max(took_us),
                step_lengths=step_lengths(took_us),
            )
            begun_ms, took_us = until_ms, []
