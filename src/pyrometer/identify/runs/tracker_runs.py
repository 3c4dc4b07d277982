"""Runs of experiment trackers, as records: which run or workload each of them is, and its metrics as curves.

A pure function of what a tracker reports and what is known. A run is joined by the first of these that has an answer:

1. its own processes: the SDK reported the tracker's run that they have;
2. its tags: the launch or the run that the SDK wrote into it, a workload, a pod;
3. its host: in Kubernetes that is the pod's name; else a machine, on which only one workload ran then.

Where two answers are possible, the run is not joined, and both are reported. What is joined to a workload has all GPUs
that this one held meanwhile: one process reports to a tracker for all ranks. A tracker changes no state of the ledger.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

from pyrometer.collect.gpu.device import host_uid
from pyrometer.collect.trackers.common import MLFLOW, WANDB, TrackedPoint, TrackedRun
from pyrometer.identify.runs.rank_locations import LOCAL
from pyrometer.identify.runs.rank_records import RUN_KIND
from pyrometer.model import events
from pyrometer.model.records import Allocation, Event, Metric, Pod, Run, Slot, Workload
from pyrometer.model.units import MS_PER_MINUTE, SHARE_WHOLE

Records = list[tuple[Any, ...]]
EVENT = {MLFLOW: events.MLFLOW_RUN, WANDB: events.WANDB_RUN}
LATE_MS = 5 * MS_PER_MINUTE  # clocks differ, and a program connects to its tracker some time after its pod has begun
_PHASES = {"succeeded": "Succeeded", "failed": "Failed", "killed": "Failed"}
MAX_HOST_CHARS = 63  # characters of a pod's name that its host name has


class TrackerContext(NamedTuple):
    """The runs, pods and devices in a store: the newest record of each."""

    reported: Mapping[tuple[str, str], str] = {}  # run whose processes reported it, by kind of event and tracker's id
    runs: Iterable[Run] = ()  # of their own processes
    workloads: Iterable[Workload] = ()
    pods: Iterable[Pod] = ()
    holds: Iterable[Allocation] = ()
    nodes: Mapping[str, str] = {}  # names of machines, by UID
    newest_ms: int | None = None  # until when anything is known; None: only trackers are known


class Join(NamedTuple):
    """The run or workload that a tracker's run is; neither if there are several candidates."""

    how: str | None = None  # process, tag, pod, host
    run: str | None = None  # that its own processes report
    pods: tuple[Pod, ...] = ()
    candidates: tuple[str, ...] = ()  # in words


