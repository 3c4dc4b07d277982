"""Messages of ranks as records: the run and attempt of each, its pod and its device.

The records depend only on the messages and on `RunContext`, which the caller reads from the store. Whatever the order
of messages, their division into bodies and the number of repetitions, the records are the same.

- A run is named by its program, else by the workload of its pods (in a pipeline, by one of its steps), else by the
  first launch of its launcher. The launches of a run are its attempts, in the order in which they are first seen.
- A pod is found by its UID, else by namespace and name, else as the holder of the GPU. A device is found by its UUID,
  else the k-th device of the pod belongs to local rank k, else it is the host's device by index.
- A rank without a known pod holds its device itself: through a pod `run:LAUNCH:RANK` of a workload of kind `Run`, while
  its process lives. Ranks without a GPU get a device of their own, in a local folder only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pyrometer.collect.otlp.messages import EventMessage, Message, RankIdentity, RankMessages, RankStatus, WindowMessage
from pyrometer.identify.runs.launches import (
    Launch,
    RankState,
    end_of,
    identity_of,
    merge_identity,
    start_of,
    supersedes,
)
from pyrometer.identify.runs.rank_locations import RankLocator, RunContext, location_of
from pyrometer.identify.runs.rank_records import message_records, own_device_records
from pyrometer.identify.runs.saved_checkpoints import SavedCheckpoints
from pyrometer.model import events
from pyrometer.model.records import Run

MAX_ATTEMPTS = 2**15 - 1
MAX_REMEMBERED = 200_000  # ranks
# From the weakest report of an end to the strongest: a rank knows best that it failed.
_OUTCOMES = ("killed", "succeeded", "failed")

Records = list[tuple[Any, ...]]
Ranks = dict[tuple[str, int], tuple[Launch, RankState]]  # by launch and number


class MissingContext(NamedTuple):
    """The records that the caller reads from the store before messages can be taken."""

    launches: set[str]
    runs: set[str]
    pod_uids: set[str]
    pod_names: set[tuple[str, str]]  # namespace, name
    uuids: set[str]


class RunBatch(NamedTuple):
    """Records to store, and messages of ranks whose location is not known yet."""

    records: Records
    waiting: list[RankMessages]
    unnumbered: int = 0  # messages of attempts beyond the largest number


class RunRegistry:
    """The launches that have reported, with their ranks. `node_uid_of` finds a node by a machine's name."""

    def __init__(self, node_uid_of: Callable[[str], str | None] = lambda host: None) -> None:
        self._node_uid_of = node_uid_of
        self._launches: dict[str, Launch] = {}
        self._attempts: dict[str, dict[str, int]] = {}  # of each run, by launch
        self._checkpoints = SavedCheckpoints()

    def missing_context(self, reports: Iterable[RankMessages]) -> MissingContext:
        """The missing context of the ranks that report."""
        missing = MissingContext(set(), set(), set(), set(), set())
        for who, _ in reports:
            launch = self._launches.get(who.launch)
            if launch is None or not launch.whole:
                missing.launches.add(who.launch)
            if launch is None or who.rank not in launch.ranks or not launch.ranks[who.rank].location.settled:
                missing.runs.update(run for run in (who.run, who.restart_of) if run and run not in self._attempts)
                if who.pod_uid is not None:
                    missing.pod_uids.add(who.pod_uid)
                elif who.pod_name is not None and who.namespace is not None:
                    missing.pod_names.add((who.namespace, who.pod_name))
                if who.gpu_uuid is not None:
                    missing.uuids.add(who.gpu_uuid)
        return missing

    def take(
        self, reports: list[RankMessages], known: RunContext, *, local: bool = False, patient: bool = False
    ) -> RunBatch:
        """Turns messages into records. `local`: into a folder of this machine. `patient`: messages about pods and
        devices that are not known wait, since these may still become known."""
        self._remember(known)
        locator = RankLocator(known, self._node_uid_of)
        waiting, accepted = [], []
        fresh: dict[str, list[RankState]] = defaultdict(list)
        for who, messages in reports:
            launch = self._launches.setdefault(who.launch, Launch(who.launch))
            launch.whole = True  # the context has all of its ranks
            rank = _located(launch, who, messages, locator, local=local, patient=patient)
            if rank is None:
                waiting.append((who, messages))
                continue
            rank.who = merge_identity(rank.who, who)
            rank.last_report_ms = max(rank.last_report_ms, max(map(end_of, messages)))
            launch.started_ms = min(
                launch.started_ms, rank.record.started_ms if rank.record else start_of(who, messages)
            )
            if launch.run is None:
                fresh[launch.launch].append(rank)
            accepted.append((launch, rank, messages))
        ended = self._number(fresh, local=local)
        unnumbered = sum(len(messages) for launch, _, messages in accepted if launch.run is None)
        accepted = [(launch, rank, messages) for launch, rank, messages in accepted if launch.run is not None]
        records = self._records(accepted, ended)
        if waiting or unnumbered:
            self._launches = {name: launch for name, launch in self._launches.items() if launch.ranks}
        if sum(len(launch.ranks) for launch in self._launches.values()) > MAX_REMEMBERED:
            self._forget()
        return RunBatch(records, waiting, unnumbered)

    def _records(self, accepted: list[tuple[Launch, RankState, list[Message]]], ended: list[Launch]) -> Records:
        """The records of messages, and of all ranks that they change."""
        touched: Ranks = {(launch.launch, rank.who.rank): (launch, rank) for launch, rank, _ in accepted}
        touched |= {
            (launch.launch, number): (launch, rank) for launch in ended for number, rank in launch.ranks.items()
        }
        records: Records = []
        of_rank: dict[tuple[str, int], list[Message]] = defaultdict(list)
        for launch, rank, messages in accepted:
            of_rank[launch.launch, rank.who.rank] += messages
            records += message_records(launch, rank, messages)
            touched |= self._take_checkpoints(launch, rank, messages)
        for key, (launch, rank) in touched.items():
            records += self._rank_records(launch, rank, of_rank.get(key, []))
        return records

    def _forget(self) -> None:
        """Drops the launches that have been silent longest; if one reports again, the store remembers it."""
        ranks = 0
        for launch in sorted(self._launches.values(), key=lambda one: one.last_report_ms, reverse=True):
            ranks += len(launch.ranks)
            if ranks > MAX_REMEMBERED // 2:
                del self._launches[launch.launch]
        runs = {launch.run for launch in self._launches.values()}
        self._attempts = {run: attempts for run, attempts in self._attempts.items() if run in runs}
        self._checkpoints.keep(runs)

    # -- runs and attempts --------------------------------------------------------------------------------------------

    def _remember(self, known: RunContext) -> None:
        """Restores from the store what this process does not know itself."""
        for run, attempt, name in known.attempts:
            self._attempts.setdefault(run, {}).setdefault(name, attempt)
        for run, attempt, path, time_ms, step in known.checkpoints:
            self._checkpoints.add(run, attempt, path, time_ms, step)
        for record in known.ranks:
            assert record.launch is not None  # noqa: S101 - the query selects ranks by launch
            launch = self._launches.setdefault(record.launch, Launch(record.launch))
            launch.run, launch.attempt = record.run, record.attempt
            self._attempts.setdefault(record.run, {})[record.launch] = record.attempt
            launch.started_ms = min(launch.started_ms, record.started_ms)
            if record.rank not in launch.ranks:
                rank = launch.ranks[record.rank] = RankState(identity_of(record), location_of(record))
                rank.record, rank.ended_ms, rank.resumed_step = record, record.ended_ms, record.resumed_step
                rank.last_report_ms = max(record.time_ms, known.last_report_ms.get((record.launch, record.rank), 0))
                rank.restored = known.restored.get((record.launch, record.rank))

    def _number(self, fresh: dict[str, list[RankState]], *, local: bool) -> list[Launch]:
        """Makes new launches attempts of their runs, in the order of their starts. Returns the launches that they
        supersede."""
        ended = []
        for launch in sorted((self._launches[name] for name in fresh), key=lambda one: (one.started_ms, one.launch)):
            ranks = fresh[launch.launch]
            named = (rank.who.run for rank in ranks if rank.who.run)
            owned = (rank.location.run for rank in ranks if rank.location.run)
            again = (rank.who.restart_of for rank in ranks if rank.who.restart_of)
            run = next(named, None) or next(owned, None) or next(again, None) or launch.launch
            attempts = self._attempts.setdefault(run, {})
            attempt = attempts.get(launch.launch) or max(attempts.values(), default=0) + 1
            if attempt > MAX_ATTEMPTS:
                launch.ranks.clear()
                continue
            attempts[launch.launch] = attempt
            launch.run, launch.attempt = run, attempt
            ended += [other for other in self._launches.values() if supersedes(launch, other, local=local)]
        for launch in ended:
            launch.over = True
        return ended

    # -- ranks --------------------------------------------------------------------------------------------------------

    def _take_checkpoints(self, launch: Launch, rank: RankState, messages: list[Message]) -> Ranks:
        """Takes checkpoints that were saved or loaded. Returns the ranks that may have resumed from them."""
        assert launch.run is not None  # noqa: S101 - it has its number
        saved = False
        for message in messages:
            if not isinstance(message, EventMessage):
                continue
            if message.kind == events.RESTORED:
                if rank.restored is None or message.time_ms >= rank.restored.time_ms:
                    rank.restored = message
            elif message.kind == events.CHECKPOINT_SAVED and message.message and message.step is not None:
                self._checkpoints.add(launch.run, launch.attempt, message.message, message.time_ms, message.step)
                saved = True
        if not saved:
            return {}
        return {
            (name, number): (self._launches[name], other)
            for name in self._attempts[launch.run]
            if name in self._launches
            for number, other in self._launches[name].ranks.items()
            if other.restored is not None
        }

    def _rank_records(self, launch: Launch, rank: RankState, messages: list[Message]) -> Records:
        """The record of a rank if it has changed, and the records of the device that it holds itself."""
        assert launch.run is not None  # noqa: S101 - it has its number
        who, location, before = rank.who, rank.location, rank.record
        first_step_ms, outcome = _take_news(rank, messages)
        started_ms = before.started_ms if before else start_of(who, messages)
        ended_ms = rank.ended_ms
        if ended_ms is None and launch.over:
            ended_ms, outcome = rank.last_report_ms, "killed"
        now = Run(
            time_ms=max((message.time_ms for message in messages), default=rank.last_report_ms),
            run=launch.run,
            attempt=launch.attempt,
            rank=who.rank,
            started_ms=started_ms,
            ranks=max(who.ranks, who.rank + 1),
            launch=launch.launch,
            cluster=location.cluster,
            experiment=who.experiment,
            workload_uid=launch.run if location.own else location.workload_uid,
            pod_uid=location.pod_uid,
            node_uid=location.node_uid,
            slot_index=location.slot_index,
            first_step_ms=first_step_ms,
            ended_ms=None if ended_ms is None else max(ended_ms, started_ms),
            outcome=outcome,
            resumed_step=self._checkpoints.resumed_step(launch.run, launch.attempt, rank),
            framework=who.framework,
        )
        if before is not None:
            if now[1:] == before[1:]:
                return []
            now = now._replace(time_ms=max(now.time_ms, before.time_ms + 1))
        rank.record = now
        return [now, *(own_device_records(launch, rank, now) if location.own else ())]


