"""Writes what runs cost into the trackers that have them: once a minute while they go on, and when they are over.

Off until it is switched on (`mlflow_stamp`). It asks the server's own questions and waits for nobody else: a tracker
that is away or slow is tried again a minute later, and nothing is queued, since a stamp says how things stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from pyrometer.act.lives import ms_of
from pyrometer.collect.mlflow import Mlflow, NoSuchRunError
from pyrometer.collect.source import SourceError
from pyrometer.export.mlflow import stamp
from pyrometer.export.stamps import stamp_of
from pyrometer.model.units import MS_PER_DAY

EVERY_S = 60.0
MOST_AT_A_LOOK = 50  # runs; those that have waited longest come first
ENDED_MS = MS_PER_DAY  # how long after its end what becomes known of a run is still stamped

Answer = dict[str, Any]
Ask = Callable[[str, dict[str, str]], Awaitable[Answer | None]]  # None: there is nothing to say yet
log = logging.getLogger("pyrometer")


class Stamper:
    """Keeps the runs of an MLflow tracking server up to date."""

    def __init__(self, mlflow: Mlflow, ask: Ask, *, public_url: str = "", every_s: float = EVERY_S) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # stamps by receiver and outcome
        self.trouble: str | None = None
        self._mlflow = mlflow
        self._ask = ask
        self._public_url = public_url
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
            (run_id, row, _standing(row, why["findings"]))
            for row in runs["rows"]
            if row["ended"] is None or ms_of(row["ended"]) > at_ms - ENDED_MS
            for run_id in (one["id"] for one in row["trackers"] if one["tracker"] == "mlflow")
        ]
        order = {run_id: place for place, run_id in enumerate(self._stamped, 1)}
        due = [one for one in due if self._stamped.get(one[0]) != one[2]]
        for run_id, row, standing in sorted(due, key=lambda one: order.get(one[0], 0))[:MOST_AT_A_LOOK]:
            shown = await self._ask("show", {"run": row["run"], "without": "windows,findings"})
            if shown is not None and not await self._stamp(run_id, shown, why["findings"], at_ms):
                return  # nobody answers: the others are not tried now
            self._stamped.pop(run_id, None)
            self._stamped[run_id] = standing

    async def _stamp(self, run_id: str, shown: Answer, findings: list[Answer], at_ms: int) -> bool:
        found = stamp_of(shown, of_workload(shown, findings), at_ms=at_ms, public_url=self._public_url)
        try:
            await stamp(self._mlflow, run_id, found)
        except NoSuchRunError:  # another server's, or deleted: it is not asked for again until something changes
            self.counts["mlflow", "refused"] += 1
            return True
        except SourceError as error:
            self.counts["mlflow", "failed"] += 1
            self._say(str(error))
            return False
        self.counts["mlflow", "sent"] += 1
        self._say(None)
        return True

    def _say(self, trouble: str | None) -> None:
        """Once, until it is another."""
        if trouble is not None and trouble != self.trouble:
            log.warning("What runs cost is not written into MLflow, and is tried again: %s", trouble)
        self.trouble = trouble


def of_workload(shown: Answer, findings: list[Answer]) -> list[Answer]:
    """What was found of the run's workload."""
    uid = shown["workload"]["uid"] if shown["workload"] else None
    return [one for one in findings if uid is not None and one["workload"] and one["workload"]["uid"] == uid]


def _standing(row: Answer, findings: list[Answer]) -> tuple[Any, ...]:
    """How things stand with a run: another one is worth a stamp."""
    found = tuple((one["id"], one["usd_micro"]) for one in of_workload(row, findings))
    return (row["gpu_ms"], row["usd_micro"], row["goodput"], row["outcome"], row["attempts"], found)
