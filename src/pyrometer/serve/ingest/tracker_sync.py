"""Stores the runs of experiment trackers, joined with what the store has.

`pyrometer import` does so once, and a server again and again with what is new. Trackers are only read here:
`act/summary_writers.py` writes to them, if that is enabled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers import wandb
from pyrometer.collect.trackers.common import MLFLOW, WANDB, TrackedPoint, TrackedRun
from pyrometer.collect.trackers.mlflow import CurveReader, Mlflow, newer_than
from pyrometer.identify.runs.tracker_runs import EVENT, LATE_MS, Joiner, TrackerContext
from pyrometer.model.records import Allocation, Metric, Node, Pod, Run, Workload
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import Store
from pyrometer.store.reader import newest_records

TRACKERS = [MLFLOW, WANDB]
BATCH_RUNS, BATCH_POINTS = 100, 100_000  # that are written together
EVERY_S = 60.0
MAX_RUNS_PER_LOOK = 5_000  # of those that are running or ended recently
FIRST_LOOK_MS = 7 * MS_PER_DAY  # how far back a server reads runs that have ended; `pyrometer import` reads all
OVERLAP_MS = MS_PER_HOUR  # clocks differ, and ends are reported late
YOUNG_MS = 2 * MS_PER_MINUTE  # the pod and the processes of a new run may not be known yet
SDK_WAIT_MS = MS_PER_HOUR  # for the records of a run whose processes have the SDK
MAX_AMBIGUOUS = 10  # joins that are described
UNJOINED, AMBIGUOUS = "not joined", "not joined, because more than one workload matches"
JOINED = {
    "process": "joined by records of their processes",
    "tag": "joined by their tags",
    "pod": "joined by their pods",
    "host": "joined by host and time",
}

RunPoints = tuple[TrackedRun, list[TrackedPoint]]
log = logging.getLogger("pyrometer")


class TrackedRunWriter:
    """Writes runs of trackers into a store. `local`: into a folder of this machine, where runs that no other source
    reports have workloads of their own. Those never count in a server's totals."""

    def __init__(self, store: Store, *, local: bool) -> None:
        self.store = store
        self.local = local
        self.counts: Counter[str] = Counter()
        self.stored = 0
        self.ambiguous: dict[str, str] = {}  # what matches, in one sentence, by run
        self._waiting: list[RunPoints] = []

    def add(self, run: TrackedRun, points: list[TrackedPoint]) -> None:
        """Adds a run. Runs are written in batches."""
        self._waiting.append((run, points))
        if len(self._waiting) >= BATCH_RUNS or sum(len(points) for _, points in self._waiting) >= BATCH_POINTS:
            self.write()

    def write(self) -> None:
        """Writes the runs that were added."""
        added, self._waiting = self._waiting, []
        if not added:
            return
        joiner = Joiner(known_records(self.store, [run for run, _ in added], local=self.local))
        joins = [joiner.join(run) for run, _ in added]
        before, has = _before(self.store, added), _has(self.store, [join.run for join in joins if join.run])
        records: list[tuple[Any, ...]] = []
        for (run, points), join in zip(added, joins, strict=True):
            self.counts[JOINED[join.how] if join.how else AMBIGUOUS if join.candidates else UNJOINED] += 1
            self.ambiguous.pop(run.run_id, None)
            if join.candidates and len(self.ambiguous) < MAX_AMBIGUOUS:
                fitting = ", ".join(join.candidates[:5])
                self.ambiguous[run.run_id] = (
                    f"Run {run.run_id} ({run.where}) is not joined, because it may be any of {fitting}."
                )
            reported = has.setdefault(join.run or "", set())
            news = joiner.records(run, join, points, before.get(run.run_id, ()), reported)
            if join.run is not None:  # a second tracker with the same run does not repeat metrics
                reported.update(record.name for record in news if isinstance(record, Metric))
            records += news
        self.store.append(records)
        self.stored += len(records)


