"""`pyrometer runs`: training runs, one row per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.findings.run_failures import failure_text
from pyrometer.model.human import counted, date_time, dollars, duration, ratio, wrapped
from pyrometer.render.gantt import terminal_width
from pyrometer.render.step_text import length
from pyrometer.render.tables import print_table

MAX_FAILURES = 5


@click.command()
@read_options(default_last=None)
def command(request: ReadRequest) -> None:
    """Lists training runs, newest first: attempts, ranks, steps, cost and goodput. A run is listed if it sent steps or
    if Kubeflow Trainer reports it."""
    answer = request.answer("runs")
    if request.output == "json":
        print_json(answer)
        return
    if not answer["rows"]:
        click.echo("No training runs in this time range. `pyrometer cost --by workload` shows what held GPUs.")
        return
    with_mfu = any(row["mfu"] is not None for row in answer["rows"])
    with_progress = any(row["progress"] for row in answer["rows"])
    with_cluster = any("cluster" in row for row in answer["rows"])  # from a lake
    print_table(
        [
            "run",
            *(["cluster"] if with_cluster else []),
            "experiment",
            "team",
            "outcome",
            "started",
            "attempts",
            *(["done", "left"] if with_progress else []),
            "ranks",
            "steps",
            "step",
            "samples/s",
            *(["MFU"] if with_mfu else []),
            "GPU-hours",
            "cost",
            "goodput",
        ],
        [
            [
                row["run"],
                *([row["cluster"]] if with_cluster else []),
                row["experiment"],
                row["team"],
                row["outcome"],
                date_time(datetime.fromisoformat(row["started"])),
                row["attempts"],
                *(_progress(row) if with_progress else []),
                row["ranks"],
                f"{row['steps']:,}",
                None if row["step_p50_ms"] is None else length(row["step_p50_ms"]),
                None if row["samples_per_s"] is None else f"{row['samples_per_s']:,.0f}",
                *([None if row["mfu"] is None else ratio(row["mfu"])] if with_mfu else []),
                f"{row['gpu_hours']:,.2f}",
                "–" if row["usd_micro"] is None else dollars(row["usd_micro"]),
                "–" if row["goodput"] is None else ratio(row["goodput"]),
            ]
            for row in answer["rows"]
        ],
        figures=8 + with_mfu + 2 * with_progress,
        spare=("attempts", "ranks", "team", "samples/s", "started", "GPU-hours", "experiment", "MFU"),
    )
    if lines := list(_failures(answer["rows"])):
        click.echo("\n" + "\n".join(lines))


def _failures(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines below the table: why runs failed."""
    failed = [row for row in rows if row["failure"]]
    for row in failed[:MAX_FAILURES]:
        yield from wrapped(f"{row['run']}: {failure_text(row['failure'])}", terminal_width())
    if len(failed) > MAX_FAILURES:
        yield f"… and {counted(len(failed) - MAX_FAILURES, 'failed run')} more: `-o json`."


def _progress(row: dict[str, Any]) -> list[str | None]:
    """The share that is done and the time left, if a controller reports them."""
    done = row["progress"]
    if done is None:
        return [None, None]
    left = None if done["eta_ms"] is None or row["ended"] else duration(done["eta_ms"])
    return [f"{100 * done['share']:.0f}%", left]
