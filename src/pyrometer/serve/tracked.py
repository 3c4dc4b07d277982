"""What experiment trackers know, on its way into a store: joined with what the store knows, and written down.

One way in, whoever has the store: `pyrometer import`, once, or a server, again and again, only what is new. Trackers
are read, never written to: `act/stamping.py` does that, where it is switched on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pyrometer.collect import wandb
from pyrometer.collect.mlflow import Curves, Mlflow, newer_than
from pyrometer.collect.source import SourceError
from pyrometer.collect.tracked import MLFLOW, WANDB, Point, TrackedRun
from pyrometer.identify.tracked import EVENT, LATE_MS, Joiner, Known
from pyrometer.model.records import Allocation, Metric, Node, Pod, Run, Workload
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.threads import to_its_end
from pyrometer.store import Store
from pyrometer.store.reader import newest_records

TRACKERS = [MLFLOW, WANDB]
AT_ONCE, POINTS_AT_ONCE = 100, 100_000  # runs and values that are written together
EVERY_S = 60.0
MOST_AT_A_LOOK = 5_000  # runs, of those that go on or ended lately
FIRST_LOOK_MS = 7 * MS_PER_DAY  # how far back a server reads runs that have ended; `pyrometer import` reads all
OVERLAP_MS = MS_PER_HOUR  # clocks differ, and ends are told late
YOUNG_MS = 2 * MS_PER_MINUTE  # a run that has just begun: its pod and its processes may not be known yet
PATIENCE_MS = MS_PER_HOUR  # with a run whose processes speak to a server: what they say may be late
MOST_SAID = 10  # joins that are ambiguous, in words
UNJOINED, AMBIGUOUS = "joined to nothing", "joined to nothing, because more than one workload fits"
JOINED = {
    "told": "joined by what their processes told",
    "tag": "joined by their tags",
    "pod": "joined by their pods",
    "host": "joined by host and time",
}

Told = tuple[TrackedRun, list[Point]]
log = logging.getLogger("pyrometer")


class Tracking:
    """Takes runs of trackers into a store. `local`: into a folder of this machine, where runs that nobody else knows of
    have places of their own; they never enter a server's totals."""

    def __init__(self, store: Store, *, local: bool) -> None:
        self.store = store
        self.local = local
        self.counts: Counter[str] = Counter()
        self.stored = 0
        self.ambiguous: dict[str, str] = {}  # by run, in words
        self._waiting: list[Told] = []

    def take(self, run: TrackedRun, points: list[Point]) -> None:
        """One run. It is written down with others."""
        self._waiting.append((run, points))
        if len(self._waiting) >= AT_ONCE or sum(len(points) for _, points in self._waiting) >= POINTS_AT_ONCE:
            self.write()

    def write(self) -> None:
        """What was taken is on the disk now."""
        told, self._waiting = self._waiting, []
        if not told:
            return
        joiner = Joiner(known(self.store, [run for run, _ in told], local=self.local))
        joins = [joiner.join(run) for run, _ in told]
        before, has = _before(self.store, told), _has(self.store, [join.run for join in joins if join.run])
        records: list[tuple[Any, ...]] = []
        for (run, points), join in zip(told, joins, strict=True):
            self.counts[JOINED[join.how] if join.how else AMBIGUOUS if join.candidates else UNJOINED] += 1
            self.ambiguous.pop(run.run_id, None)
            if join.candidates and len(self.ambiguous) < MOST_SAID:
                fitting = ", ".join(join.candidates[:5])
                self.ambiguous[run.run_id] = (
                    f"Run {run.run_id} ({run.where}) may be any of {fitting}: it is joined to none."
                )
            told_of = has.setdefault(join.run or "", set())
            news = joiner.records(run, join, points, before.get(run.run_id, ()), told_of)
            if join.run is not None:  # two trackers tell of one run: what the first said is not said again
                told_of.update(record.name for record in news if isinstance(record, Metric))
            records += news
        self.store.append(records)
        self.stored += len(records)


def known(store: Store, tracked: list[TrackedRun], *, local: bool) -> Known:
    """What a store knows of the time in which runs went on."""
    store.expose_all(["run", "workload", "pod", "allocation", "node", "event"])
    now_ms = time.time_ns() // 1_000_000
    from_ms = min(run.started_ms for run in tracked) - LATE_MS
    to_ms = max(run.ended_ms or now_ms for run in tracked) + LATE_MS
    ask = store.connection.execute
    told = ask(
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
        store, Run, "run, attempt, rank", "list_contains(?::VARCHAR[], run)", [[run for *_, run in told]], "true"
    )
    pods = newest_records(store, Pod, "pod_uid", "true", [], f"{times} AND coalesce(started_ms, time_ms) <= {to_ms}")
    holds = newest_records(
        store, Allocation, "pod_uid, node_uid, slot_index, instance, from_ms", "true", [],
        f"coalesce(to_ms, {to_ms}) >= {from_ms} AND from_ms <= {to_ms} AND (to_ms IS NULL OR to_ms > from_ms)",
    )  # fmt: skip
    sources = {source for (source,) in ask("SELECT DISTINCT source FROM allocation").fetchall()}
    is_known = sources - set(TRACKERS) or store.has("node")
    until_ms = store.newest_ms(["node", "slot", "pod", "allocation", "run"], now_ms) if is_known else None
    return Known(
        told={(kind, reason): run for kind, reason, run in told},
        runs={(run.run, run.attempt, run.rank): run for run in runs}.values(),
        workloads=newest_records(store, Workload, "workload_uid", "true", [], "true"),
        pods=[pod for pod in pods if not pod.pod_uid.startswith(tuple(f"{name}:" for name in TRACKERS))],
        holds=[hold for hold in holds if hold.source not in TRACKERS],
        nodes={node.node_uid: node.name for node in newest_records(store, Node, "node_uid", "true", [], "true")},
        newest_ms=until_ms if local else now_ms,
    )