def known_records(store: Store, tracked: list[TrackedRun], *, local: bool) -> TrackerContext:
    """The records of a store from the time of some runs."""
    store.expose_all(["run", "workload", "pod", "allocation", "node", "event"])
    now_ms = time.time_ns() // 1_000_000
    from_ms = min(run.started_ms for run in tracked) - LATE_MS
    to_ms = max(run.ended_ms or now_ms for run in tracked) + LATE_MS
    ask = store.connection.execute
    joined = ask(
        "SELECT kind, reason, arg_max(run, time_ms) FROM event WHERE kind IN (SELECT unnest(?)) "
        "AND list_contains(?::VARCHAR[], reason) AND run != reason GROUP BY ALL",
        [list(EVENT.values()), [run.run_id for run in tracked]],
    ).fetchall()
    times = f"coalesce(ended_ms, {to_ms}) >= {from_ms}"
    runs = newest_records(store, Run, "run, attempt, rank", "source IS NULL", [], f"{times} AND started_ms <= {to_ms}")
    others = "list_contains(?::VARCHAR[], run) OR list_contains(?::VARCHAR[], launch)"
    named = [
        [run.where.run for run in tracked if run.where.run],
        [run.where.launch for run in tracked if run.where.launch],
    ]
    runs += newest_records(store, Run, "run, attempt, rank", f"source IS NULL AND ({others})", named, "true")
    runs += newest_records(
        store, Run, "run, attempt, rank", "list_contains(?::VARCHAR[], run)", [[run for *_, run in joined]], "true"
    )
    pods = newest_records(store, Pod, "pod_uid", "true", [], f"{times} AND coalesce(started_ms, time_ms) <= {to_ms}")
    holds = newest_records(
        store,
        Allocation,
        "pod_uid, node_uid, slot_index, instance, from_ms",
        "true",
        [],
        f"coalesce(to_ms, {to_ms}) >= {from_ms} AND from_ms <= {to_ms} AND (to_ms IS NULL OR to_ms > from_ms)",
    )
    sources = {source for (source,) in ask("SELECT DISTINCT source FROM allocation").fetchall()}
    is_known = sources - set(TRACKERS) or store.has("node")
    until_ms = store.newest_ms(["node", "slot", "pod", "allocation", "run"], now_ms) if is_known else None
    return TrackerContext(
        reported={(kind, reason): run for kind, reason, run in joined},
        runs={(run.run, run.attempt, run.rank): run for run in runs}.values(),
        workloads=newest_records(store, Workload, "workload_uid", "true", [], "true"),
        pods=[pod for pod in pods if not pod.pod_uid.startswith(tuple(f"{name}:" for name in TRACKERS))],
        holds=[hold for hold in holds if hold.source not in TRACKERS],
        nodes={node.node_uid: node.name for node in newest_records(store, Node, "node_uid", "true", [], "true")},
        newest_ms=until_ms if local else now_ms,
    )


def _before(store: Store, added: list[RunPoints]) -> dict[str, list[Run]]:
    ids = [run.run_id for run, _ in added]
    where = "source IS NOT NULL AND list_contains(?::VARCHAR[], run)"
    found: dict[str, list[Run]] = {}
    for record in newest_records(store, Run, "run, attempt, rank", where, [ids], "true"):
        found.setdefault(record.run, []).append(record)
    return found


def _has(store: Store, runs: list[str]) -> dict[str, set[str]]:
    """The names of the metrics that runs already have."""
    found: dict[str, set[str]] = {}
    if runs:
        store.expose_all(["metric"])
        rows = store.connection.execute(
            "SELECT DISTINCT run, name FROM metric WHERE list_contains(?::VARCHAR[], run)", [runs]
        ).fetchall()
        for run, name in rows:
            found.setdefault(run, set()).add(name)
    return found


def read_wandb(path: Path, tracking: TrackedRunWriter, progress: Callable[[int, int], None]) -> int:
    """Reads all runs in a folder of W&B. Returns how many there are."""
    runs = 0
    for run, points, left_out in wandb.read(path, progress):
        tracking.add(run, points)
        runs += 1
        if left_out:
            tracking.counts["metrics or values left out"] += left_out
    tracking.write()
    return runs


# -- MLflow ------------------------------------------------------------------------------------------------------------


