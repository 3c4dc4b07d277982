"""`pyrometer cost`: GPU-hours and dollars by any grouping."""

from __future__ import annotations

import difflib

import click

from pyrometer.account.sums import GROUPINGS, cost, open_names
from pyrometer.cli.running import Asked, accounted, print_json, read_options
from pyrometer.cli.tables import print_table
from pyrometer.explain.words import dollars, hours
from pyrometer.model.units import MS_PER_HOUR


@click.command()
@click.option("--by", default="team", metavar="A,B", help=f"Any of {', '.join(GROUPINGS)}. Default: team.")
@read_options(default_last="12h")
def command(asked: Asked, by: str) -> None:
    """GPU-hours and dollars by any grouping. What nobody held is the platform's."""
    names = [name.strip() for name in by.split(",") if name.strip()]
    for name in names:
        if name not in GROUPINGS:
            near = difflib.get_close_matches(name, GROUPINGS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(GROUPINGS)}."
            raise click.UsageError(f"--by {name!r} is not a grouping. {hint}")
    if len(set(names)) != len(names) or not names:
        raise click.UsageError(f"--by {by!r} names no grouping, or one twice.")
    with accounted(asked) as (store, window):
        open_names(store)
        ledger = "ledger_row"
        if "cause" in names:
            from pyrometer.explain.causes import with_causes

            ledger = with_causes(store, window, asked.settings, asked.zone)
        answer = cost(store, window, names, zone=asked.zone, price_usd_micro=asked.price_usd_micro, ledger=ledger)
    if asked.output == "json":
        print_json(answer)
        return
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
