"""`pyrometer token`: who may ask a server."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from pyrometer.cli.running import data_folder
from pyrometer.cli.tables import print_table
from pyrometer.serve.tokens import ROLES, Tokens


@click.group()
def command() -> None:
    """Bearer tokens by role: `ingest` may send records, `viewer` ask questions, `admin` both."""


_data = click.option("--data", metavar="DIR", help="The server's data folder. Default: PYROMETER_DATA.")


@command.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What it may do.")
@_data
def create(name: str, role: str, data: str | None) -> None:
    """Makes a token and prints it, once: only its digest is kept."""
    folder = data_folder(data)
    folder.mkdir(parents=True, exist_ok=True)
    click.echo(Tokens(folder).create(name, role, time.time_ns() // 1_000_000))


@command.command("list")
@_data
def list_(data: str | None) -> None:
    """The tokens, without their secrets."""
    rows = [
        [token.name, token.role, f"{datetime.fromtimestamp(token.created_ms / 1000, UTC):%Y-%m-%d %H:%M}"]
        for token in Tokens(data_folder(data)).listed()
    ]
    if rows:
        print_table(["name", "role", "made"], rows, figures=0)
    else:
        click.echo("There is no token: a server answers on loopback only.")


@command.command()
@click.argument("name")
@_data
def revoke(name: str, data: str | None) -> None:
    """From now on the token opens nothing; a running server knows it at once."""
    Tokens(data_folder(data)).revoke(name)
