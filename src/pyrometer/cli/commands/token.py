"""`pyrometer token`: creates, lists and revokes access tokens of a server."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from pyrometer.cli.command_support import data_folder
from pyrometer.cli.settings_files import read_settings
from pyrometer.questions.tokens import ROLES, Tokens
from pyrometer.render.tables import print_table
from pyrometer.serve.http import audit


@click.group()
def command() -> None:
    """Manages access tokens. Role `ingest` can send records, `viewer` can read, `team_viewer` can read one team,
    `admin` can do everything."""


_CLOSED = (
    "The server refuses all requests until you create one with `pyrometer token create NAME`, or start it with "
    "`pyrometer serve --open`."
)
_data = click.option("--data", metavar="DIR", help="The server's data folder. Default: PYROMETER_DATA.")


@command.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What the token can do.")
@click.option("--team", metavar="NAME", help="team_viewer: the only team whose data it can see.")
@_data
def create(name: str, role: str, team: str | None, data: str | None) -> None:
    """Creates a token and prints it. It cannot be shown again: only its digest is stored."""
    folder = data_folder(data)
    folder.mkdir(parents=True, exist_ok=True)
    secret = Tokens(folder).create(name, role, time.time_ns() // 1_000_000, team)
    _note(folder, "token_created", name=name, role=role, team=team)
    click.echo(secret)


@command.command("list")
@_data
def list_(data: str | None) -> None:
    """Lists tokens, without their secrets."""
    tokens = Tokens(data_folder(data))
    rows = [
        [token.name, token.role, token.team or "", f"{datetime.fromtimestamp(token.created_ms / 1000, UTC):%F %R}"]
        for token in tokens.listed()
    ]
    if rows:
        print_table(["name", "role", "team", "created"], rows, figures=0)
    elif tokens.are_required():
        click.echo(f"No tokens. {_CLOSED}")
    else:
        click.echo("No tokens. A server answers on loopback only.")


@command.command()
@click.argument("name")
@_data
def revoke(name: str, data: str | None) -> None:
    """Revokes a token. A running server refuses it at once."""
    folder = data_folder(data)
    tokens = Tokens(folder)
    tokens.revoke(name)
    _note(folder, "token_revoked", name=name)
    if not tokens.listed():
        click.echo(f"That was the last token. {_CLOSED}")


def _note(folder: Path, what: str, **about: str | None) -> None:
    """Records in the server's audit log who changed a token."""
    if read_settings(os.environ, folder).audit_log == "yes":
        audit.note(folder, what, who=f"uid {os.getuid()}", **about)
