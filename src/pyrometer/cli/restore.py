"""`pyrometer restore`: a data folder from a backup."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import click

from pyrometer.account.answer_json import iso
from pyrometer.account.time_range import time_ms, zone_of
from pyrometer.cli.progress import progress_bar
from pyrometer.cli.running import print_json
from pyrometer.cli.tables import print_table
from pyrometer.explain.words import counted
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store.backup import BackupError
from pyrometer.store.backup_contents import Backup
from pyrometer.store.backup_folder import BackupFolder
from pyrometer.store.restore import restore


@click.command()
@click.argument("folder", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="The data folder to make: new, or empty.")
@click.option("--at", metavar="TIME", help="The newest that is not later: '2026-11-14 20:00'; or its name.")
@click.option("--tz", metavar="ZONE", default="UTC", help="Time zone of --at: Europe/Berlin. Default: UTC.")
@click.option("--list", "listed", is_flag=True, help="Say which backups there are, and restore nothing.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="The form of the answer.")
def command(folder: Path, out: Path | None, at: str | None, tz: str, listed: bool, output: str) -> None:
    """Makes a data folder of a backup. Every file of it is read and held to its digest before anything is written."""
    if (out is None) != listed:
        raise click.UsageError("Where to? Say --out DIR, or --list for what there is.")
    place = BackupFolder(folder)
    if out is None:
        _print(place.backups(), output)
        return
    backup = _chosen(place, at, tz)
    with progress_bar("Verifying") as progress:
        wrong = list(place.problems([backup], progress))
    if wrong:
        more = f" And {len(wrong) - 1} more: `pyrometer check {folder}` says which." if len(wrong) > 1 else ""
        raise BackupError(f"{folder / backup.name} is not whole, and nothing was restored: {wrong[0]}{more}")
    with progress_bar("Restoring") as progress:
        restore(place, backup, out, progress)
    if output == "json":
        print_json({"restored": _row(backup), "folder": str(out)})
        return
    click.echo(f"{out}: as it was at {iso(backup.taken_ms, UTC)}, {counted(len(backup.contents['parts']), 'part')}.")
    click.echo("Tokens are not in a backup: `pyrometer token create` makes new ones.")


def _chosen(place: BackupFolder, at: str | None, tz: str) -> Backup:
    named = [backup for backup in place.backups() if backup.name == at]
    if named or at is None:
        return named[0] if named else place.newest()
    return place.newest(time_ms(at, zone_of(tz)) + MS_PER_MINUTE)  # a time is a minute, and all of it counts


def _row(backup: Backup) -> dict[str, str | int]:
    return {
        "backup": backup.name, "taken": iso(backup.taken_ms, UTC), "pyrometer": backup.contents["pyrometer"],
        "parts": len(backup.contents["parts"]), "bytes": backup.bytes,
    }  # fmt: skip


def _print(backups: list[Backup], output: str) -> None:
    rows = [_row(backup) for backup in backups]
    if output == "json":
        print_json({"rows": rows})
    elif not rows:
        click.echo("There is no backup.")
    else:
        texts = [[str(row["backup"]), str(row["pyrometer"]), f"{row['parts']:,}", _mb(row["bytes"])] for row in rows]
        print_table(["backup", "pyrometer", "parts", "size"], texts, figures=2)


def _mb(size: str | int) -> str:
    return f"{int(size) / 1e6:,.1f} MB"
