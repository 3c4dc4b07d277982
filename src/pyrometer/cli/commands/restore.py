"""`pyrometer restore`: makes a data folder from a backup."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import click

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import time_ms, zone_of
from pyrometer.cli.command_support import print_json
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.model.human import counted
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.render.tables import print_table
from pyrometer.store.backups.backup_contents import Backup
from pyrometer.store.backups.backup_folder import BackupFolder
from pyrometer.store.backups.backup_members import BackupError
from pyrometer.store.backups.restore import restore


@click.command()
@click.argument("folder", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The data folder to create. Must not exist or be empty.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="The newest backup at this time, '2026-11-14 20:00', or the name of a backup. Default: the newest.",
)
@click.option("--tz", metavar="ZONE", default="UTC", help="Time zone of --at: Europe/Berlin. Default: UTC.")
@click.option("--list", "listed", is_flag=True, help="List backups, and restore nothing.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(folder: Path, out: Path | None, at: str | None, tz: str, listed: bool, output: str) -> None:
    """Makes a data folder from a backup. Every file is verified against its digest before anything is written."""
    if (out is None) != listed:
        raise click.UsageError("Pass --out DIR, or --list to list backups.")
    place = BackupFolder(folder)
    if out is None:
        _print(place.backups(), output)
        return
    backup = _chosen(place, at, tz)
    with progress_bar("Verifying") as progress:
        wrong = list(place.problems([backup], progress))
    if wrong:
        more = f" {len(wrong) - 1} more: run `pyrometer check {folder}`." if len(wrong) > 1 else ""
        raise BackupError(f"{folder / backup.name} is damaged, and nothing was restored: {wrong[0]}{more}")
    with progress_bar("Restoring") as progress:
        restore(place, backup, out, progress)
    if output == "json":
        print_json({"restored": _row(backup), "folder": str(out)})
        return
    click.echo(f"{out}: restored as of {iso(backup.taken_ms, UTC)}, {counted(len(backup.contents['parts']), 'part')}.")
    click.echo("Backups contain no tokens. Create new ones with `pyrometer token create`.")


def _chosen(place: BackupFolder, at: str | None, tz: str) -> Backup:
    named = [backup for backup in place.backups() if backup.name == at]
    if named or at is None:
        return named[0] if named else place.newest()
    return place.newest(time_ms(at, zone_of(tz)) + MS_PER_MINUTE)  # a time names a whole minute


def _row(backup: Backup) -> dict[str, str | int]:
    return {
        "backup": backup.name,
        "taken": iso(backup.taken_ms, UTC),
        "pyrometer": backup.contents["pyrometer"],
        "parts": len(backup.contents["parts"]),
        "bytes": backup.bytes,
    }


def _print(backups: list[Backup], output: str) -> None:
    rows = [_row(backup) for backup in backups]
    if output == "json":
        print_json({"rows": rows})
    elif not rows:
        click.echo("No backups.")
    else:
        texts = [[str(row["backup"]), str(row["pyrometer"]), f"{row['parts']:,}", _mb(row["bytes"])] for row in rows]
        print_table(["backup", "pyrometer", "parts", "size"], texts, figures=2)


def _mb(size: str | int) -> str:
    return f"{int(size) / 1e6:,.1f} MB"