def _before(store: Store, told: list[Told]) -> dict[str, list[Run]]:
    ids = [run.run_id for run, _ in told]
    where = "source IS NOT NULL AND list_contains(?::VARCHAR[], run)"
    found: dict[str, list[Run]] = {}
    for record in newest_records(store, Run, "run, attempt, rank", where, [ids], "true"):
        found.setdefault(record.run, []).append(record)
    return found


def _has(store: Store, runs: list[str]) -> dict[str, set[str]]:
    """The metrics that runs have already."""
    found: dict[str, set[str]] = {}
    if runs:
        store.expose_all(["metric"])
        rows = store.connection.execute(
            "SELECT DISTINCT run, name FROM metric WHERE list_contains(?::VARCHAR[], run)", [runs]
        ).fetchall()
        for run, name in rows:
            found.setdefault(run, set()).add(name)
    return found


def read_wandb(path: Path, tracking: Tracking, progress: Callable[[int, int], None]) -> int:
    """All runs in a folder of W&B, once; how many there were."""
    runs = 0
    for run, points, left_out in wandb.read(path, progress):
        tracking.take(run, points)
        runs += 1
        if left_out:
            tracking.counts["metrics or values left out"] += left_out
    tracking.write()
    return runs


# -- MLflow ------------------------------------------------------------------------------------------------------------


async def read_mlflow(mlflow: Mlflow, tracking: Tracking, progress: Callable[[int, int], None]) -> int:
    """All runs of a tracking server, once; how many there were."""
    curves = Curves(mlflow)
    found = [one async for one in mlflow.search(await mlflow.experiments())]
    for number, one in enumerate(found, 1):
        tracking.take(one.run, await curves.points(one))
        progress(number, len(found))
    tracking.write()
    if curves.left_out:
        tracking.counts["metrics or values left out"] += curves.left_out
    return len(found)


class FollowingMlflow:
    """A tracking server that is read again and again: the runs that go on, and those that ended since."""

    def __init__(self, store: Store, lock: asyncio.Lock, mlflow: Mlflow, *, every_s: float = EVERY_S) -> None:
        self.lock = lock
        self.every_s = every_s
        self.trouble: str | None = None
        self.looks = 0
        self.tracking = Tracking(store, local=False)
        self._mlflow = mlflow
        self._curves = Curves(mlflow)
        self._ended: dict[str, tuple[int | None, int]] = {}  # runs that were read to their end: when, how many metrics
        self._said: set[str] = set()  # runs that may be more than one thing
        self._mark = f"mlflow_read_until {mlflow.uri}"

    @property
    def source(self) -> FollowingMlflow:
        """What is asked how it goes."""
        return self

    @property
    def stored(self) -> int:
        """Records that were stored."""
        return self.tracking.stored

    def shortcomings(self) -> list[str]:
        """Why nothing comes, if nothing does. A run that may be two things is none: somebody would be woken by it."""
        return [self.trouble] if self.trouble else []

    async def run(self) -> None:
        """Until it is cancelled. A server that does not answer is asked again."""
        while True:
            try:
                await self.look()
                self.trouble = None
            except SourceError as error:
                self.trouble = str(error)
            await asyncio.sleep(self.every_s)

    async def look(self) -> None:
        """Reads what is new. What could not be written down is read again."""
        try:
            await self._look()
        except SourceError:
            raise  # what was read by then is kept, and written with what comes
        except Exception:
            self._curves, self._ended = Curves(self._mlflow), {}
            raise

    async def _look(self) -> None:
        began_ms = time.time_ns() // 1_000_000
        since_ms = int(self.tracking.store.meta(self._mark) or began_ms - FIRST_LOOK_MS) - OVERLAP_MS
        async for run, points in self._news(since_ms):
            async with self.lock:
                await to_its_end(self.tracking.take, run, points)
        async with self.lock:
            await to_its_end(self.tracking.write)
            await to_its_end(self.tracking.store.set_meta, self._mark, str(began_ms))
        for run_id, words in self.tracking.ambiguous.items():
            if run_id not in self._said:
                log.warning("%s", words)
        self._said = set(self.tracking.ambiguous)
        self.looks += 1

    async def _news(self, since_ms: int) -> AsyncIterator[Told]:
        experiments = await self._mlflow.experiments()
        seen: set[str] = set()
        for chosen in newer_than(since_ms):
            async for found in self._mlflow.search(experiments, chosen, MOST_AT_A_LOOK):
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
        if age_ms < YOUNG_MS or run.where.launch is None or age_ms > PATIENCE_MS:
            return age_ms < YOUNG_MS
        async with self.lock:
            return not await to_its_end(_is_launch, self.tracking.store, run.where.launch)


def _is_launch(store: Store, launch: str) -> bool:
    store.expose_all(["run"])
    ((count,),) = store.connection.execute("SELECT count(*) FROM run WHERE launch = ?", [launch]).fetchall()
    return bool(count)
