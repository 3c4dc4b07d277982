"""`pyrometer cost`: GPU-hours and dollars by any grouping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pyrometer.account.energy import WH_PER_KWH
from pyrometer.account.groupings import GROUPINGS
from pyrometer.cli.chargeback import print_books, share_option, shared_by
from pyrometer.cli.lakes import print_known
from pyrometer.cli.running import ReadRequest, print_json, read_options
from pyrometer.cli.tables import print_table
from pyrometer.explain.text import NOTHING
from pyrometer.explain.words import coverage, dollars, hours
from pyrometer.model.units import MS_PER_HOUR


@click.command()
@click.option("--by", default="team", metavar="A,B", help=f"Any of {', '.join(GROUPINGS)}. Default: team.")
@share_option
@read_options(default_last="12h", engines=True)
def command(asked: ReadRequest, by: str, share_platform: str | None) -> None:
    """GPU-hours and dollars by any grouping. What nobody held is the platform's, unless --share-platform says else."""
    answer = asked.answer("cost", by=by, **shared_by(share_platform))
    if asked.output == "json":
        print_json(answer)
        return
    if not answer["rows"]:
        click.echo(NOTHING)
        return
    names = answer["by"]
    total = answer["total"]
    columns = _columns(answer["rows"])
    if any(row["adjusts"] for row in answer["rows"]):
        names = [*names, "adjusts"]
    rows = [[*(row[name] for name in names), *(shown(row) for shown in columns.values())] for row in answer["rows"]]
    rows.append(["total", *[""] * (len(names) - 1), *(shown(total) for shown in columns.values())])
    print_table([*names, *columns], rows, figures=len(columns), foot=True)
    _print_notes(total)
    print_books(answer["books"])
    print_known(answer)


def _columns(rows: list[dict[str, Any]]) -> dict[str, Callable[[dict[str, Any]], str]]:
    """The columns of figures: activity and energy only where some of it is known."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "GPU-hours": lambda row: _hours(row["gpu_ms"]),
        "cost": lambda row: _money(row["usd_micro"]),
        "active": lambda row: "–" if row["activity"] is None else f"{row['activity']:.0%}",
        "kWh": lambda row: _figure(row["energy_wh"], WH_PER_KWH),
        "for power": lambda row: _money(row["energy_usd_micro"]),
        "kg CO2e": lambda row: _figure(row["co2e_g"], 1_000),
    }
    known = {"active": "activity", "kWh": "energy_wh", "for power": "energy_usd_micro", "kg CO2e": "co2e_g"}
    told = {name for name, field in known.items() if any(row[field] is not None for row in rows)}
    return {name: shown for name, shown in columns.items() if name not in known or name in told}


def _print_notes(total: dict[str, Any]) -> None:
    """What the table does not know, on stderr."""
    partly = coverage(total)
    if partly:
        click.echo(partly, err=True)
    if total["unpriced_gpu_ms"]:
        click.echo(
            f"No price is known for {hours(total['unpriced_gpu_ms'])}; say it with --price, per GPU-hour.",
            err=True,
        )


def _hours(gpu_ms: int) -> str:
    value = gpu_ms / MS_PER_HOUR
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3f}"


def _figure(amount: int | None, unit: int) -> str:
    """An amount in larger units."""
    if amount is None:
        return "–"
    return f"{amount / unit:,.1f}" if amount >= 10 * unit else f"{amount / unit:,.3f}"


def _money(usd_micro: int | None) -> str:
    return "–" if usd_micro is None else dollars(usd_micro)
