"""What ranks say, as records: of which run and attempt it is, in which pod, on which device.

A pure function of what was said and what is known; `Known` is read from the store by whoever has it. In whatever order,
in whatever pieces and however often the same messages come, the same facts follow.

- A run is what its program calls it, else the workload of its pods (of a pipeline, one step of it), else the launch:
  that which its launcher made first, where it begins again. Launches of a run are its attempts, numbered as they are
  first seen.
- A pod is known by its UID, else by namespace and name, else by who has the GPU. A device is known by its UUID, else
  the k-th device of the pod is that of local rank k, else it is the host's by index.
- A rank whose pod nobody knows holds its device itself: a pod `run:LAUNCH:RANK` of a workload of kind `Run`, for as
  long as its process lives. Ranks without a GPU get a device of their own, in a local folder only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pyrometer.collect.gpu_device import host_uid
from pyrometer.collect.said import Drawn, Happened, Message, News, Piece, Said, Value, Who, Window
from pyrometer.model import events
from pyrometer.model.records import (
    OWN_POD,
    Allocation,
    Batch,
    Event,
    Metric,
    Pod,
    Run,
    Slot,
    Span,
    StepWindow,
    Workload,
)
from pyrometer.model.units import MS_PER_DAY, MS_PER_MINUTE, SHARE_WHOLE

LOCAL = "local"  # cluster, namespace and team of what runs outside of Kubernetes
CPU = "cpu:"  # devices of runs that have no GPU begin like this
KIND = "Run"
SOURCE = "sdk"
MOST_ATTEMPTS = 2**15 - 1
MOST_REMEMBERED = 200_000  # ranks
MOST_PATHS = 1_000  # of checkpoints of one run: the newest, which may be resumed from
MOST_AGE_MS = 366 * MS_PER_DAY  # of a process; one that says to be older has a clock that was not set
SILENT_MS = 10 * MS_PER_MINUTE
# What several said of an end: a rank knows best that it failed, and whoever saw it vanish knows least.
_OUTCOMES = ("killed", "succeeded", "failed")
_PHASES = {"succeeded": "Succeeded", "failed": "Failed", "killed": "Failed"}

Records = list[tuple[Any, ...]]


class Wanted(NamedTuple):
    """What has to be known before messages can be taken."""

    launches: set[str]
    runs: set[str]
    pod_uids: set[str]
    pod_names: set[tuple[str, str]]  # namespace, name
    uuids: set[str]


class Known(NamedTuple):
    """What is known of what was wanted: the newest word on each."""

    ranks: Iterable[Run] = ()  # of launches
    heard_ms: Mapping[tuple[str, int], int] = {}  # the last word of ranks, by launch and rank
    restored: Mapping[tuple[str, int], Happened] = {}  # the last checkpoint that ranks loaded, likewise
    attempts: Iterable[tuple[str, int, str]] = ()  # run, attempt, launch
    checkpoints: Iterable[tuple[str, int, str, int, int]] = ()  # run, attempt, path, time, step
    pods: Iterable[Pod] = ()
    slots: Iterable[Slot] = ()
    holds: Iterable[Allocation] = ()  # of those pods, and on those slots


class Taken(NamedTuple):
    """What to write down, and what cannot be placed yet."""

    records: Records
    waiting: list[Said]
    unnumbered: int = 0  # messages of attempts beyond those that can be numbered


class _Place(NamedTuple):
    """Where a rank is. Without a slot it is in no account."""

    node_uid: str
    slot_index: int | None
    pod_uid: str | None = None
    workload_uid: str | None = None
    run: str | None = None  # what its pod's run is called, where its program does not say it
    cluster: str | None = None
    own: bool = False  # it holds its device itself
    unseen: bool = False  # nobody has described its device
    settled: bool = True  # it has said which kind of device it uses


class _Rank:
    """One rank: where it is, and the last record of it."""

    __slots__ = ("ended_ms", "heard_ms", "place", "record", "restored", "resumed_step", "who")

    def __init__(self, who: Who, place: _Place) -> None:
        self.who, self.place = who, place
        self.record: Run | None = None
        self.heard_ms = 0
        self.ended_ms: int | None = None  # as it was told
        self.resumed_step: int | None = None  # as it was told
        self.restored: Happened | None = None


class _Launch:
    """One start of a job."""

    def __init__(self, launch: str) -> None:
        self.launch = launch
        self.run: str | None = None
        self.attempt = 0
        self.ranks: dict[int, _Rank] = {}
        self.whole = False  # all of its ranks that were ever known are here
        self.started_ms = 2**62
        self.over = False  # a later one took its place: its ranks ended with their last words, or as they say
        self.workload: Workload | None = None  # as it was last written

    @property
    def heard_ms(self) -> int:
        """Its last word."""
        return max((rank.heard_ms for rank in self.ranks.values()), default=0)


class Runs:
    """Remembers every launch that speaks. `node_uid_of` knows machines by name."""

    def __init__(self, node_uid_of: Callable[[str], str | None] = lambda host: None) -> None:
        self._node_uid_of = node_uid_of
        self._launches: dict[str, _Launch] = {}
        self._attempts: dict[str, dict[str, int]] = {}  # of each run, by launch
        self._saved: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}  # run, path, attempt: time and step

    def wanted(self, said: Iterable[Said]) -> Wanted:
        """What is not known of the ranks that speak."""
        wanted = Wanted(set(), set(), set(), set(), set())
        for who, _ in said:
            launch = self._launches.get(who.launch)
            if launch is None or not launch.whole:
                wanted.launches.add(who.launch)
            if launch is None or who.rank not in launch.ranks or not launch.ranks[who.rank].place.settled:
                wanted.runs.update(run for run in (who.run, who.restart_of) if run and run not in self._attempts)
                if who.pod_uid is not None:
                    wanted.pod_uids.add(who.pod_uid)
                elif who.pod_name is not None and who.namespace is not None:
                    wanted.pod_names.add((who.namespace, who.pod_name))
                if who.gpu_uuid is not None:
                    wanted.uuids.add(who.gpu_uuid)
        return wanted

    def take(self, said: list[Said], known: Known, *, local: bool = False, patient: bool = False) -> Taken:
        """What ranks say, as records. `local`: into a folder of this machine. `patient`: pods and devices that are not
        known yet may come to be; what is said of them waits."""
        self._remember(known)
        where = _Surroundings(known, self._node_uid_of)
        waiting, heard = [], []
        fresh: dict[str, list[_Rank]] = defaultdict(list)
        for who, messages in said:
            launch = self._launches.setdefault(who.launch, _Launch(who.launch))
            launch.whole = True  # it was among what is wanted
            rank = launch.ranks.get(who.rank)
            if rank is None or not rank.place.settled:
                whole = who if rank is None else _merged(rank.who, who)
                place = where.place(
                    whole, steps=any(type(one) is Window for one in messages), local=local, patient=patient
                )
                if place is None:
                    waiting.append((who, messages))
                    continue
                rank = launch.ranks.setdefault(who.rank, _Rank(who, place))
                rank.place = place
            rank.who = _merged(rank.who, who)
            rank.heard_ms = max(rank.heard_ms, max(map(_end_ms, messages)))
            launch.started_ms = min(
                launch.started_ms, rank.record.started_ms if rank.record else _started(who, messages)
            )
            if launch.run is None:
                fresh[launch.launch].append(rank)
            heard.append((launch, rank, messages))
        records: Records = []
        ended = self._number(fresh, local=local)
        unnumbered = sum(len(messages) for launch, _, messages in heard if launch.run is None)
        heard = [(launch, rank, messages) for launch, rank, messages in heard if launch.run is not None]
        touched = {(launch.launch, rank.who.rank): (launch, rank) for launch, rank, _ in heard}
        touched |= {
            (launch.launch, number): (launch, rank) for launch in ended for number, rank in launch.ranks.items()
        }
        news: dict[tuple[str, int], list[Message]] = defaultdict(list)
        for launch, rank, messages in heard:
            news[launch.launch, rank.who.rank] += messages
            records += _facts(launch, rank, messages)
            touched |= self._saves(launch, rank, messages)
        for key, (launch, rank) in touched.items():
            records += self._tell(launch, rank, news.get(key, []))
        if waiting or unnumbered:
            self._launches = {name: launch for name, launch in self._launches.items() if launch.ranks}
        if sum(len(launch.ranks) for launch in self._launches.values()) > MOST_REMEMBERED:
            self._forget()
        return Taken(records, waiting, unnumbered)

    def _forget(self) -> None:
        """Drops the launches that have been silent longest; if one speaks again, the store remembers it."""
        ranks = 0
        for launch in sorted(self._launches.values(), key=lambda one: one.heard_ms, reverse=True):
            ranks += len(launch.ranks)
            if ranks > MOST_REMEMBERED // 2:
                del self._launches[launch.launch]
        spoken = {launch.run for launch in self._launches.values()}
        self._attempts = {run: attempts for run, attempts in self._attempts.items() if run in spoken}
        self._saved = {run: saved for run, saved in self._saved.items() if run in spoken}

    # -- which run, which attempt -------------------------------------------------------------------------------------

    def _remember(self, known: Known) -> None:
        """What the store has, where this process does not know it itself."""
        for run, attempt, name in known.attempts:
            self._attempts.setdefault(run, {}).setdefault(name, attempt)
        for run, attempt, path, time_ms, step in known.checkpoints:
            self._save(run, attempt, path, time_ms, step)
        for record in known.ranks:
            assert record.launch is not None  # noqa: S101 - they were asked for by launch
            launch = self._launches.setdefault(record.launch, _Launch(record.launch))
            launch.run, launch.attempt = record.run, record.attempt
            self._attempts.setdefault(record.run, {})[record.launch] = record.attempt
            launch.started_ms = min(launch.started_ms, record.started_ms)
            if record.rank not in launch.ranks:
                rank = launch.ranks[record.rank] = _Rank(_who(record), _place(record))
                rank.record, rank.ended_ms, rank.resumed_step = record, record.ended_ms, record.resumed_step
                rank.heard_ms = max(record.time_ms, known.heard_ms.get((record.launch, record.rank), 0))
                rank.restored = known.restored.get((record.launch, record.rank))

    def _number(self, fresh: dict[str, list[_Rank]], *, local: bool) -> list[_Launch]:
        """Launches that are seen for the first time become attempts of their runs, the first that started first. Gives
        those that they put an end to."""
        ended = []
        for launch in sorted((self._launches[name] for name in fresh), key=lambda one: (one.started_ms, one.launch)):
            ranks = fresh[launch.launch]
            named = (rank.who.run for rank in ranks if rank.who.run)
            owned = (rank.place.run for rank in ranks if rank.place.run)
            again = (rank.who.restart_of for rank in ranks if rank.who.restart_of)
            run = next(named, None) or next(owned, None) or next(again, None) or launch.launch
            attempts = self._attempts.setdefault(run, {})
            attempt = attempts.get(launch.launch) or max(attempts.values(), default=0) + 1
            if attempt > MOST_ATTEMPTS:
                launch.ranks.clear()
                continue
            attempts[launch.launch] = attempt
            launch.run, launch.attempt = run, attempt
            ended += [other for other in self._launches.values() if _succeeds(launch, other, local=local)]
        for launch in ended:
            launch.over = True
        return ended

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def _saves(
        self, launch: _Launch, rank: _Rank, messages: list[Message]
    ) -> dict[tuple[str, int], tuple[_Launch, _Rank]]:
        """Takes note of checkpoints; gives the ranks that may have resumed from them."""
        assert launch.run is not None  # noqa: S101 - it has its number
        saved = False
        for message in messages:
            if not isinstance(message, Happened):
                continue
            if message.kind == events.RESTORED:
                if rank.restored is None or message.time_ms >= rank.restored.time_ms:
                    rank.restored = message
            elif message.kind == events.CHECKPOINT_SAVED and message.message and message.step is not None:
                self._save(launch.run, launch.attempt, message.message, message.time_ms, message.step)
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

    def _save(self, run: str, attempt: int, path: str, time_ms: int, step: int) -> None:
        paths = self._saved.setdefault(run, {})
        if path not in paths and len(paths) >= MOST_PATHS:
            del paths[next(iter(paths))]  # the oldest
        of_path = paths.setdefault(path, {})
        of_path[attempt] = max(of_path.get(attempt, (0, 0)), (time_ms, step))

    def _resumed(self, launch: _Launch, rank: _Rank) -> int | None:
        """From which step it went on: as it said, else that of the checkpoint it loaded, as who saved it said."""
        if rank.resumed_step is not None or rank.restored is None:
            return rank.resumed_step
        if rank.restored.step is not None:
            return rank.restored.step
        saved = self._saved.get(launch.run or "", {}).get(rank.restored.message or "", {})
        earlier = [when for attempt, when in saved.items() if attempt < launch.attempt]
        return max(earlier)[1] if earlier else None

    def _tell(self, launch: _Launch, rank: _Rank, messages: list[Message]) -> Records:
        """The record of a rank, with all that is known so far, if any of it is new; and that of what it holds."""
        assert launch.run is not None  # noqa: S101 - it has its number
        who, place, before = rank.who, rank.place, rank.record
        news = [message for message in messages if isinstance(message, News)]
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
        started_ms = before.started_ms if before else _started(who, messages)
        ended_ms, outcome = rank.ended_ms, max(outcomes, key=_OUTCOMES.index, default=None)
        if ended_ms is None and launch.over:
            ended_ms, outcome = rank.heard_ms, "killed"
        now = Run(
            time_ms=max((message.time_ms for message in messages), default=rank.heard_ms),
            run=launch.run, attempt=launch.attempt, rank=who.rank, started_ms=started_ms,
            ranks=max(who.ranks, who.rank + 1), launch=launch.launch, cluster=place.cluster, experiment=who.experiment,
            workload_uid=launch.run if place.own else place.workload_uid, pod_uid=place.pod_uid,
            node_uid=place.node_uid, slot_index=place.slot_index, first_step_ms=min(first, default=None),
            ended_ms=None if ended_ms is None else max(ended_ms, started_ms), outcome=outcome,
            resumed_step=self._resumed(launch, rank), framework=who.framework,
        )  # fmt: skip
        if before is not None:
            if now[1:] == before[1:]:
                return []
            now = now._replace(time_ms=max(now.time_ms, before.time_ms + 1))
        rank.record = now
        return [now, *(_held(launch, rank, now) if place.own else ())]


# -- where ------------------------------------------------------------------------------------------------------------


class _Surroundings:
    """What is known of pods and devices, by what ranks say of themselves."""

    def __init__(self, known: Known, node_uid_of: Callable[[str], str | None]) -> None:
        self._pods = {pod.pod_uid: pod for pod in known.pods}
        self._named = {(pod.namespace, pod.name): pod for pod in sorted(known.pods, key=lambda pod: pod.time_ms)}
        self._slots = {slot.uuid: slot for slot in sorted(known.slots, key=lambda slot: slot.time_ms)}
        self._of_pod: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._on_slot: dict[tuple[str, int], list[Allocation]] = defaultdict(list)
        for hold in known.holds:
            if hold.source != SOURCE:
                self._of_pod[hold.pod_uid].add((hold.node_uid, hold.slot_index))
                self._on_slot[hold.node_uid, hold.slot_index].append(hold)
        self._node_uid_of = node_uid_of

    def place(self, who: Who, *, steps: bool, local: bool, patient: bool) -> _Place | None:
        """Where a rank is; None when that may still turn out. One that makes steps and speaks of no GPU has none."""
        in_kubernetes = who.pod_uid is not None or who.pod_name is not None
        pod = self._pods.get(who.pod_uid or "") or self._named.get((who.namespace or "", who.pod_name or ""))
        if patient and in_kubernetes and pod is None:
            return None
        slot = self._slot(who, pod)
        on_gpu = who.device == "cuda" or (who.device is None and (slot or who.gpu_uuid or who.gpu_index is not None))
        host = who.host or "unknown"
        if not on_gpu:
            settled = steps or who.device is not None
            virtual = f"{CPU}{host}:{who.launch}:{who.rank}"
            own = settled and local and pod is None
            return _placed(who, pod, virtual, 0 if own else None, own=own)._replace(settled=settled)
        if patient and in_kubernetes and slot is None:
            return None
        if slot is not None and pod is None:
            pod = self._pods.get(self._holder(slot, who) or "")
        if slot is not None:
            return _placed(who, pod, *slot, own=pod is None)
        index = who.gpu_index if who.gpu_index is not None else who.local_rank or 0
        node_uid = self._node_uid_of(host) or (pod.node_uid if pod else None) or host_uid(host)
        return _placed(who, pod, node_uid, min(index, 2**15 - 1), own=pod is None)._replace(unseen=True)

    def _slot(self, who: Who, pod: Pod | None) -> tuple[str, int] | None:
        known = self._slots.get(who.gpu_uuid or "")
        if known is not None:
            return known.node_uid, known.slot_index
        if pod is None:
            return None
        held = sorted(self._of_pod.get(pod.pod_uid, ()))
        number = who.local_rank if who.local_rank is not None else who.rank
        return held[number] if number < len(held) else None

    def _holder(self, slot: tuple[str, int], who: Who) -> str | None:
        """The pod that has a slot when a process starts on it."""
        at_ms = who.started_ms or 2**62
        found = [
            hold
            for hold in self._on_slot.get(slot, ())
            if hold.from_ms <= at_ms and (hold.to_ms is None or hold.to_ms > at_ms)
        ]
        return max(found, key=lambda hold: hold.from_ms).pod_uid if found else None


def _placed(who: Who, pod: Pod | None, node_uid: str, slot_index: int | None, *, own: bool) -> _Place:
    if pod is not None:
        return _Place(node_uid, slot_index, pod.pod_uid, pod.workload_uid, _run_of(pod), pod.cluster)
    if own:
        return _Place(node_uid, slot_index, f"{OWN_POD}{who.launch}:{who.rank}", cluster=LOCAL, own=True)
    return _Place(node_uid, slot_index, who.pod_uid)


def _place(run: Run) -> _Place:
    """Where a rank is, as its record has it."""
    own = run.pod_uid == f"{OWN_POD}{run.launch}:{run.rank}"
    settled = run.slot_index is not None or run.first_step_ms is not None
    workload_uid = None if own else run.workload_uid
    node_uid = run.node_uid or f"{CPU}{LOCAL}:{run.launch}:{run.rank}"
    return _Place(
        node_uid,
        run.slot_index,
        run.pod_uid,
        workload_uid,
        run.run if workload_uid else None,
        run.cluster,
        own,
        settled=settled,
    )


def _run_of(pod: Pod) -> str | None:
    """A workload is one run; a pipeline is as many as it has steps that train."""
    step = pod.pipeline_step if pod.pipeline_attempt is not None else None
    return f"{pod.workload_uid}/{step}" if pod.workload_uid and step else pod.workload_uid


def _who(run: Run) -> Who:
    """Who a rank is, as its record has it."""
    return Who(
        run.launch or "", run.rank, run.ranks, run.run, run.experiment, started_ms=run.started_ms,
        framework=run.framework,
    )  # fmt: skip


def _merged(before: Who, now: Who) -> Who:
    """What a rank said of itself so far: it may learn its experiment and its framework after its first words."""
    if now == before:
        return before
    told = {name: value for name, value in now._asdict().items() if getattr(before, name) is None}
    return before._replace(**told, ranks=max(before.ranks, now.ranks))


# -- when -------------------------------------------------------------------------------------------------------------


def _started(who: Who, messages: list[Message]) -> int:
    """When a process began: as it says, if that can be; else with its first words."""
    first_ms = min(message.time_ms for message in messages)
    said_ms = who.started_ms
    can_be = said_ms is not None and first_ms - MOST_AGE_MS <= said_ms <= first_ms + SILENT_MS
    return said_ms if said_ms is not None and can_be else first_ms


def _end_ms(message: Message) -> int:
    return message.to_ms if isinstance(message, Window) else message.time_ms


def _succeeds(launch: _Launch, other: _Launch, *, local: bool) -> bool:
    """Whether another launch must be over since this one began: an earlier attempt, or one that nobody has heard of for
    a while on this machine. Of those in pods, Kubernetes knows."""
    if other is launch or other.over or not any(rank.place.own for rank in other.ranks.values()):
        return False
    if other.run == launch.run:
        return other.attempt < launch.attempt
    return local and other.heard_ms + SILENT_MS < launch.started_ms


# -- records ----------------------------------------------------------------------------------------------------------


def _facts(launch: _Launch, rank: _Rank, messages: list[Message]) -> Records:
    """What was said, with who said it and where that is."""
    run, attempt, number, place = launch.run, launch.attempt, rank.who.rank, rank.place
    assert run is not None  # noqa: S101 - it has its number
    records: Records = []
    for message in messages:
        if isinstance(message, Window):
            records.append(
                StepWindow(
                    message.time_ms, message.to_ms, run, attempt, number, place.node_uid, place.slot_index or 0,
                    place.pod_uid, *message[2:],
                )
            )  # fmt: skip
        elif isinstance(message, Piece):
            records.append(
                Span(
                    message.time_ms, message.trace_id, message.span_id, message.name, message.duration_us, run, attempt,
                    number, message.step, message.parent_id, message.attributes_json, message.after_us,
                )
            )  # fmt: skip
        elif isinstance(message, Value):
            records.append(Metric(message.time_ms, run, attempt, number, *message[1:]))
        elif isinstance(message, Drawn):
            records.append(Batch(message.time_ms, run, attempt, number, *message[1:]))
        elif isinstance(message, Happened):
            records.append(
                Event(
                    message.time_ms, message.kind, message.duration_ms, run=run, attempt=attempt, rank=number,
                    step=message.step, reason=message.reason, message=message.message,
                )
            )  # fmt: skip
    return records


def _held(launch: _Launch, rank: _Rank, run: Run) -> Records:
    """A rank that holds its device itself: the device, the holder, and whose it is."""
    who, place, at_ms = rank.who, rank.place, run.time_ms
    assert run.pod_uid is not None  # noqa: S101 - it has one of its own
    assert place.slot_index is not None  # noqa: S101 - likewise
    virtual = place.node_uid.startswith(CPU)
    unnamed = run.run in (launch.launch, who.restart_of)
    name = run.run if not unnamed else who.experiment or run.run[:8]
    workload = Workload(
        at_ms, LOCAL, run.run, KIND, LOCAL, name, experiment=run.experiment or name, experiment_rule=SOURCE,
        team=LOCAL, team_rule=SOURCE,
    )  # fmt: skip
    records: Records = []
    if launch.workload is None or launch.workload[1:] != workload[1:]:
        launch.workload = workload
        records.append(workload)
    if virtual:
        lived = (run.started_ms, run.ended_ms)
        records.append(Slot(at_ms, place.node_uid, place.slot_index, None, "CPU", True, None, *lived))
    elif place.unseen:
        records.append(Slot(run.started_ms, place.node_uid, place.slot_index, who.gpu_uuid, who.gpu_model))
    records.append(
        Pod(
            at_ms, LOCAL, run.pod_uid, LOCAL, f"{name}-{run.attempt}-{run.rank}",
            _PHASES.get(run.outcome or "", "Running"), run.run, run.attempt, run.rank, place.node_uid,
            created_ms=run.started_ms, scheduled_ms=run.started_ms, started_ms=run.started_ms, ended_ms=run.ended_ms,
            gpu_share=SHARE_WHOLE,
        )
    )  # fmt: skip
    records.append(
        Allocation(
            at_ms, run.pod_uid, place.node_uid, place.slot_index, run.started_ms, run.ended_ms, SHARE_WHOLE,
            source=SOURCE,
        )
    )  # fmt: skip
    return records
