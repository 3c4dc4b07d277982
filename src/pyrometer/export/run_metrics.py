"""Training runs as Prometheus metrics: all gauges, of the runs that go on or ended within the hour.

The largest runs come first, and whoever has series keeps them until the run is retired.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from pyrometer.answers.runs.progress import Progress, RunActivity
from pyrometer.answers.runs.throughput import PHASES
from pyrometer.export.ledger_metrics import SETTLED_MS
from pyrometer.export.metrics_text import Prepared, label
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store import StoreReader

MOST_RUNS = 200
OUTCOMES = ("running", "succeeded", "failed", "killed")
PERCENTILES = {"50": "step_p50_ms", "99": "step_p99_ms", "100": "step_max_ms"}
MIB = 1024 * 1024

_RUN = ("run", "experiment", "team")


class Gauge(NamedTuple):
    """A metric of a run: its name, what it means, and the labels that it has beside the run's own."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()


GAUGES = (
    Gauge("pyrometer_run_info", "Where it runs, and by what", ("workload", "framework")),
    Gauge("pyrometer_run_outcome", "1 for what became of it: running, succeeded, failed or killed", ("outcome",)),
    Gauge("pyrometer_run_ranks", "Ranks of its newest attempt"),
    Gauge("pyrometer_run_attempt", "The number of its newest attempt, from 1"),
    Gauge("pyrometer_run_started_timestamp_seconds", "When its first attempt began"),
    Gauge("pyrometer_run_ended_timestamp_seconds", "When it ended; absent while it runs"),
    Gauge("pyrometer_run_step", "Optimizer steps that are done; falls where an attempt goes on from a checkpoint"),
    Gauge("pyrometer_run_last_step_timestamp_seconds", "When the last window with steps was over"),
    Gauge("pyrometer_run_last_checkpoint_timestamp_seconds", "When it last saved a checkpoint"),
    Gauge("pyrometer_run_metric", "The newest value of a metric that the program reports; may be NaN", ("name",)),
    Gauge("pyrometer_run_goodput_ratio", "Its share of `train` in the GPU time that it held, in the last settled hour"),
    Gauge("pyrometer_run_samples_per_second", "Samples that all ranks take, in the last five minutes"),
    Gauge("pyrometer_run_tokens_per_second", "Tokens that all ranks take, in the last five minutes"),
    Gauge("pyrometer_run_flops_per_second", "FLOPs that all ranks do, in the last five minutes"),
    Gauge("pyrometer_run_mfu_ratio", "Those FLOPs, as a share of what the GPUs' maker says they can do in bfloat16"),
    Gauge(
        "pyrometer_run_step_seconds",
        "Percentiles of the step time of all ranks in the last five minutes; 100 is the slowest",
        ("percentile",),
    ),
    Gauge("pyrometer_run_phase_ratio", "What the ranks' time goes into, in the last five minutes", ("phase",)),
    Gauge("pyrometer_run_memory_peak_bytes", "The most CUDA memory that any rank allocated, in the last five minutes"),
    Gauge("pyrometer_run_stuck_ranks", "Ranks that say that they make no progress"),
    Gauge("pyrometer_run_nonfinite_loss", "1 while it trains on although its loss is NaN or infinite"),
    Gauge("pyrometer_run_metrics_left_out", "Its metrics beyond the twenty that have series"),
)


class Runs(Prepared):
    """The runs that are shown."""

    def __init__(self, *, most: int = MOST_RUNS) -> None:
        super().__init__()
        self.most = most
        self.progress = Progress()
        self._shown: dict[str, None] = {}
        self.prepare(self._metrics([], 0))

    def count(self, store: StoreReader, end_ms: int) -> None:
        """Reads how runs are doing; the ledger is up to date until `end_ms`."""
        settled_ms = (end_ms - SETTLED_MS) // MS_PER_MINUTE * MS_PER_MINUTE
        self.progress.read(store, end_ms, settled_ms)
        going_on = self.progress.runs
        self._shown = {run: None for run in self._shown if run in going_on}
        for run in sorted(going_on, key=lambda run: (-going_on[run].ranks, -going_on[run].started_ms, run)):
            if len(self._shown) < self.most:
                self._shown.setdefault(run)
        shown = [going_on[run] for run in sorted(self._shown)]
        self.prepare(self._metrics(shown, len(going_on) - len(shown)))

    def _metrics(self, shown: list[RunActivity], left_out: int) -> Iterator[Metric]:
        families = {
            gauge.name: GaugeMetricFamily(gauge.name, gauge.meaning, labels=[*_RUN, *gauge.labels]) for gauge in GAUGES
        }
        for doing in shown:
            named = [label(doing.run), label(doing.experiment), label(doing.team)]
            for name, labels, value in _values(doing):
                families[f"pyrometer_run_{name}"].add_metric([*named, *labels], value)
        yield from families.values()
        beyond = GaugeMetricFamily("pyrometer_runs_left_out", "Runs that have no series, because there are too many")
        beyond.add_metric([], left_out)
        yield beyond


def _values(doing: RunActivity) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """What is known of a run; what is not is absent."""
    yield "info", (label(doing.workload), label(doing.framework)), 1
    for outcome in OUTCOMES:
        yield "outcome", (outcome,), float(doing.outcome == outcome)
    for percentile, figure in PERCENTILES.items():
        if (lasted_ms := doing.speed[figure]) is not None:
            yield "step_seconds", (percentile,), lasted_ms / 1000
    for phase in (*PHASES, "other"):
        if phase in doing.phases:
            yield "phase_ratio", (phase,), doing.phases[phase]
    for name, value in sorted({label(name): value for name, value in doing.metrics.items()}.items()):
        yield "metric", (name,), value
    peak_mib = doing.speed["memory_peak_mib"]
    figures = {
        "ranks": doing.ranks,
        "attempt": doing.attempt,
        "started_timestamp_seconds": _seconds(doing.started_ms),
        "ended_timestamp_seconds": _seconds(doing.ended_ms),
        "step": doing.step,
        "last_step_timestamp_seconds": _seconds(doing.stepped_ms),
        "last_checkpoint_timestamp_seconds": _seconds(doing.saved_ms),
        "goodput_ratio": doing.goodput,
        "samples_per_second": doing.speed["samples_per_s"],
        "tokens_per_second": doing.speed["tokens_per_s"],
        "flops_per_second": doing.speed["flops_per_s"],
        "mfu_ratio": doing.speed["mfu"],
        "memory_peak_bytes": None if peak_mib is None else peak_mib * MIB,
        "stuck_ranks": len(doing.stuck),
        "nonfinite_loss": float(doing.nonfinite),
        "metrics_left_out": doing.more_metrics,
    }
    for name, figure in figures.items():
        if figure is not None:
            yield name, (), figure


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / 1000
