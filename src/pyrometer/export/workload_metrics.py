"""The lives of workloads as Prometheus metrics, for every kind: what controllers of PyTorchJobs and TrainJobs do not
say themselves. Of workloads that are there, and for an hour after their end.

The largest come first, and whoever has series keeps them. How workloads ended is counted from when this process began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pyrometer.answers.fleet.workload_status import ENDED_MS, PHASES, WorkloadStatus, WorkloadStatuses
from pyrometer.answers.runs.progress import RunActivity
from pyrometer.export.metrics_text import Prepared, label
from pyrometer.export.run_metrics import Gauge
from pyrometer.store import StoreReader

MOST_WORKLOADS = 500
MOST_ENDS = 500  # combinations of kind, team and outcome
OUTCOMES = ("succeeded", "failed")

_WORKLOAD = ("workload", "kind", "team")

GAUGES = (
    Gauge(
        "pyrometer_workload_phase",
        "1 for where it stands: queued, pending (for nodes), starting, running, succeeded or failed",
        ("phase",),
    ),
    Gauge("pyrometer_workload_pods", "Pods with GPUs of its newest attempt"),
    Gauge("pyrometer_workload_created_timestamp_seconds", "When it was created"),
    Gauge("pyrometer_workload_ended_timestamp_seconds", "When its last pod ended; absent before"),
    Gauge("pyrometer_workload_queued_seconds", "How long it waited in its queue until it was admitted (Kueue), in all"),
    Gauge("pyrometer_workload_scheduled_seconds", "From its creation until all pods of its first attempt had nodes"),
    Gauge("pyrometer_workload_all_running_seconds", "From its creation until its whole gang ran for the first time"),
    Gauge("pyrometer_workload_first_step_seconds", "From its creation until its first step was done, says the SDK"),
    Gauge("pyrometer_workload_attempts", "How often its pods began, from 1"),
    Gauge("pyrometer_workload_container_restarts", "Containers that ended and were started again inside of their pods"),
    Gauge("pyrometer_workload_lost_work_gpu_seconds", "GPU-seconds of steps that a later attempt had to do again"),
    Gauge(
        "pyrometer_workload_last_progress_timestamp_seconds",
        "When it last got on: a step that the SDK saw, or its controller's word",
    ),
    Gauge("pyrometer_workload_progress_ratio", "How far it is, as its controller says (Kubeflow Trainer)"),
    Gauge("pyrometer_workload_remaining_seconds", "How long it will take, as its controller says (Kubeflow Trainer)"),
)


class Workloads(Prepared):
    """The workloads that are shown."""

    def __init__(self, *, most: int = MOST_WORKLOADS) -> None:
        super().__init__()
        self.most = most
        self.standings = WorkloadStatuses()
        self.ended: Counter[tuple[str, str, str]] = Counter()  # by kind, team and outcome
        self._shown: dict[str, None] = {}
        self._over: dict[str, int] | None = None  # workloads whose end is counted, or was before this process began
        self.prepare(self._metrics([], 0))

    def count(self, store: StoreReader, end_ms: int, runs: Iterable[RunActivity] = ()) -> None:
        """Reads where workloads stand; the ledger is up to date until `end_ms`."""
        self.standings.read(store, end_ms, runs)
        self._count_ends(end_ms)
        newest: dict[tuple[str, str], WorkloadStatus] = {}
        for one in sorted(self.standings.workloads, key=lambda one: (one.created_ms, one.uid)):
            newest[one.workload, one.kind] = one  # of two of one name, the later: labels tell no more
        there = {one.uid: one for one in newest.values()}
        self._shown = {uid: None for uid in self._shown if uid in there}
        for uid in sorted(there, key=lambda uid: (-there[uid].share, -there[uid].created_ms, uid)):
            if len(self._shown) < self.most:
                self._shown.setdefault(uid)
        shown = sorted((there[uid] for uid in self._shown), key=lambda one: (one.workload, one.kind))
        self.prepare(self._metrics(shown, len(there) - len(shown)))

    def _count_ends(self, end_ms: int) -> None:
        """Each end once; what had ended before this process began counts for nothing, but its series begins."""
        over = {one.uid: one for one in self.standings.workloads if one.phase in OUTCOMES}
        first = self._over is None
        known = self._over or {}
        for one in self.standings.workloads:
            for outcome in OUTCOMES:
                key = (one.kind, one.team, outcome)
                if key not in self.ended and len(self.ended) < MOST_ENDS:
                    self.ended[key] = 0  # a counter's first value is no increase
        for uid, one in over.items():
            if uid not in known and not first and (one.kind, one.team, one.phase) in self.ended:
                self.ended[one.kind, one.team, one.phase] += 1
            known[uid] = one.ended_ms or end_ms
        for uid in [uid for uid, at_ms in known.items() if at_ms < end_ms - 2 * ENDED_MS and uid not in over]:
            del known[uid]
        self._over = known

    def _metrics(self, shown: list[WorkloadStatus], left_out: int) -> Iterator[Metric]:
        families = {
            gauge.name: GaugeMetricFamily(gauge.name, gauge.meaning, labels=[*_WORKLOAD, *gauge.labels])
            for gauge in GAUGES
        }
        for one in shown:
            named = [label(one.workload), label(one.kind), label(one.team)]
            for phase in PHASES:
                families["pyrometer_workload_phase"].add_metric([*named, phase], float(one.phase == phase))
            for name, figure in _figures(one).items():
                if figure is not None:
                    families[f"pyrometer_workload_{name}"].add_metric(named, figure)
        yield from families.values()
        ended = CounterMetricFamily(
            "pyrometer_workloads_ended",
            "Workloads that ended since this process began",
            labels=["kind", "team", "outcome"],
        )
        for (kind, team, outcome), count in sorted(self.ended.items()):
            ended.add_metric([label(kind), label(team), outcome], count)
        yield ended
        beyond = GaugeMetricFamily(
            "pyrometer_workload_lives_left_out", "Workloads whose lives have no series: too many"
        )
        beyond.add_metric([], left_out)
        yield beyond


def _figures(one: WorkloadStatus) -> dict[str, float | None]:
    """What is known of a workload; what is not is absent."""
    done = one.progress or {"share": None, "eta_ms": None}

    def after(time_ms: int | None) -> float | None:
        return None if time_ms is None else max(0, time_ms - one.created_ms) / 1000

    return {
        "pods": one.pods,
        "created_timestamp_seconds": one.created_ms / 1000,
        "ended_timestamp_seconds": _seconds(one.ended_ms),
        "queued_seconds": _seconds(one.queued_ms),
        "scheduled_seconds": after(one.scheduled_ms),
        "all_running_seconds": after(one.started_ms),
        "first_step_seconds": after(one.first_step_ms),
        "attempts": one.attempt,
        "container_restarts": one.restarts,
        "lost_work_gpu_seconds": one.lost_ms / 1000,
        "last_progress_timestamp_seconds": _seconds(one.last_progress_ms),
        "progress_ratio": done["share"],
        "remaining_seconds": _seconds(done["eta_ms"]),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
