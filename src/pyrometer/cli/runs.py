"""`pyrometer runs`: the training runs."""

from __future__ import annotations

from datetime import datetime

import click

from pyrometer.cli.running import Asked, print_json, read_options
from pyrometer.cli.tables import print_table
from pyrometer.explain.words import dollars


@click.command()
@read_options(default_last=None)
def command(asked: Asked) -> None:
    """The training runs that sent steps: attempts, ranks, steps, cost and goodput, newest first."""
    answer = asked.answer("runs")
    if asked.output == "json":
        print_json(answer)
        return
    if not answer["rows"]:
        click.echo("No training run has sent steps here. `pyrometer cost --by workload` shows what held GPUs.")
        return
    print_table(
        [
            "run", "experiment", "team", "outcome", "started", "attempts", "ranks", "steps",
            "GPU-hours", "cost", "goodput",
        ],
        [
            [
                row["run"], row["experiment"], row["team"], row["outcome"],
                f"{datetime.fromisoformat(row['started']):%d %b %H:%M}",
                row["attempts"], row["ranks"], f"{row['steps']:,}",
                f"{row['gpu_hours']:,.2f}", "–" if row["usd_micro"] is None else dollars(row["usd_micro"]),
                "–" if row["goodput"] is None else f"{100 * row['goodput']:.0f} %",
            ]
            for row in answer["rows"]
        ],
        figures=6,
    )  # fmt: skip
