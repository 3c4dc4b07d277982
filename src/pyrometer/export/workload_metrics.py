"""Prometheus metrics of the lifecycle of workloads of every kind, which controllers of PyTorchJobs and TrainJobs do not
export. A workload has series while it exists, and for one hour after its end.

The largest workloads get series first and keep them. Ends are counted from the start of this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pyrometer.answers.fleet.workload_status import ENDED_MS, PHASES, WorkloadStatus, WorkloadStatuses
from pyrometer.answers.runs.progress import RunActivity
from pyrometer.export.metrics_text import PreparedCollector, label_value
from pyrometer.export.run_metrics import GaugeSpec
from pyrometer.store import StoreReader

MAX_WORKLOADS = 500
MAX_ENDED_SERIES = 500  # combinations of kind, team and outcome
OUTCOMES = ("succeeded", "failed")

_WORKLOAD_LABELS = ("workload", "kind", "team")

GAUGES = (
    GaugeSpec(
        "pyrometer_workload_phase",
        "1 for the current phase: queued, pending (for nodes), starting, running, succeeded or failed",
        ("phase",),
    ),
    GaugeSpec("pyrometer_workload_pods", "Pods with GPUs of the newest attempt"),
    GaugeSpec("pyrometer_workload_created_timestamp_seconds", "Creation time"),
    GaugeSpec("pyrometer_workload_ended_timestamp_seconds", "End of the last pod; absent before"),
    GaugeSpec("pyrometer_workload_queued_seconds", "Total time in the queue before admission (Kueue)"),
    GaugeSpec(
        "pyrometer_workload_scheduled_seconds", "Time from creation until all pods of the first attempt had nodes"
    ),
    GaugeSpec(
        "pyrometer_workload_all_running_seconds", "Time from creation until the whole gang ran for the first time"
    ),
    GaugeSpec(
        "pyrometer_workload_first_step_seconds", "Time from creation to the end of the first step that the SDK reported"
    ),
    GaugeSpec("pyrometer_workload_attempts", "Number of attempts, from 1"),
    GaugeSpec("pyrometer_workload_container_restarts", "Container restarts within pods"),
    GaugeSpec("pyrometer_workload_lost_work_gpu_seconds", "GPU-seconds of steps that a later attempt repeated"),
    GaugeSpec(
        "pyrometer_workload_last_progress_timestamp_seconds",
        "Last progress: a step that the SDK reported, or a report of its controller",
    ),
    GaugeSpec("pyrometer_workload_progress_ratio", "Progress that its controller reports (Kubeflow Trainer)"),
    GaugeSpec("pyrometer_workload_remaining_seconds", "Remaining time that its controller reports (Kubeflow Trainer)"),
)


class WorkloadCollector(PreparedCollector):
    """Collects the metrics of workloads."""

    def __init__(self, *, max_workloads: int = MAX_WORKLOADS) -> None:
        super().__init__()
        self.max_workloads = max_workloads
        self.statuses = WorkloadStatuses()
        self.ended: Counter[tuple[str, str, str]] = Counter()  # by kind, team and outcome
        self._shown: dict[str, None] = {}
        self._ended_ms: dict[str, int] | None = (
            None  # workloads whose end is counted or happened before this process started
        )
        self.prepare(self._metrics([], 0))

    def count(self, store: StoreReader, end_ms: int, runs: Iterable[RunActivity] = ()) -> None:
        """Reads the status of workloads from a ledger that is complete up to `end_ms`."""
        self.statuses.read(store, end_ms, runs)
        self._count_ends(end_ms)
        newest: dict[tuple[str, str], WorkloadStatus] = {}
        for one in sorted(self.statuses.workloads, key=lambda one: (one.created_ms, one.uid)):
            newest[one.workload, one.kind] = one  # of two with the same labels, the later one
        present = {one.uid: one for one in newest.values()}
        self._shown = {uid: None for uid in self._shown if uid in present}
        for uid in sorted(present, key=lambda uid: (-present[uid].share, -present[uid].created_ms, uid)):
            if len(self._shown) < self.max_workloads:
                self._shown.setdefault(uid)
        shown = sorted((present[uid] for uid in self._shown), key=lambda one: (one.workload, one.kind))
        self.prepare(self._metrics(shown, len(present) - len(shown)))

    def _count_ends(self, end_ms: int) -> None:
        """Counts each end once. Ends before the start of this process only create the series."""
        ended = {one.uid: one for one in self.statuses.workloads if one.phase in OUTCOMES}
        first = self._ended_ms is None
        known = self._ended_ms or {}
        for one in self.statuses.workloads:
            for outcome in OUTCOMES:
                key = (one.kind, one.team, outcome)
                if key not in self.ended and len(self.ended) < MAX_ENDED_SERIES:
                    self.ended[key] = 0  # Prometheus does not count a first value as an increase
        for uid, one in ended.items():
            if uid not in known and not first and (one.kind, one.team, one.phase) in self.ended:
                self.ended[one.kind, one.team, one.phase] += 1
            known[uid] = one.ended_ms or end_ms
        for uid in [uid for uid, at_ms in known.items() if at_ms < end_ms - 2 * ENDED_MS and uid not in ended]:
            del known[uid]
        self._ended_ms = known

    def _metrics(self, shown: list[WorkloadStatus], left_out: int) -> Iterator[Metric]:
        families = {
            gauge.name: GaugeMetricFamily(gauge.name, gauge.description, labels=[*_WORKLOAD_LABELS, *gauge.labels])
            for gauge in GAUGES
        }
        for one in shown:
            named = [label_value(one.workload), label_value(one.kind), label_value(one.team)]
            for phase in PHASES:
                families["pyrometer_workload_phase"].add_metric([*named, phase], float(one.phase == phase))
            for name, figure in _values(one).items():
                if figure is not None:
                    families[f"pyrometer_workload_{name}"].add_metric(named, figure)
        yield from families.values()
        ended = CounterMetricFamily(
            "pyrometer_workloads_ended",
            "Workloads that ended since the start of this process",
            labels=["kind", "team", "outcome"],
        )
        for (kind, team, outcome), count in sorted(self.ended.items()):
            ended.add_metric([label_value(kind), label_value(team), outcome], count)
        yield ended
        not_shown = GaugeMetricFamily(
            "pyrometer_workload_lives_left_out", "Workloads without series, because of the limit"
        )
        not_shown.add_metric([], left_out)
        yield not_shown


def _values(one: WorkloadStatus) -> dict[str, float | None]:
    """The values of a workload. Unknown values are absent."""
    reported = one.progress or {"share": None, "eta_ms": None}

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
        "progress_ratio": reported["share"],
        "remaining_seconds": _seconds(reported["eta_ms"]),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
