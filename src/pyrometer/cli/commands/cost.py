"""`pyrometer cost`: GPU-hours and dollars by any grouping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pyrometer.account.query.energy import WH_PER_KWH
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.cli.charge_options import print_books, share_option, shared_by
from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.cli.lake_requests import print_known
from pyrometer.model.human import coverage, dollars, hours
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.render.tables import print_table
from pyrometer.render.why_text import NOTHING


@click.command()
@click.option("--by", default="team", metavar="A,B", help=f"Any of {', '.join(GROUPINGS)}. Default: team.")
@share_option
@read_options(default_last="12h", engines=True)
def command(request: ReadRequest, by: str, share_platform: str | None) -> None:
    """Shows GPU-hours and dollars by any grouping. GPU time that no pod held belongs to the team `platform`, unless
    --share-platform is set."""
    answer = request.answer("cost", by=by, **shared_by(share_platform))
    if request.output == "json":
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
    """The columns of figures. Activity and energy are shown only if any row has them."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "GPU-hours": lambda row: _hours(row["gpu_ms"]),
        "cost": lambda row: _money(row["usd_micro"]),
        "active": lambda row: "–" if row["activity"] is None else f"{row['activity']:.0%}",
        "kWh": lambda row: _figure(row["energy_wh"], WH_PER_KWH),
        "power cost": lambda row: _money(row["energy_usd_micro"]),
        "kg CO2e": lambda row: _figure(row["co2e_g"], 1_000),
    }
    optional = {"active": "activity", "kWh": "energy_wh", "power cost": "energy_usd_micro", "kg CO2e": "co2e_g"}
    absent = {name for name, field in optional.items() if all(row[field] is None for row in rows)}
    return {name: shown for name, shown in columns.items() if name not in absent}


def _print_notes(total: dict[str, Any]) -> None:
    """Prints what the table does not cover, on stderr."""
    partly = coverage(total)
    if partly:
        click.echo(partly, err=True)
    if total["unpriced_gpu_ms"]:
        click.echo(f"{hours(total['unpriced_gpu_ms'])} have no price. Set one per GPU-hour with --price.", err=True)


def _hours(gpu_ms: int) -> str:
    value = gpu_ms / MS_PER_HOUR
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3f}"


def _figure(amount: int | None, unit: int) -> str:
    """An amount in a larger unit, with more decimals if it is small."""
    if amount is None:
        return "–"
    return f"{amount / unit:,.1f}" if amount >= 10 * unit else f"{amount / unit:,.3f}"


def _money(usd_micro: int | None) -> str:
    return "–" if usd_micro is None else dollars(usd_micro)