class Joiner:
    """Finds the run or workload of a tracker's run."""

    def __init__(self, known: TrackerContext) -> None:
        self.known = known
        self._runs: dict[str, list[Run]] = defaultdict(list)
        self._in_pod: dict[str, list[Run]] = defaultdict(list)
        self._by_launch = {run.launch: run.run for run in known.runs if run.launch}
        for run in known.runs:
            self._runs[run.run].append(run)
            if run.pod_uid:
                self._in_pod[run.pod_uid].append(run)
        self._pods = {pod.pod_uid: pod for pod in known.pods}
        self._named: dict[str, list[Pod]] = defaultdict(list)
        self._of_workload: dict[str, list[Pod]] = defaultdict(list)
        for pod in known.pods:
            self._named[pod.name[:MAX_HOST_CHARS]].append(pod)
            if pod.workload_uid:
                self._of_workload[pod.workload_uid].append(pod)
        self._holds: dict[str, list[Allocation]] = defaultdict(list)
        for hold in known.holds:
            self._holds[hold.pod_uid].append(hold)
        self._workloads = {workload.workload_uid: workload for workload in known.workloads}

    def join(self, tracked: TrackedRun) -> Join:
        """Finds the run or workload of a tracker's run."""
        where = tracked.where
        reported = self.known.reported.get((EVENT[tracked.tracker], tracked.run_id)) or self._by_launch.get(
            where.launch or ""
        )
        if reported is not None:
            return Join("process", run=reported)
        if where.run in self._runs:
            return Join("tag", run=where.run)
        if where.workload is not None and (pods := self._pods_of(where.workload, tracked)):
            return self._one("tag", tracked, pods)
        if where.pod_uid in self._pods:
            return self._one("pod", tracked, [self._pods[where.pod_uid]])
        name = where.pod_name or where.host
        if name is not None and (pods := self._called(name, where.namespace, tracked)):
            return self._one("pod", tracked, pods)
        return self._on_host(tracked)

    def _pods_of(self, workload: str, tracked: TrackedRun) -> list[Pod]:
        """Names are reused: of the workloads with this name, the pods that ran meanwhile."""
        named = [uid for uid, one in self._workloads.items() if workload in (uid, *_names(one, tracked))]
        pods = (pod for uid in named for pod in self._of_workload[uid])
        return [pod for pod in pods if _overlaps(tracked, pod.started_ms or pod.time_ms, pod.ended_ms)]

    def _called(self, name: str, namespace: str | None, tracked: TrackedRun) -> list[Pod]:
        pods = (
            pod for pod in self._named.get(name[:MAX_HOST_CHARS], []) if name in (pod.name, pod.name[:MAX_HOST_CHARS])
        )
        return [pod for pod in pods if namespace in (None, pod.namespace) and _began_in(tracked, pod)]

    def _on_host(self, tracked: TrackedRun) -> Join:
        """The pods that held GPUs of the machine when the run began."""
        host = tracked.where.host
        if host is None:
            return Join()
        places = {host_uid(host), *(uid for uid, name in self.known.nodes.items() if name == host)}
        pods = [
            pod
            for pod in self.known.pods
            if pod.node_uid in places and self._holds[pod.pod_uid] and _began_in(tracked, pod)
        ]
        return self._one("host", tracked, pods)

    def _one(self, how: str, tracked: TrackedRun, pods: list[Pod]) -> Join:
        """The run of these pods' processes, else their workload; neither if they belong to several."""
        owners = {pod.workload_uid or pod.pod_uid: pod for pod in pods}
        if not owners:
            return Join()
        if len(owners) > 1:
            words = (f"{pod.namespace}/{self._called_here(pod)}" for pod in owners.values())
            return Join(candidates=tuple(sorted(words)))
        ((uid, pod),) = owners.items()
        all_pods = self._of_workload.get(uid) or [pod]
        runs = self._runs_in(pods, tracked) or self._runs_in(all_pods, tracked)
        if len(runs) > 1:
            return Join(candidates=tuple(sorted(runs)))
        return Join(how, run=runs.pop()) if runs else Join(how, pods=tuple(all_pods))

    def _runs_in(self, pods: list[Pod], tracked: TrackedRun) -> set[str]:
        runs = (run for pod in pods for run in self._in_pod[pod.pod_uid])
        return {run.run for run in runs if _overlaps(tracked, run.started_ms, run.ended_ms)}

    def _called_here(self, pod: Pod) -> str:
        workload = self._workloads.get(pod.workload_uid or "")
        return workload.name if workload else pod.name

    def records(
        self,
        tracked: TrackedRun,
        join: Join,
        points: Iterable[TrackedPoint],
        before: Iterable[Run],
        has: Iterable[str] = (),
    ) -> Records:
        """The records to write. `before`: the last ones of this run. `has`: the metrics that its processes reported."""
        if join.run is not None:
            return self._supplement(tracked, join, points, frozenset(has))
        points = list(points)
        places = list(self._places(tracked, join))
        own = not places and self.known.newest_ms is None
        until_ms = max([tracked.ended_ms or 0, tracked.started_ms, *(point.time_ms for point in points[-1:])])
        reported_ms = until_ms if own else min(tracked.started_ms, self.known.newest_ms or tracked.started_ms)
        places = _own_places(tracked, until_ms) if own else places or [_TrackedRank()]
        ranks = Counter(place.attempt for place in places)
        numbers = {attempt: count() for attempt in ranks}
        runs = [
            Run(
                time_ms=reported_ms,
                run=tracked.run_id,
                attempt=place.attempt,
                rank=next(numbers[place.attempt]),
                started_ms=max(tracked.started_ms, place.from_ms),
                ranks=ranks[place.attempt],
                cluster=place.cluster,
                experiment=None if join.pods else tracked.experiment,
                workload_uid=place.workload_uid,
                pod_uid=place.pod_uid,
                node_uid=place.node_uid,
                slot_index=place.slot_index,
                ended_ms=_ended(tracked, place, places),
                source=tracked.tracker,
                outcome=tracked.outcome if place.attempt == places[-1].attempt else None,
            )
            for place in places
        ]
        known = {(run.attempt, run.rank): run for run in before}
        news = list(_news(runs, known))
        found = [] if known else [_event(tracked, tracked.run_id, reported_ms)]
        held = _held(tracked, places, until_ms, news[0].time_ms) if own and news else []
        return [*news, *found, *held, *_curves(tracked, runs, points)]

    def _supplement(
        self, tracked: TrackedRun, join: Join, points: Iterable[TrackedPoint], has: frozenset[str]
    ) -> Records:
        """For a run that its own processes report: the tracker's run, and metrics that they did not report, such as
        those of an evaluation elsewhere. Metrics follow once the run has ended: before that they may only be late."""
        assert join.run is not None  # noqa: S101 - it is joined to one
        ranks = self._runs[join.run]
        begun_ms = min((one.started_ms for one in ranks), default=tracked.started_ms)
        found: Records = [] if join.how == "process" else [_event(tracked, join.run, begun_ms)]
        if tracked.ended_ms is None:
            return found
        attempt = max((one.attempt for one in ranks), default=1)
        rest = (point for point in points if point.name not in has)
        return found + [_metric(point, tracked, join.run, attempt, 0) for point in rest]

    def _places(self, tracked: TrackedRun, join: Join) -> Iterable[_TrackedRank]:
        """Every GPU that the workload held while the run was active; a pod that holds none counts as well."""
        for pod in sorted(join.pods, key=lambda pod: (pod.attempt, pod.name)):
            holds = [hold for hold in self._holds[pod.pod_uid] if _overlaps(tracked, hold.from_ms, hold.to_ms)]
            common = (pod.pod_uid, pod.workload_uid, pod.cluster, pod.attempt)
            for hold in sorted(holds, key=lambda hold: (hold.from_ms, hold.node_uid, hold.slot_index)):
                yield _TrackedRank(*common, hold.node_uid, hold.slot_index, hold.from_ms, hold.to_ms)
            if not holds and _overlaps(tracked, pod.started_ms or pod.time_ms, pod.ended_ms):
                yield _TrackedRank(*common, pod.node_uid, None, pod.started_ms or 0, pod.ended_ms)


