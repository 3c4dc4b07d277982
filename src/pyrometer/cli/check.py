"""`pyrometer check`: verifies a data folder."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pyrometer.account.check import problems
from pyrometer.account.closed import problems as of_closed
from pyrometer.cli.progress import progress_bar
from pyrometer.cli.running import bring_up_to_date, open_store
from pyrometer.cli.settings import read_settings
from pyrometer.explain.words import counted


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def command(folder: Path) -> int:
    """Verifies a data folder: files are there and whole, every slot-minute has 60,000 ms, nothing stands twice, closed
    months are as they were closed."""
    with open_store(folder) as store:
        with progress_bar("Checking") as progress:
            found = [*problems(store, progress), *of_closed(store.folder, store.connection)]
        if (
            not found
            and (covered := bring_up_to_date(store, read_settings(os.environ, folder)))
            and covered.chunks_built
        ):
            found = list(problems(store))
        parts = store.parts()
        rejected = store.rejections()
    for problem in found:
        click.echo(problem)
    for (kind, reason), count in rejected.items():
        click.echo(f"{counted(count, f'{kind} record')} rejected: {reason}.")
    rows = sum(part.row_count for part in parts)
    size = sum(part.bytes for part in parts) / 1e6
    click.echo(f"{counted(len(parts), 'part')}, {rows:,} rows, {size:,.1f} MB: {'not ' if found else ''}all is well.")
    return 1 if found else 0
