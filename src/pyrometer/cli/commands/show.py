"""`pyrometer show RUN`: one run, one pipeline run, or one sweep."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from pyrometer.answers.runs.throughput import PHASES
from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.findings.run_failures import failure_text
from pyrometer.identify.kubernetes.translated_events import PROGRESS, REMAINING
from pyrometer.model.human import counted, date_time, dollars, duration, hours, ratio, wrapped
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.render.gantt import terminal_width
from pyrometer.render.parts_text import print_pipeline, print_sweep
from pyrometer.render.step_text import KINDS, length
from pyrometer.render.tables import BLOCKS
from pyrometer.render.why_text import Style, plain

SPARK_WIDTH = 48
PHASE_BAR = 48
MAX_UNFOLDED = 3  # marks of one kind that are listed one by one; more become one line
MAX_METRICS = 12
WITH_MESSAGE = ("exception", "exit", "out_of_memory", "sdk_error", "mlflow_run", "wandb_run")  # shown with their text


@click.command()
@click.argument("run")
@read_options(default_last=None)
def command(request: ReadRequest, run: str) -> None:
    """Shows one run: cost, speed, lifecycle, metrics and findings. RUN can also be the ID or name of a pipeline run, to
    show its steps, or of a sweep (a Katib experiment), to show its trials."""
    answer = request.answer("show", run=run)
    if request.output == "json":
        print_json(answer)
        return
    style = click.style if sys.stdout.isatty() else plain
    if answer["run"] is None:
        (print_pipeline if answer["pipeline"] else print_sweep)(answer, style)
        return
    click.echo("\n".join(_lines(answer, style, terminal_width())))


def _lines(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    money = "unpriced" if answer["usd_micro"] is None else dollars(answer["usd_micro"])
    goodput = "" if answer["goodput"] is None else f", {ratio(answer['goodput'])} training"
    yield style(f"{answer['run']}: {answer['outcome']}", bold=True)
    if answer["failure"]:
        yield from wrapped(failure_text(answer["failure"]), width)
    spent = hours(answer["gpu_ms"]) if 0 < answer["gpu_ms"] < MS_PER_MINUTE else f"{answer['gpu_hours']:,.2f} GPU-hours"
    yield f"{money} for {spent}{goodput}"
    counts = ", ".join(counted(answer[f"{noun}s"], noun) for noun in ("step", "rank", "attempt"))
    yield f"experiment {answer['experiment']}, team {answer['team']}, {counts}"
    for line in [
        *_part_of(answer),
        *_progress(answer),
        *_speed(answer),
        *_phases(answer, style),
        *_outliers(answer),
        *_saved(answer),
    ]:
        yield from [line] if len(line) <= width or "\x1b" in line else wrapped(line, width)
    yield ""
    yield from _lifecycle(answer["lifecycle"], width)
    metrics = {name: points for name, points in answer["metrics"].items() if name not in (PROGRESS, REMAINING)}
    for name, points in list(metrics.items())[:MAX_METRICS]:
        yield from _metric(name, points, answer["best"].get(name))
    if len(metrics) > MAX_METRICS:
        yield f"\n  … and {len(metrics) - MAX_METRICS} more metrics: `-o json`."
    for finding in answer["findings"]:
        price = "unpriced" if finding["usd_micro"] is None else dollars(finding["usd_micro"])
        yield f"\n  {price}  {finding['title']}."


def _part_of(answer: dict[str, Any]) -> Iterator[str]:
    if answer["pipeline"]:
        step = f"step {answer['pipeline']['step']} of " if answer["pipeline"]["step"] else ""
        yield f"{step}pipeline run {answer['pipeline']['name']}"
    if answer["sweep"]:
        yield f"trial {answer['sweep']['trial']} of sweep {answer['sweep']['name']}"


def _progress(answer: dict[str, Any]) -> Iterator[str]:
    """The progress that Kubeflow Trainer reports."""
    progress = answer["progress"]
    if progress:
        left = "" if progress["eta_ms"] is None or answer["ended"] else f", {duration(progress['eta_ms'])} left"
        yield f"{100 * progress['share']:.0f}% done{left} (reported by Kubeflow Trainer)"


def _speed(answer: dict[str, Any]) -> Iterator[str]:
    """Step times and rates, as far as they were recorded."""
    if answer["step_p50_ms"] is not None:
        p99 = "not recorded" if answer["step_p99_ms"] is None else length(answer["step_p99_ms"])
        slowest = "not recorded" if answer["step_max_ms"] is None else length(answer["step_max_ms"])
        yield f"step time: median {length(answer['step_p50_ms'])}, p99 {p99}, slowest {slowest}"
    parts = []
    if answer["samples_per_s"]:
        parts.append(f"{_rate(answer['samples_per_s'])} samples/s")
    if answer["tokens_per_s"]:
        parts.append(f"{_rate(answer['tokens_per_s'])} tokens/s")
    if answer["flops_per_s"]:
        mfu = "" if answer["mfu"] is None else f" ({ratio(answer['mfu'])} MFU, of dense bf16)"
        parts.append(f"{_flops(answer['flops_per_s'])}{mfu}")
    if answer["memory_peak_mib"]:
        parts.append(f"{answer['memory_peak_mib'] / 1024:,.1f} GiB peak memory on rank {answer['memory_peak_rank']}")
    if parts:
        yield ", ".join(parts)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _flops(per_s: float) -> str:
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if per_s >= unit:
            return f"{per_s / unit:,.3g} {name}FLOP/s" if per_s < 1000 * unit else f"{per_s / unit:,.0f} {name}FLOP/s"
    return f"{per_s:,.0f} FLOP/s"


def _phases(answer: dict[str, Any], style: Style) -> Iterator[str]:
    """The phases of a step as one bar, one letter per 1/48 of the step."""
    shares = answer["phases"]
    if not shares:
        return
    bar, words, done = "", [], 0.0
    for name in (phase for phase in (*PHASES, "other") if phase in shares):
        share, kind = shares[name], KINDS["sync" if name == "comm" else name]
        columns = round((done + share) * PHASE_BAR) - round(done * PHASE_BAR)
        bar += style(kind.letter * columns, fg="black", bg=kind.color) if columns else ""
        done += share
        words.append(f"{kind.name} {_percent(share)}")
    yield bar
    yield ", ".join(words)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 else "<1%"


def _outliers(answer: dict[str, Any]) -> Iterator[str]:
    for one in answer["outliers"]:
        yield (
            f"rank {one['rank']} takes {length(one['ms_per_step'])} per step for {one['phase']}, "
            f"the median rank takes {length(one['median_ms_per_step'])}"
        )


def _saved(answer: dict[str, Any]) -> Iterator[str]:
    saved = answer["checkpoints"]
    if not saved["count"]:
        return
    each = " each" if saved["count"] > 1 else ""
    took = f", {_length(saved['median_duration_ms'])}{each}" if saved["median_duration_ms"] else ""
    every = f", every {_length(saved['median_interval_ms'])}" if saved["median_interval_ms"] else ""
    left = "before the end" if answer["ended"] else "ago"
    yield (
        f"{counted(saved['count'], 'checkpoint')}{every}{took}, the last at step {saved['last']['step']:,}, "
        f"{_length(saved['last_age_ms'])} {left}"
    )


def _length(ms: int) -> str:
    return length(ms) if ms < 1000 else duration(ms)


def _lifecycle(marks: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """The events of the run in order. Events that repeat within an attempt become one line with their number."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for mark in marks:
        groups.setdefault((mark["attempt"], mark["what"]), []).append(mark)
    folded_keys = set()
    for mark in marks:
        key = (mark["attempt"], mark["what"])
        group = groups[key]
        folded = len(group) > MAX_UNFOLDED or _by_rank(group) or (mark["error"] and len(group) > 1)
        if folded and key in folded_keys:
            continue
        folded_keys.add(key)
        step = "" if mark["step"] is None else f" (step {mark['step']:,})"
        text = f"{mark['what']}{step}"
        if folded:
            times = "" if _by_rank(group) else f"{len(group)} × "
            text = f"{times}{mark['what']}{_until(group)}"
        message = mark["error"] or ", ".join(
            filter(None, [mark["reason"], *(mark["message"] or "").strip().splitlines()[:1]])
        )
        if mark["what"] in WITH_MESSAGE:
            ranks = len({one["rank"] for one in group})
            named = ", first on rank" if folded and ranks > 1 else " of rank"
            of = "" if mark["rank"] is None else f"{named} {mark['rank']}"
            text += f"{of}: {message}"
        head = f"  {date_time(datetime.fromisoformat(mark['at']), seconds=True):<16}  attempt {mark['attempt']}  "
        yield from textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head))