class _TrackedRank(NamedTuple):
    """The location of one rank, as far as it is known."""

    pod_uid: str | None = None
    workload_uid: str | None = None
    cluster: str | None = None
    attempt: int = 1
    node_uid: str | None = None
    slot_index: int | None = None
    from_ms: int = 0
    to_ms: int | None = None


def _names(workload: Workload, tracked: TrackedRun) -> Iterable[str]:
    """The names of a workload; the last is the form in a stamp."""
    if tracked.where.namespace in (None, workload.namespace):
        yield workload.name
    yield f"{workload.namespace}/{workload.name}"
    yield f"{workload.kind} {workload.namespace}/{workload.name}"


def _began_in(tracked: TrackedRun, pod: Pod) -> bool:
    begun_ms = pod.started_ms or pod.scheduled_ms or pod.created_ms or pod.time_ms
    return begun_ms - LATE_MS <= tracked.started_ms and (pod.ended_ms is None or tracked.started_ms < pod.ended_ms)


def _overlaps(tracked: TrackedRun, from_ms: int, to_ms: int | None) -> bool:
    ends = tracked.ended_ms is None or from_ms <= tracked.ended_ms
    return ends and (to_ms is None or to_ms > tracked.started_ms)


def _ended(tracked: TrackedRun, place: _TrackedRank, places: list[_TrackedRank]) -> int | None:
    """The last attempt ends with the run, those before it with what they held."""
    last = place.attempt == places[-1].attempt
    ended_ms = tracked.ended_ms if last or tracked.ended_ms is None else min(tracked.ended_ms, place.to_ms or 2**62)
    return place.to_ms if ended_ms is None and not last else ended_ms


def _news(runs: list[Run], before: Mapping[tuple[int, int], Run]) -> Iterable[Run]:
    """Records that differ from the last one, with a later time."""
    for run in runs:
        last = before.get((run.attempt, run.rank))
        if last is None:
            yield run
        elif last[1:] != run[1:]:
            yield run._replace(time_ms=max(run.time_ms, last.time_ms + 1))


