"""`pyrometer token`: who may ask a server."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from pyrometer.cli.running import data_folder
from pyrometer.cli.settings import read_settings
from pyrometer.cli.tables import print_table
from pyrometer.serve import audit
from pyrometer.serve.tokens import ROLES, Tokens


@click.group()
def command() -> None:
    """Tokens by role: `ingest` may send records, `viewer` ask questions, `team_viewer` of one team, `admin` all."""


_CLOSED = (
    "The server answers nobody until you create one with `pyrometer token create NAME`, or start it with "
    "`pyrometer serve --open`."
)
_data = click.option("--data", metavar="DIR", help="The server's data folder. Default: PYROMETER_DATA.")


@command.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What it may do.")
@click.option("--team", metavar="NAME", help="Of a team viewer: the team whose data it sees, and no other's.")
@_data
def create(name: str, role: str, team: str | None, data: str | None) -> None:
    """Makes a token and prints it, once: only its digest is kept."""
    folder = data_folder(data)
    folder.mkdir(parents=True, exist_ok=True)
    secret = Tokens(folder).create(name, role, time.time_ns() // 1_000_000, team)
    _note(folder, "token_created", name=name, role=role, team=team)
    click.echo(secret)


@command.command("list")
@_data
def list_(data: str | None) -> None:
    """The tokens, without their secrets."""
    tokens = Tokens(data_folder(data))
    rows = [
        [token.name, token.role, token.team or "", f"{datetime.fromtimestamp(token.created_ms / 1000, UTC):%F %R}"]
        for token in tokens.listed()
    ]
    if rows:
        print_table(["name", "role", "team", "made"], rows, figures=0)
    elif tokens.are_required():
        click.echo(f"No tokens. {_CLOSED}")
    else:
        click.echo("No tokens. A server answers on loopback only.")


@command.command()
@click.argument("name")
@_data
def revoke(name: str, data: str | None) -> None:
    """From now on the token opens nothing; a running server knows it at once."""
    folder = data_folder(data)
    tokens = Tokens(folder)
    tokens.revoke(name)
    _note(folder, "token_revoked", name=name)
    if not tokens.listed():
        click.echo(f"That was the last token. {_CLOSED}")


def _note(folder: Path, what: str, **about: str | None) -> None:
    """Who changed who may, in the server's log."""
    if read_settings(os.environ, folder).audit_log == "yes":
        audit.note(folder, what, who=f"uid {os.getuid()}", **about)