def _located(
    launch: Launch, who: RankIdentity, messages: list[Message], locator: RankLocator, *, local: bool, patient: bool
) -> RankState | None:
    """The rank that reports, with its location; None while that may still become known."""
    rank = launch.ranks.get(who.rank)
    if rank is not None and rank.location.settled:
        return rank
    whole = who if rank is None else merge_identity(rank.who, who)
    steps = any(type(one) is WindowMessage for one in messages)
    location = locator.locate(whole, steps=steps, local=local, patient=patient)
    if location is None:
        return None
    rank = launch.ranks.setdefault(who.rank, RankState(who, location))
    rank.location = location
    return rank


def _take_news(rank: RankState, messages: list[Message]) -> tuple[int | None, str | None]:
    """Takes the end of a rank and its resumed step. Returns the end of its first step and its outcome."""
    before = rank.record
    news = [message for message in messages if isinstance(message, RankStatus)]
    ends = [one.ended_ms or one.time_ms for one in news if one.ended_ms or one.outcome]
    outcomes = [one.outcome for one in news if one.outcome]
    first = [one.first_step_ms for one in news if one.first_step_ms]
    resumed = [one.resumed_step for one in news if one.resumed_step is not None]
    if before is not None and rank.ended_ms is not None:
        ends, outcomes = [*ends, rank.ended_ms], [*outcomes, *([before.outcome] if before.outcome else [])]
    if before is not None and before.first_step_ms is not None:
        first.append(before.first_step_ms)
    if rank.resumed_step is not None:
        resumed.append(rank.resumed_step)
    rank.ended_ms, rank.resumed_step = max(ends, default=None), min(resumed, default=None)
    return min(first, default=None), max(outcomes, key=_OUTCOMES.index, default=None)