async def read_mlflow(mlflow: Mlflow, tracking: TrackedRunWriter, progress: Callable[[int, int], None]) -> int:
    """Reads all runs of a tracking server. Returns how many there are."""
    curves = CurveReader(mlflow)
    found = [one async for one in mlflow.search(await mlflow.experiments())]
    for number, one in enumerate(found, 1):
        tracking.add(one.run, await curves.points(one))
        progress(number, len(found))
    tracking.write()
    if curves.left_out:
        tracking.counts["metrics or values left out"] += curves.left_out
    return len(found)


class MlflowFollower:
    """Reads a tracking server again and again: the runs that are running, and those that ended since."""

    def __init__(self, store: Store, lock: asyncio.Lock, mlflow: Mlflow, *, every_s: float = EVERY_S) -> None:
        self.lock = lock
        self.every_s = every_s
        self.trouble: str | None = None
        self.looks = 0
        self.tracking = TrackedRunWriter(store, local=False)
        self._mlflow = mlflow
        self._curves = CurveReader(mlflow)
        self._ended: dict[str, tuple[int | None, int]] = {}  # runs that were read completely: end, count of metrics
        self._warned: set[str] = set()  # ambiguous runs that were logged
        self._mark = f"mlflow_read_until {mlflow.uri}"

    @property
    def source(self) -> MlflowFollower:
        """Reports shortcomings, like the source of other readers."""
        return self

    @property
    def stored(self) -> int:
        """How many records were stored."""
        return self.tracking.stored

    def shortcomings(self) -> list[str]:
        """Why nothing is read, if so. An ambiguous run is not a shortcoming: those raise alerts."""
        return [self.trouble] if self.trouble else []

    async def run(self) -> None:
        """Reads until it is cancelled. A server that does not answer is tried again."""
        while True:
            try:
                await self.look()
                self.trouble = None
            except SourceError as error:
                self.trouble = str(error)
            await asyncio.sleep(self.every_s)

    async def look(self) -> None:
        """Reads what is new. What could not be written is read again."""
        try:
            await self._look()
        except SourceError:
            raise  # what was read so far is kept and written later
        except Exception:
            self._curves, self._ended = CurveReader(self._mlflow), {}
            raise

    async def _look(self) -> None:
        began_ms = time.time_ns() // 1_000_000
        since_ms = int(self.tracking.store.meta(self._mark) or began_ms - FIRST_LOOK_MS) - OVERLAP_MS
        async for run, points in self._news(since_ms):
            async with self.lock:
                await run_to_end(self.tracking.add, run, points)
        async with self.lock:
            await run_to_end(self.tracking.write)
            await run_to_end(self.tracking.store.set_meta, self._mark, str(began_ms))
        for run_id, text in self.tracking.ambiguous.items():
            if run_id not in self._warned:
                log.warning("%s", text)
        self._warned = set(self.tracking.ambiguous)
        self.looks += 1

    async def _news(self, since_ms: int) -> AsyncIterator[RunPoints]:
        experiments = await self._mlflow.experiments()
        seen: set[str] = set()
        for chosen in newer_than(since_ms):
            async for found in self._mlflow.search(experiments, chosen, MAX_RUNS_PER_LOOK):
                run_id, how = found.run.run_id, (found.run.ended_ms, len(found.last))
                if run_id in seen or self._ended.get(run_id) == how:
                    continue
                seen.add(run_id)
                if await self._may_be_joined_later(found.run):
                    continue
                yield found.run, await self._curves.points(found)
                if found.run.ended_ms is not None:
                    self._ended[run_id] = how
        self._ended = {run_id: how for run_id, how in self._ended.items() if (how[0] or 0) > since_ms}

    async def _may_be_joined_later(self, run: TrackedRun) -> bool:
        age_ms = time.time_ns() // 1_000_000 - run.started_ms
        if age_ms < YOUNG_MS or run.where.launch is None or age_ms > SDK_WAIT_MS:
            return age_ms < YOUNG_MS
        async with self.lock:
            return not await run_to_end(_is_launch, self.tracking.store, run.where.launch)


def _is_launch(store: Store, launch: str) -> bool:
    store.expose_all(["run"])
    ((count,),) = store.connection.execute("SELECT count(*) FROM run WHERE launch = ?", [launch]).fetchall()
    return bool(count)
