"""`pyrometer export`: files for chargeback."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from pyrometer.account.sums import GROUPINGS
from pyrometer.cli.chargeback import print_books, share_option, shared_by
from pyrometer.cli.running import Asked, read_options
from pyrometer.explain.words import hours
from pyrometer.serve.downloads import CHARGEBACK


@click.command()
@click.argument("form", metavar="FORMAT", type=click.Choice(tuple(CHARGEBACK)))
@click.option("--by", metavar="A,B", help=f"csv: any of {', '.join(GROUPINGS)}. Default: team.")
@click.option("--out", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write there. Default: stdout.")
@share_option
@read_options(default_last="12h", formats=())
def command(asked: Asked, form: str, by: str | None, path: Path | None, share_platform: str | None) -> None:
    """Files for chargeback: csv, the rows of `cost` for a spreadsheet; focus, charges by day as FOCUS 1.2."""
    if by is not None and form != "csv":
        raise click.UsageError("--by says how csv is grouped: focus has its own rows.")
    download = CHARGEBACK[form]
    answer = asked.answer(download.what, **({} if by is None else {"by": by}), **shared_by(share_platform))
    with ExitStack() as stack:
        to = sys.stdout if path is None else stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        for piece in download.text(answer):
            to.write(piece)
    print_books(answer["books"])
    unpriced_ms = answer["total"]["unpriced_gpu_ms"]
    if unpriced_ms:
        how = "are not in it" if form == "focus" else "have no dollars in it"
        click.echo(f"No price is known for {hours(unpriced_ms)}: they {how}. --price says one.", err=True)
