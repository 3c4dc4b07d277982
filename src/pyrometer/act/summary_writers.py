"""Writes the cost of runs into experiment trackers, while the runs are running and after they ended.

Off by default (`mlflow_stamp`, `wandb_stamp`). A tracker that does not answer is tried again later. Nothing is queued,
because a summary always describes the current state. MLflow is accessed over HTTP. The client of W&B blocks, retries
and prints, so it runs in a process of its own with a time limit: `pyrometer export wandb`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pyrometer.act.finding_lifecycle import ms_of
from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers.mlflow import Mlflow, RejectedRequestError
from pyrometer.export.mlflow import write_summary
from pyrometer.export.tracker_summary import summarize_run
from pyrometer.model.units import MS_PER_DAY

EVERY_S = 60.0
WANDB_EVERY_S = 300.0  # its client takes two seconds just to start
WANDB_TIMEOUT_S = 240.0
MAX_RUNS_PER_ROUND = 50  # the ones that waited longest come first
ENDED_MS = MS_PER_DAY  # how long after its end a run is still updated

Answer = dict[str, Any]
Ask = Callable[[str, dict[str, str]], Awaitable[Answer | None]]  # None if there is no answer yet
log = logging.getLogger("pyrometer")


class _Due(NamedTuple):
    """A run whose summary changed."""

    run_id: str  # the tracker's id
    row: Answer
    state: tuple[Any, ...]


class SummaryWriter(ABC):
    """Keeps the summaries in one tracker up to date."""

    tracker: str
    title: str

    def __init__(self, ask: Ask, *, every_s: float) -> None:
        self.counts: Counter[str] = Counter()  # summaries by outcome
        self.trouble: str | None = None
        self._ask = ask
        self._every_s = every_s
        self._written: dict[str, tuple[Any, ...]] = {}  # by the tracker's id: the last written state, oldest first

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self.write_changed()
            await asyncio.sleep(self._every_s)

    async def write_changed(self) -> None:
        """Writes the summaries that changed."""
        runs, why = await self._ask("runs", {}), await self._ask("why", {})
        if runs is None or why is None:
            return
        at_ms = ms_of(why["window"]["to"])
        due = [
            _Due(run_id, row, _state_of(row, why["findings"]))
            for row in runs["rows"]
            if row["ended"] is None or ms_of(row["ended"]) > at_ms - ENDED_MS
            for run_id in (one["id"] for one in row["trackers"] if one["tracker"] == self.tracker)
        ]
        order = {run_id: place for place, run_id in enumerate(self._written, 1)}
        due = [one for one in due if self._written.get(one.run_id) != one.state]
        due = sorted(due, key=lambda one: order.get(one.run_id, 0))[:MAX_RUNS_PER_ROUND]
        if due:
            await self._write(due, why["findings"], at_ms)

    @abstractmethod
    async def _write(self, due: Sequence[_Due], findings: list[Answer], at_ms: int) -> None:
        """Writes the summaries of these runs."""

    def _mark_written(self, one: _Due, outcome: str) -> None:
        """Skips the run until its state changes."""
        self.counts[outcome] += 1
        self._written.pop(one.run_id, None)
        self._written[one.run_id] = one.state

    def _log_once(self, trouble: str | None) -> None:
        """Logs a problem when it changes."""
        if trouble is not None and trouble != self.trouble:
            log.warning("Cannot write the cost of runs into %s; will retry: %s", self.title, trouble)
        self.trouble = trouble


class MlflowSummaryWriter(SummaryWriter):
    """Keeps the summaries on an MLflow tracking server up to date."""

    tracker, title = "mlflow", "MLflow"

    def __init__(self, mlflow: Mlflow, ask: Ask, *, public_url: str = "", every_s: float = EVERY_S) -> None:
        super().__init__(ask, every_s=every_s)
        self._mlflow = mlflow
        self._public_url = public_url

    async def _write(self, due: Sequence[_Due], findings: list[Answer], at_ms: int) -> None:
        for one in due:
            shown = await self._ask("show", {"run": one.row["run"], "without": "windows,findings"})
            if shown is None:
                continue
            summary = summarize_run(shown, of_workload(shown, findings), at_ms=at_ms, public_url=self._public_url)
            try:
                await write_summary(self._mlflow, one.run_id, summary)
            except RejectedRequestError as error:  # a run of another server, or deleted
                log.info("The cost of run %s is not written: %s", one.run_id, error)
                self._mark_written(one, "refused")
                continue
            except SourceError as error:
                self.counts["failed"] += 1
                self._log_once(str(error))
                return  # the server does not answer, so the other runs are not tried now
            self._mark_written(one, "sent")
            self._log_once(None)


class WandbSummaryWriter(SummaryWriter):
    """Keeps the summaries in Weights & Biases up to date: on its server, or in a folder of offline runs."""

    tracker, title = "wandb", "W&B"

    def __init__(
        self,
        ask: Ask,
        server: Callable[[], tuple[str, str | None]],
        *,
        folder: str = "",
        every_s: float = WANDB_EVERY_S,
    ) -> None:
        super().__init__(ask, every_s=every_s)
        self._server = server  # the address of this server and a token
        self._folder = folder

    async def _write(self, due: Sequence[_Due], findings: list[Answer], at_ms: int) -> None:
        url, token = self._server()
        where = ["--wandb-dir", self._folder] if self._folder else []
        runs = [word for run in dict.fromkeys(one.row["run"] for one in due) for word in ("--run", run)]
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pyrometer",
            "export",
            "wandb",
            "--server",
            url,
            *where,
            *runs,
            env={**os.environ, "PYROMETER_TOKEN": token or "", "WANDB_SILENT": "true"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, output = await asyncio.wait_for(child.communicate(), WANDB_TIMEOUT_S)
        except TimeoutError:
            output = f"its client did not finish within {WANDB_TIMEOUT_S:.0f} s".encode()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode == 0:
            for one in due:
                self._mark_written(one, "sent")
            self._log_once(None)
        else:
            self.counts["failed"] += len(due)
            lines = output.decode(errors="replace").strip().splitlines()
            self._log_once(lines[-1].removeprefix("Error: ")[:300] if lines else f"exit {child.returncode}")


def of_workload(shown: Answer, findings: list[Answer]) -> list[Answer]:
    """The findings of the run's workload."""
    uid = shown["workload"]["uid"] if shown["workload"] else None
    return [one for one in findings if uid is not None and one["workload"] and one["workload"]["uid"] == uid]


def _state_of(row: Answer, findings: list[Answer]) -> tuple[Any, ...]:
    """The values of a run whose change triggers an update."""
    found = tuple((one["id"], one["usd_micro"]) for one in of_workload(row, findings))
    return (row["gpu_ms"], row["usd_micro"], row["goodput"], row["outcome"], row["attempts"], found)
