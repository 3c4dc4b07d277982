"""`pyrometer backup`: takes a backup of a data folder or of a running server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pyrometer.cli.command_support import data_folder, open_store, print_json
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.cli.settings_files import read_settings
from pyrometer.model.human import counted
from pyrometer.questions.client import Address, published, streamed
from pyrometer.serve.http.audit import note
from pyrometer.store import Store, StoreBusyError
from pyrometer.store.backups.backup_folder import BackupFolder, ReceivedBackup
from pyrometer.store.backups.backup_members import (
    BackupMember,
    BackupSnapshot,
    SentFiles,
    clear_leftovers,
    inbox_members,
)
from pyrometer.store.backups.backup_tar import unpacked


@click.command()
@click.option("--out", metavar="BACKUP", type=click.Path(path_type=Path), help="The folder for backups.")
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="The data folder. Default: PYROMETER_DATA."
)
@click.option("--server", metavar="URL", help="Back up this running server, with an admin token in PYROMETER_TOKEN.")
@click.option("--keep", metavar="N", type=click.IntRange(1), help="Afterwards delete all but the newest N backups.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(out: Path | None, data: Path | None, server: str | None, keep: int | None, output: str) -> None:
    """Takes a consistent backup, while a server keeps running. Parquet parts of earlier backups are not copied again.
    Tokens are not included."""
    if data is not None and server is not None:
        raise click.UsageError("Pass --data or --server, not both.")
    if out is None:
        raise click.UsageError("No folder: pass --out BACKUP.")
    place = BackupFolder(out)
    with place.locked():
        have = place.parts()
        members = _of_server(server, have) if server is not None else _of_folder(data_folder(data), have)
        with members as sent, progress_bar("Copying") as progress:
            received = place.receive(sent, progress)
        forgotten = place.prune(keep) if keep is not None else []
    _print(out, received, forgotten, output)


@contextmanager
def _of_server(url: str, have: set[str]) -> Iterator[Iterator[BackupMember]]:
    body = json.dumps({"have": sorted(have)}).encode()
    with streamed(Address(url, os.environ.get("PYROMETER_TOKEN")), "backup", body) as pieces:
        yield unpacked(pieces)


@contextmanager
def _of_folder(folder: Path, have: set[str]) -> Iterator[Iterator[BackupMember]]:
    address = published(folder)
    try:
        store = open_store(folder, wait_s=None if address is None else 0.0)
    except StoreBusyError:
        if address is None:
            raise
        raise click.ClickException(
            f"A server is using {folder}, and only an admin can back it up: pass --server {address.url}, with an "
            "admin token in PYROMETER_TOKEN."
        ) from None
    with store:
        clear_leftovers(folder)
        book = read_settings(os.environ, folder).price_book
        note(folder, "backup", who=f"uid {os.getuid()}")
        yield _members(store, have, [Path(book)] if book else [])


def _members(store: Store, have: set[str], also: list[Path]) -> Iterator[BackupMember]:
    sent: SentFiles = {}
    yield from inbox_members(store.folder, sent)
    moment = BackupSnapshot(store, also)
    try:
        yield from moment.members(have, sent)
    finally:
        moment.close()


def _print(out: Path, received: ReceivedBackup, forgotten: list[str], output: str) -> None:
    backup = received.backup
    parts = len(backup.contents["parts"])
    if output == "json":
        print_json(
            {
                "backup": backup.name,
                "folder": str(out),
                "taken_ms": backup.taken_ms,
                "parts": parts,
                "parts_copied": received.parts_copied,
                "bytes": backup.bytes,
                "bytes_copied": received.bytes_copied,
                "forgotten": forgotten,
            }
        )
        return
    copied = f"{received.bytes_copied / 1e6:,.1f} MB copied ({received.parts_copied:,} of {counted(parts, 'part')})"
    click.echo(f"{out / backup.name}: {backup.bytes / 1e6:,.1f} MB, {copied}.")
    if forgotten:
        click.echo(f"Deleted: {', '.join(forgotten)}.")
