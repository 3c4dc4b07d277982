"""`pyrometer cost`: GPU-hours and dollars by any grouping."""

from __future__ import annotations

import click

from pyrometer.account.sums import GROUPINGS
from pyrometer.cli.running import Asked, print_json, read_options
from pyrometer.cli.tables import print_table
from pyrometer.explain.words import dollars, hours
from pyrometer.model.units import MS_PER_HOUR


@click.command()
@click.option("--by", default="team", metavar="A,B", help=f"Any of {', '.join(GROUPINGS)}. Default: team.")
@read_options(default_last="12h")
def command(asked: Asked, by: str) -> None:
    """GPU-hours and dollars by any grouping. What nobody held is the platform's."""
    answer = asked.answer("cost", by=by)
    if asked.output == "json":
        print_json(answer)
        return
    names = answer["by"]
    rows = [[*(row[name] for name in names), _hours(row["gpu_ms"]), _money(row["usd_micro"])] for row in answer["rows"]]
    total = answer["total"]
    rows.append(["total", *[""] * (len(names) - 1), _hours(total["gpu_ms"]), _money(total["usd_micro"])])
    print_table([*names, "GPU-hours", "cost"], rows, figures=2, foot=True)
    if total["unpriced_gpu_ms"]:
        click.echo(
            f"No price is known for {hours(total['unpriced_gpu_ms'])}; say it with --price, per GPU-hour.",
            err=True,
        )


def _hours(gpu_ms: int) -> str:
    value = gpu_ms / MS_PER_HOUR
    return f"{value:,.1f}" if value >= 10 else f"{value:,.3f}"


def _money(usd_micro: int | None) -> str:
    return "–" if usd_micro is None else dollars(usd_micro)
