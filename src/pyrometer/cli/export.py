"""`pyrometer export`: files for chargeback; and what runs cost, into the experiment trackers that have them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pyrometer.account.groupings import GROUPINGS
from pyrometer.cli.chargeback import print_books, share_option, shared_by
from pyrometer.cli.lakes import copy_folder, print_known
from pyrometer.cli.running import ReadRequest, read_options
from pyrometer.explain.words import counted, dollars, hours
from pyrometer.serve.downloads import CHARGEBACK, Download

TRACKERS = ("mlflow", "wandb")
LAKE = "lake"


@click.command()
@click.argument("form", metavar="FORMAT", type=click.Choice((*CHARGEBACK, *TRACKERS, LAKE)))
@click.option("--by", metavar="A,B", help=f"csv: any of {', '.join(GROUPINGS)}. Default: team.")
@click.option(
    "--out",
    "out",
    metavar="FILE",
    help="Write there; as Parquet where it ends in .parquet. Default: CSV, to stdout. lake: its URL.",
)
@click.option(
    "--tracking-uri",
    "uri",
    metavar="URL",
    envvar="MLFLOW_TRACKING_URI",
    help="mlflow: the tracking server. Default: MLFLOW_TRACKING_URI.",
)
@click.option(
    "--wandb-dir",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="wandb: the folder `wandb` with offline runs. Default: W&B's server.",
)
@click.option("--run", "only", metavar="RUN", multiple=True, help="mlflow, wandb: this run; several times, too.")
@share_option
@read_options(default_last="12h", formats=(), engines=True)
def command(
    asked: ReadRequest,
    form: str,
    by: str | None,
    out: str | None,
    uri: str | None,
    folder: Path | None,
    only: tuple[str, ...],
    share_platform: str | None,
) -> None:
    """Files for chargeback, CSV or Parquet: csv, the rows of `cost` for a spreadsheet; focus, charges by day as FOCUS
    1.2. And into trackers, about everything: mlflow, tags and metrics of its runs; wandb, their summary. And lake: all
    of a data folder, beside other clusters."""
    if by is not None and form != "csv":
        raise click.UsageError(f"--by says how csv is grouped: {form} has its own rows.")
    if form in TRACKERS:
        if asked.lake is not None:
            raise click.UsageError(f"{form} is told by who has the runs: say --data or --server, not --lake.")
        from pyrometer.cli.stamping import into_mlflow, into_wandb  # httpx, or the client of W&B: only here

        if form == "mlflow":
            into_mlflow(asked, uri, only)
        else:
            into_wandb(asked, folder, only)
        return
    if form == LAKE:
        copy_folder(asked, out)
        return
    path = None if out is None else Path(out)
    download = CHARGEBACK[form]
    answer = asked.answer(download.what, **({} if by is None else {"by": by}), **shared_by(share_platform))
    _write(download, answer, path)
    if path is not None:
        money = "" if answer["total"]["usd_micro"] is None else f", {dollars(answer['total']['usd_micro'])}"
        click.echo(f"{counted(len(answer['rows']), 'row')}{money}: {path}", err=True)
    print_books(answer["books"])
    print_known(answer)
    unpriced_ms = answer["total"]["unpriced_gpu_ms"]
    if unpriced_ms:
        how = "are not in it" if form == "focus" else "have no dollars in it"
        click.echo(f"No price is known for {hours(unpriced_ms)}: they {how}. --price says one.", err=True)


def _write(download: Download, answer: dict[str, Any], path: Path | None) -> None:
    if path is None:
        sys.stdout.writelines(download.text(answer))
        return
    pieces, _, _ = download.written_as(path.suffix.lower().removeprefix("."))
    with path.open("wb") as to:
        for piece in pieces(answer):
            to.write(piece.encode() if isinstance(piece, str) else piece)
