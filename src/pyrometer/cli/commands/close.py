"""`pyrometer close`: freezes the charges of a month."""

from __future__ import annotations

import getpass
import os
import time
from pathlib import Path
from typing import Any

import click

from pyrometer.account.closing.closing_months import close, json_of
from pyrometer.account.query.time_range import zone_of
from pyrometer.cli.charge_options import to_the_second
from pyrometer.cli.command_support import ReadRequest, bring_up_to_date, data_folder, open_store, print_json
from pyrometer.cli.settings_files import read_settings
from pyrometer.model.human import dollars
from pyrometer.questions.client import Address, post, published
from pyrometer.render.tables import print_table
from pyrometer.store import StoreBusyError


@click.command()
@click.argument("month", metavar="[YYYY-MM]", required=False)
@click.option("--list", "listed", is_flag=True, help="List closed months, and close nothing.")
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="The data folder. Default: PYROMETER_DATA."
)
@click.option("--server", metavar="URL", help="Close it on this server, with an admin token in PYROMETER_TOKEN.")
@click.option("--tz", metavar="ZONE", help="Time zone of the month. Default: the setting `timezone`.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(
    month: str | None, listed: bool, data: Path | None, server: str | None, tz: str | None, output: str
) -> None:
    """Closes a month: its charges never change again. Later corrections become adjustments of the next month."""
    if data is not None and server is not None:
        raise click.UsageError("Pass --data or --server, not both.")
    if (month is None) != listed:
        raise click.UsageError("Pass a month like 2026-10, or --list to list closed months.")
    if month is None:
        answer = ReadRequest(data, server, {}, output).answer("closed")
        months = answer["months"]
    else:
        parameters = {"month": month} | ({"tz": tz} if tz else {})
        answer = _close(data, server, parameters)
        months = [answer]
    if output == "json":
        print_json(answer)
    elif not months:
        click.echo("No month is closed.")
    else:
        _print(months)


def _close(data: Path | None, server: str | None, parameters: dict[str, str]) -> dict[str, Any]:
    """Closes the month in the folder, or on the server."""
    if server is not None:
        return post(Address(server, os.environ.get("PYROMETER_TOKEN")), "close", parameters)
    folder = data_folder(data)
    settings = read_settings(os.environ, folder)
    zone = zone_of(parameters.get("tz") or settings.timezone)
    address = published(folder)
    try:
        with open_store(folder, wait_s=None if address is None else 0.0) as store:
            now_ms = time.time_ns() // 1_000_000
            bring_up_to_date(store, settings, now_ms=now_ms)
            return json_of(close(store, settings, parameters["month"], zone, now_ms=now_ms, by=_user()))
    except StoreBusyError:
        if address is None:
            raise
    raise click.ClickException(
        f"A server is using {folder}, and only an admin can close a month there: pass --server {address.url}, with an "
        "admin token in PYROMETER_TOKEN."
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user ID without a name
        return str(os.getuid())


def _print(months: list[dict[str, Any]]) -> None:
    headings = ["month", "time zone", "closed", "by", "ledger", "adjustments", "total"]
    rows = [
        [
            month["month"],
            month["timezone"],
            to_the_second(month["closed"]),
            month["closed_by"],
            *(_money(month[part]["usd_micro"]) for part in ("ledger", "adjustments", "total")),
        ]
        for month in months
    ]
    print_table(headings, rows, figures=3)


def _money(usd_micro: int | None) -> str:
    return "–" if usd_micro is None else dollars(usd_micro)
