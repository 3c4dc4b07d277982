"""`pyrometer rebuild`: a month of the ledger, rebuilt under the rules of this version."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from pyrometer.account.build.rebuilding import rebuild_month
from pyrometer.account.query.time_range import zone_of
from pyrometer.cli.command_support import bring_up_to_date, data_folder, open_store, print_json
from pyrometer.cli.settings_files import read_settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.questions.client import Address, post, published
from pyrometer.render.tables import print_table
from pyrometer.store import StoreBusyError


@click.command()
@click.option("--month", required=True, metavar="YYYY-MM", help="The month to rebuild.")
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="The data folder. Default: PYROMETER_DATA."
)
@click.option("--server", metavar="URL", help="Rebuild it on this server, with an admin token in PYROMETER_TOKEN.")
@click.option("--tz", metavar="ZONE", help="Time zone of the month. Default: the setting `timezone`.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(month: str, data: Path | None, server: str | None, tz: str | None, output: str) -> None:
    """Rebuilds a month of the ledger under the rules of this version. An upgrade does that for open months only. Frozen
    charges never change: if holders, times or prices differ, the next month adjusts them."""
    if data is not None and server is not None:
        raise click.UsageError("Pass --data or --server, not both.")
    parameters = {"month": month} | ({"tz": tz} if tz else {})
    answer = _rebuild(data, server, parameters)
    if output == "json":
        print_json(answer)
    else:
        _print(answer)


def _rebuild(data: Path | None, server: str | None, parameters: dict[str, str]) -> dict[str, Any]:
    if server is not None:
        return post(Address(server, os.environ.get("PYROMETER_TOKEN")), "rebuild", parameters)
    folder = data_folder(data)
    settings = read_settings(os.environ, folder)
    zone = zone_of(parameters.get("tz") or settings.timezone)
    address = published(folder)
    now_ms = time.time_ns() // 1_000_000
    try:
        with open_store(folder, wait_s=None if address is None else 0.0) as store:
            return rebuild_month(
                store, parameters["month"], zone, lambda: bring_up_to_date(store, settings, now_ms=now_ms)
            )
    except StoreBusyError:
        if address is None:
            raise
    raise click.ClickException(
        f"A server is using {folder}. Pass --server {address.url}, with an admin token in PYROMETER_TOKEN."
    )


def _print(answer: dict[str, Any]) -> None:
    rows = [
        [row["state"], *(f"{row[part] / MS_PER_HOUR:,.3f}" for part in ("gpu_ms_before", "gpu_ms_after"))]
        for row in answer["states"]
    ]
    print_table(["state", "GPU-hours before", "after"], rows, figures=2)
    changed = f"{answer['changed_gpu_ms'] / MS_PER_HOUR:,.3f} GPU-hours changed state."
    if answer["adjusted"]:
        click.echo(f"{changed} Charges of this closed month differ too: the next month adjusts them.")
    else:
        click.echo(f"{changed} {'Its frozen charges are unaffected.' if answer['closed'] else ''}".rstrip())
