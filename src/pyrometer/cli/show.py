"""`pyrometer show RUN`: one run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from pyrometer.cli.running import Asked, print_json, read_options
from pyrometer.explain.words import dollars

SPARK = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48


@click.command()
@click.argument("run")
@read_options(default_last=None)
def command(asked: Asked, run: str) -> None:
    """One run: what it cost, its lifecycle, its metrics, its findings."""
    answer = asked.answer("show", run=run)
    if asked.output == "json":
        print_json(answer)
        return
    _print(answer)


def _print(answer: dict[str, Any]) -> None:
    money = "unpriced" if answer["usd_micro"] is None else dollars(answer["usd_micro"])
    goodput = "" if answer["goodput"] is None else f", {100 * answer['goodput']:.0f} % of it training"
    click.echo(click.style(f"{answer['run']}: {answer['outcome']}", bold=True))
    click.echo(f"{money} for {answer['gpu_hours']:,.2f} GPU-hours{goodput}")
    click.echo(f"experiment {answer['experiment']}, team {answer['team']}, {answer['steps']:,} steps, "
               f"{answer['ranks']} rank(s), {answer['attempts']} attempt(s)")  # fmt: skip
    click.echo()
    for mark in answer["lifecycle"]:
        step = "" if mark["step"] is None else f" (step {mark['step']:,})"
        at = datetime.fromisoformat(mark["at"])
        click.echo(f"  {at:%d %b %H:%M:%S}  attempt {mark['attempt']}  {mark['what']}{step}")
    for name, points in answer["metrics"].items():
        values = [point[2] for point in points]
        finite = [value for value in values if value is not None]
        if finite:
            click.echo(
                f"\n  {name}: {finite[0]:.4g} → {finite[-1]:.4g}, least {min(finite):.4g}, most {max(finite):.4g}"
            )
            click.echo(f"  {_sparkline(values)}")
    for finding in answer["findings"]:
        price = "unpriced" if finding["usd_micro"] is None else dollars(finding["usd_micro"])
        click.echo(f"\n  {price}  {finding['title']}.")


def _sparkline(values: list[float | None]) -> str:
    """A metric in one line; what is not a number is a cross."""
    size = max(1, -(-len(values) // SPARK_WIDTH))
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    means = [sum(g) / len(g) if None not in g else None for g in groups]  # type: ignore[arg-type]
    finite = [mean for mean in means if mean is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join("×" if m is None else SPARK[min(7, int(8 * (m - low) / span))] for m in means)
