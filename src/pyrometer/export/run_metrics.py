"""Prometheus gauges of training runs that are running or ended within the last hour.

The largest runs get series first. A run keeps its series until it is retired.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from pyrometer.answers.runs.progress import Progress, RunActivity
from pyrometer.answers.runs.throughput import PHASES
from pyrometer.export.ledger_metrics import SETTLED_MS
from pyrometer.export.metrics_text import PreparedCollector, label_value
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store import StoreReader

MAX_RUNS = 200
OUTCOMES = ("running", "succeeded", "failed", "killed")
PERCENTILES = {"50": "step_p50_ms", "99": "step_p99_ms", "100": "step_max_ms"}
MIB = 1024 * 1024

_RUN_LABELS = ("run", "experiment", "team")


class GaugeSpec(NamedTuple):
    """The name and description of a gauge, and its labels in addition to those of the run or workload."""

    name: str
    description: str
    labels: tuple[str, ...] = ()


GAUGES = (
    GaugeSpec("pyrometer_run_info", "The workload and framework of the run", ("workload", "framework")),
    GaugeSpec(
        "pyrometer_run_outcome", "1 for the outcome of the run: running, succeeded, failed or killed", ("outcome",)
    ),
    GaugeSpec("pyrometer_run_ranks", "Ranks of the newest attempt"),
    GaugeSpec("pyrometer_run_attempt", "Number of the newest attempt, from 1"),
    GaugeSpec("pyrometer_run_started_timestamp_seconds", "Start of the first attempt"),
    GaugeSpec("pyrometer_run_ended_timestamp_seconds", "End of the run; absent while it is running"),
    GaugeSpec("pyrometer_run_step", "Completed optimizer steps; falls when an attempt resumes from a checkpoint"),
    GaugeSpec("pyrometer_run_last_step_timestamp_seconds", "End of the last window with steps"),
    GaugeSpec("pyrometer_run_last_checkpoint_timestamp_seconds", "Time of the last saved checkpoint"),
    GaugeSpec("pyrometer_run_metric", "Newest value of a metric that the program reports; may be NaN", ("name",)),
    GaugeSpec(
        "pyrometer_run_goodput_ratio", "Share of `train` in the GPU time that the run held, in the last settled hour"
    ),
    GaugeSpec("pyrometer_run_samples_per_second", "Samples per second of all ranks, in the last five minutes"),
    GaugeSpec("pyrometer_run_tokens_per_second", "Tokens per second of all ranks, in the last five minutes"),
    GaugeSpec("pyrometer_run_flops_per_second", "FLOPs per second of all ranks, in the last five minutes"),
    GaugeSpec(
        "pyrometer_run_mfu_ratio", "FLOPs per second as a share of the bfloat16 peak that the GPU vendor specifies"
    ),
    GaugeSpec(
        "pyrometer_run_step_seconds",
        "Percentiles of the step time of all ranks in the last five minutes; 100 is the slowest step",
        ("percentile",),
    ),
    GaugeSpec(
        "pyrometer_run_phase_ratio",
        "Share of each phase in the time of all ranks, in the last five minutes",
        ("phase",),
    ),
    GaugeSpec("pyrometer_run_memory_peak_bytes", "Highest CUDA memory use of any rank, in the last five minutes"),
    GaugeSpec("pyrometer_run_stuck_ranks", "Ranks that report that they make no progress"),
    GaugeSpec("pyrometer_run_nonfinite_loss", "1 while training continues although the loss is NaN or infinite"),
    GaugeSpec("pyrometer_run_metrics_left_out", "Metrics of the run without series, because of the limit of twenty"),
)


class RunCollector(PreparedCollector):
    """Collects the metrics of runs."""

    def __init__(self, *, max_runs: int = MAX_RUNS) -> None:
        super().__init__()
        self.max_runs = max_runs
        self.progress = Progress()
        self._shown: dict[str, None] = {}
        self.prepare(self._metrics([], 0))

    def count(self, store: StoreReader, end_ms: int) -> None:
        """Reads the progress of runs from a ledger that is complete up to `end_ms`."""
        settled_ms = (end_ms - SETTLED_MS) // MS_PER_MINUTE * MS_PER_MINUTE
        self.progress.read(store, end_ms, settled_ms)
        active = self.progress.runs
        self._shown = {run: None for run in self._shown if run in active}
        for run in sorted(active, key=lambda run: (-active[run].ranks, -active[run].started_ms, run)):
            if len(self._shown) < self.max_runs:
                self._shown.setdefault(run)
        shown = [active[run] for run in sorted(self._shown)]
        self.prepare(self._metrics(shown, len(active) - len(shown)))

    def _metrics(self, shown: list[RunActivity], left_out: int) -> Iterator[Metric]:
        families = {
            gauge.name: GaugeMetricFamily(gauge.name, gauge.description, labels=[*_RUN_LABELS, *gauge.labels])
            for gauge in GAUGES
        }
        for activity in shown:
            named = [label_value(activity.run), label_value(activity.experiment), label_value(activity.team)]
            for name, labels, value in _values(activity):
                families[f"pyrometer_run_{name}"].add_metric([*named, *labels], value)
        yield from families.values()
        not_shown = GaugeMetricFamily("pyrometer_runs_left_out", "Runs without series, because of the limit")
        not_shown.add_metric([], left_out)
        yield not_shown


def _values(activity: RunActivity) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """The known values of a run. Unknown values are absent."""
    yield "info", (label_value(activity.workload), label_value(activity.framework)), 1
    for outcome in OUTCOMES:
        yield "outcome", (outcome,), float(activity.outcome == outcome)
    for percentile, figure in PERCENTILES.items():
        if (step_ms := activity.speed[figure]) is not None:
            yield "step_seconds", (percentile,), step_ms / 1000
    for phase in (*PHASES, "other"):
        if phase in activity.phases:
            yield "phase_ratio", (phase,), activity.phases[phase]
    for name, value in sorted({label_value(name): value for name, value in activity.metrics.items()}.items()):
        yield "metric", (name,), value
    peak_mib = activity.speed["memory_peak_mib"]
    figures = {
        "ranks": activity.ranks,
        "attempt": activity.attempt,
        "started_timestamp_seconds": _seconds(activity.started_ms),
        "ended_timestamp_seconds": _seconds(activity.ended_ms),
        "step": activity.step,
        "last_step_timestamp_seconds": _seconds(activity.stepped_ms),
        "last_checkpoint_timestamp_seconds": _seconds(activity.saved_ms),
        "goodput_ratio": activity.goodput,
        "samples_per_second": activity.speed["samples_per_s"],
        "tokens_per_second": activity.speed["tokens_per_s"],
        "flops_per_second": activity.speed["flops_per_s"],
        "mfu_ratio": activity.speed["mfu"],
        "memory_peak_bytes": None if peak_mib is None else peak_mib * MIB,
        "stuck_ranks": len(activity.stuck),
        "nonfinite_loss": float(activity.nonfinite),
        "metrics_left_out": activity.more_metrics,
    }
    for name, figure in figures.items():
        if figure is not None:
            yield name, (), figure


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / 1000