def _by_rank(group: Sequence[dict[str, Any]]) -> bool:
    """Whether several ranks reported the same event once each, without a step or a message."""
    ranks = {mark["rank"] for mark in group}
    plain_marks = all(mark["step"] is None and mark["what"] not in WITH_MESSAGE for mark in group)
    return plain_marks and None not in ranks and 1 < len(ranks) == len(group)


def _until(group: Sequence[dict[str, Any]]) -> str:
    """The last step of a repeated event, or the number of its ranks."""
    if group[-1]["step"] is not None and group[-1]["step"] != group[0]["step"]:
        until = datetime.fromisoformat(group[-1]["at"])
        return f", steps {group[0]['step']:,}–{group[-1]['step']:,}, until {date_time(until, seconds=True)}"
    ranks = {mark["rank"] for mark in group if mark["rank"] is not None}
    return f" on {counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""


def _metric(name: str, points: Sequence[Sequence[Any]], best: dict[str, Any] | None) -> Iterator[str]:
    values = [point[2] for point in points]
    finite = [value for value in values if value is not None]
    if not finite:
        return
    at = ""
    if best is not None and best["best_step"] is not None:
        at = f", best {best['best']:.4g} at step {best['best_step']:,}"
    yield f"\n  {name}: {finite[0]:.4g} → {finite[-1]:.4g}, min {min(finite):.4g}, max {max(finite):.4g}{at}"
    yield f"  {_sparkline(values)}"


def _sparkline(values: list[float | None]) -> str:
    """A metric in one line. A value that is not finite is a cross."""
    size = max(1, -(-len(values) // SPARK_WIDTH))
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    means = [sum(g) / len(g) if None not in g else None for g in groups]  # type: ignore[arg-type]
    finite = [mean for mean in means if mean is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join("×" if m is None else BLOCKS[min(7, int(8 * (m - low) / span))] for m in means)