def _curves(tracked: TrackedRun, runs: list[Run], points: Iterable[TrackedPoint]) -> Iterable[Metric]:
    """Values, each of the attempt that ran then; its first rank represents all."""
    first: dict[int, Run] = {}
    for one in runs:
        first.setdefault(one.attempt, one)
    latest_first = sorted(first.values(), key=lambda one: -one.started_ms)
    for point in points:
        of = next((one for one in latest_first if one.started_ms <= point.time_ms), latest_first[-1])
        yield _metric(point, tracked, tracked.run_id, of.attempt, of.rank)


def _event(tracked: TrackedRun, run: str, time_ms: int) -> Event:
    return Event(
        time_ms=time_ms,
        kind=EVENT[tracked.tracker],
        run=run,
        attempt=1,
        rank=0,
        reason=tracked.run_id,
        message=tracked.description or None,
    )


def _metric(point: TrackedPoint, tracked: TrackedRun, run: str, attempt: int, rank: int) -> Metric:
    return Metric(
        time_ms=point.time_ms,
        run=run,
        attempt=attempt,
        rank=rank,
        name=point.name,
        value=point.value,
        step=point.step,
        source=tracked.tracker,
    )


# -- a folder that has only trackers' runs -----------------------------------------------------------------------


def _own_places(tracked: TrackedRun, until_ms: int) -> list[_TrackedRank]:
    """The GPUs that its machine had, or, without any, a device of its own: as of a run outside of Kubernetes."""
    host, common = tracked.where.host or "unknown", (f"{tracked.tracker}:{tracked.run_id}", tracked.run_id, LOCAL, 1)
    times = (tracked.started_ms, until_ms)
    if not tracked.where.gpus:
        return [_TrackedRank(*common, f"cpu:{host}:{tracked.run_id}:0", 0, *times)]
    return [_TrackedRank(*common, host_uid(host), index, *times) for index in range(tracked.where.gpus)]


def _held(tracked: TrackedRun, places: list[_TrackedRank], until_ms: int, at_ms: int) -> Records:
    uid, start_ms = f"{tracked.tracker}:{tracked.run_id}", tracked.started_ms
    until_ms = max(until_ms, start_ms + 1)
    records: Records = [
        Workload(
            time_ms=at_ms,
            cluster=LOCAL,
            workload_uid=tracked.run_id,
            kind=RUN_KIND,
            namespace=LOCAL,
            name=tracked.name,
            experiment=tracked.experiment or tracked.name,
            experiment_rule=tracked.tracker,
            team=LOCAL,
            team_rule=tracked.tracker,
            created_ms=start_ms,
        ),
        Pod(
            time_ms=at_ms,
            cluster=LOCAL,
            pod_uid=uid,
            namespace=LOCAL,
            name=tracked.name,
            phase=_PHASES.get(tracked.outcome or "", "Unknown"),
            workload_uid=tracked.run_id,
            attempt=1,
            rank=0,
            node_uid=places[0].node_uid,
            created_ms=start_ms,
            scheduled_ms=start_ms,
            started_ms=start_ms,
            ended_ms=until_ms,
            gpu_share=len(places) * SHARE_WHOLE,
        ),
    ]
    for place in places:
        assert place.node_uid is not None  # noqa: S101 - created by _own_places
        assert place.slot_index is not None  # noqa: S101 - likewise
        records.append(_own_slot(tracked, place.node_uid, place.slot_index, until_ms, at_ms))
        records.append(
            Allocation(
                time_ms=at_ms,
                pod_uid=uid,
                node_uid=place.node_uid,
                slot_index=place.slot_index,
                from_ms=start_ms,
                to_ms=until_ms,
                share=SHARE_WHOLE,
                source=tracked.tracker,
            )
        )
    return records


def _own_slot(tracked: TrackedRun, node_uid: str, slot_index: int, until_ms: int, at_ms: int) -> Slot:
    """A GPU of the run's machine, or its CPU."""
    if tracked.where.gpus:
        return Slot(
            time_ms=tracked.started_ms, node_uid=node_uid, slot_index=slot_index, gpu_model=tracked.where.gpu_model
        )
    return Slot(
        time_ms=at_ms,
        node_uid=node_uid,
        slot_index=slot_index,
        gpu_model="CPU",
        from_ms=tracked.started_ms,
        to_ms=until_ms,
    )
