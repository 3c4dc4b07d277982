"""Writes what runs cost into the trackers that have them, while they go on and when they are over.

Off until it is switched on (`mlflow_stamp`, `wandb_stamp`). It asks the server's own questions and waits for nobody
else: a tracker that is away or slow is tried again later, and nothing is queued, since a stamp says how things stand.
MLflow is asked over HTTP. W&B's client blocks, retries and prints, so it is in a process of its own: the command that
people would type, with an end to its patience.
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

from pyrometer.act.lives import ms_of
from pyrometer.collect.mlflow import Mlflow, NotTakenError
from pyrometer.collect.source import SourceError
from pyrometer.export.mlflow import stamp
from pyrometer.export.stamps import stamp_of
from pyrometer.model.units import MS_PER_DAY

EVERY_S = 60.0
EVERY_S_BY_CLIENT = 300.0  # its client alone takes two seconds to start
PATIENCE_S = 240.0
MOST_AT_A_LOOK = 50  # runs; those that have waited longest come first
ENDED_MS = MS_PER_DAY  # how long after its end what becomes known of a run is still stamped

Answer = dict[str, Any]
Ask = Callable[[str, dict[str, str]], Awaitable[Answer | None]]  # None: there is nothing to say yet
log = logging.getLogger("pyrometer")


class _Due(NamedTuple):
    """A run that a tracker should be told of."""

    run_id: str  # the tracker's
    row: Answer
    standing: tuple[Any, ...]


class Stamper(ABC):
    """Keeps the runs of a tracker up to date."""

    tracker: str
    named: str

    def __init__(self, ask: Ask, *, every_s: float) -> None:
        self.counts: Counter[str] = Counter()  # stamps by outcome
        self.trouble: str | None = None
        self._ask = ask
        self._every_s = every_s
        self._stamped: dict[str, tuple[Any, ...]] = {}  # by the tracker's id: how things stood, the longest ago first

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Stamps what has changed."""
        runs, why = await self._ask("runs", {}), await self._ask("why", {})
        if runs is None or why is None:
            return
        at_ms = ms_of(why["window"]["to"])
        due = [
            _Due(run_id, row, _standing(row, why["findings"]))
            for row in runs["rows"]
            if row["ended"] is None or ms_of(row["ended"]) > at_ms - ENDED_MS
            for run_id in (one["id"] for one in row["trackers"] if one["tracker"] == self.tracker)
        ]
        order = {run_id: place for place, run_id in enumerate(self._stamped, 1)}
        due = [one for one in due if self._stamped.get(one.run_id) != one.standing]
        due = sorted(due, key=lambda one: order.get(one.run_id, 0))[:MOST_AT_A_LOOK]
        if due:
            await self._tell(due, why["findings"], at_ms)

    @abstractmethod
    async def _tell(self, due: Sequence[_Due], findings: list[Answer], at_ms: int) -> None:
        """Tells the tracker of these runs."""

    def _told(self, one: _Due, outcome: str) -> None:
        """It is not told of again until something changes."""
        self.counts[outcome] += 1
        self._stamped.pop(one.run_id, None)
        self._stamped[one.run_id] = one.standing

    def _say(self, trouble: str | None) -> None:
        """Once, until it is another."""
        if trouble is not None and trouble != self.trouble:
            log.warning("What runs cost is not written into %s, and is tried again: %s", self.named, trouble)
        self.trouble = trouble


class MlflowStamper(Stamper):
    """Keeps the runs of an MLflow tracking server up to date."""

    tracker, named = "mlflow", "MLflow"

    def __init__(self, mlflow: Mlflow, ask: Ask, *, public_url: str = "", every_s: float = EVERY_S) -> None:
        super().__init__(ask, every_s=every_s)
        self._mlflow = mlflow
        self._public_url = public_url

    async def _tell(self, due: Sequence[_Due], findings: list[Answer], at_ms: int) -> None:
        for one in due:
            shown = await self._ask("show", {"run": one.row["run"], "without": "windows,findings"})
            if shown is None:
                continue
            found = stamp_of(shown, of_workload(shown, findings), at_ms=at_ms, public_url=self._public_url)
            try:
                await stamp(self._mlflow, one.run_id, found)
            except NotTakenError as error:  # another server's, or deleted
                log.info("Run %s is not told what it cost: %s", one.run_id, error)
                self._told(one, "refused")
                continue
            except SourceError as error:
                self.counts["failed"] += 1
                self._say(str(error))
                return  # nobody answers: the others are not tried now
            self._told(one, "sent")
            self._say(None)


class WandbStamper(Stamper):
    """Keeps runs of Weights & Biases up to date: on its server, or in a folder of offline runs."""

    tracker, named = "wandb", "W&B"

    def __init__(
        self, ask: Ask, server: Callable[[], tuple[str, str | None]], *, folder: str = "",
        every_s: float = EVERY_S_BY_CLIENT,
    ) -> None:  # fmt: skip
        super().__init__(ask, every_s=every_s)
        self._server = server  # where this one answers, and what opens it
        self._folder = folder

    async def _tell(self, due: Sequence[_Due], findings: list[Answer], at_ms: int) -> None:
        url, token = self._server()
        where = ["--wandb-dir", self._folder] if self._folder else []
        runs = [word for run in dict.fromkeys(one.row["run"] for one in due) for word in ("--run", run)]
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pyrometer", "export", "wandb", "--server", url, *where, *runs,
            env={**os.environ, "PYROMETER_TOKEN": token or "", "WANDB_SILENT": "true"},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            _, said = await asyncio.wait_for(child.communicate(), PATIENCE_S)
        except TimeoutError:
            said = f"its client did not come to an end within {PATIENCE_S:.0f} s".encode()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode == 0:
            for one in due:
                self._told(one, "sent")
            self._say(None)
        else:
            self.counts["failed"] += len(due)
            lines = said.decode(errors="replace").strip().splitlines()
            self._say(lines[-1].removeprefix("Error: ")[:300] if lines else f"exit {child.returncode}")


def of_workload(shown: Answer, findings: list[Answer]) -> list[Answer]:
    """What was found of the run's workload."""
    uid = shown["workload"]["uid"] if shown["workload"] else None
    return [one for one in findings if uid is not None and one["workload"] and one["workload"]["uid"] == uid]


def _standing(row: Answer, findings: list[Answer]) -> tuple[Any, ...]:
    """How things stand with a run: another one is worth a stamp."""
    found = tuple((one["id"], one["usd_micro"]) for one in of_workload(row, findings))
    return (row["gpu_ms"], row["usd_micro"], row["goodput"], row["outcome"], row["attempts"], found)
