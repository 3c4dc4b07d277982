"""`pyrometer check`: verifies a data folder or its backups, and repairs a data folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from pyrometer.account.checks.check_list import derived_problems, problems
from pyrometer.account.checks.check_parts import Problem
from pyrometer.account.checks.repair import mend, replace_catalog
from pyrometer.account.closing.closed_months import problems as of_closed
from pyrometer.cli.command_support import bring_up_to_date, open_store
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.cli.settings_files import read_settings
from pyrometer.model.human import counted
from pyrometer.serve.ingest.spooled_bodies import unreadable_bodies
from pyrometer.store import Store
from pyrometer.store.backups.backup_contents import Backup
from pyrometer.store.backups.backup_folder import BackupFolder
from pyrometer.store.data_folder import DATABASE
from pyrometer.store.errors import StoreBrokenError


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--repair",
    is_flag=True,
    help="Repair what can be repaired: rebuild derived data, move broken files aside, recreate the catalog.",
)
def command(folder: Path, repair: bool) -> int:
    """Verifies a data folder: no missing or damaged files, exactly 60,000 ms in every slot-minute, no duplicate rows,
    unchanged closed months. For a folder with backups, verifies that every file is unchanged."""
    if not (folder / DATABASE).exists() and (backups := BackupFolder(folder).backups()):
        if repair:
            raise click.UsageError(f"{folder} contains backups, which are never changed: take a new backup.")
        return _verify(BackupFolder(folder), backups)
    with _opened(folder, repair=repair) as store:
        found = _found(store)
        if found and repair:
            for problem in found:
                click.echo(problem.text)
            for done in mend(store, found):
                click.echo(f"Repaired: {done}")
            found = _found(store)
        parts = store.parts()
        rejected = store.rejections()
    for problem in found:
        click.echo(problem.text)
    for (kind, reason), count in rejected.items():
        click.echo(f"{counted(count, f'{kind} record')} rejected: {reason}.")
    rows = sum(part.row_count for part in parts)
    size = sum(part.bytes for part in parts) / 1e6
    click.echo(f"{counted(len(parts), 'part')}, {rows:,} rows, {size:,.1f} MB: {'' if found else 'no '}problems found.")
    return 1 if found else 0


def _found(store: Store) -> list[Problem]:
    """The problems of the stored files, or if there are none, of the ledger that is built from them now."""
    found = list(_problems(store))
    if found:
        return found
    covered = bring_up_to_date(store, read_settings(os.environ, store.folder))
    again = list(_problems(store)) if covered and covered.chunks_built else []
    return again or list(derived_problems(store))


def _problems(store: Store) -> Iterator[Problem]:
    with progress_bar("Checking") as progress:
        yield from problems(store, progress)
    yield from map(Problem, of_closed(store.folder, store.connection))
    yield from unreadable_bodies(store.folder)


def _verify(place: BackupFolder, backups: list[Backup]) -> int:
    """Verifies all backups of a folder."""
    with progress_bar("Verifying") as progress:
        found = list(place.problems(backups, progress))
    for text in found:
        click.echo(text)
    size = sum(path.stat().st_size for path in place.folder.rglob("*") if path.is_file()) / 1e6
    click.echo(f"{counted(len(backups), 'backup')}, {size:,.1f} MB: {'' if found else 'no '}problems found.")
    return 1 if found else 0


def _opened(folder: Path, *, repair: bool) -> Store:
    """Opens the folder. With `repair`, a broken or missing catalog is recreated first."""
    if repair and not os.path.lexists(folder / DATABASE) and (folder / "parts").is_dir():
        _print_repaired(replace_catalog(folder))
    try:
        return open_store(folder)
    except StoreBrokenError:
        if not repair:
            raise
    _print_repaired(replace_catalog(folder))
    return open_store(folder)


def _print_repaired(done: Iterator[str]) -> None:
    for text in done:
        click.echo(f"Repaired: {text}")
