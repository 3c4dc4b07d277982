"""`pyrometer export`: files for chargeback, a copy in a lake, and the cost of runs in their experiment trackers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.cli.charge_options import print_books, share_option, shared_by
from pyrometer.cli.command_support import ReadRequest, read_options
from pyrometer.cli.lake_requests import copy_folder, print_known
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.cli.settings_files import read_settings
from pyrometer.export.tracker_summary import RunSummary, summarize_run
from pyrometer.model.human import counted, dollars, hours
from pyrometer.serve.http.downloads import CHARGEBACK, Download

if TYPE_CHECKING:
    from pyrometer.collect.trackers.mlflow import Mlflow

TRACKERS = ("mlflow", "wandb")
LAKE = "lake"


@click.command()
@click.argument("form", metavar="FORMAT", type=click.Choice((*CHARGEBACK, *TRACKERS, LAKE)))
@click.option("--by", metavar="A,B", help=f"csv: any of {', '.join(GROUPINGS)}. Default: team.")
@click.option(
    "--out",
    "out",
    metavar="FILE",
    help="The file to write: Parquet if its name ends in .parquet, else CSV. Default: CSV to stdout. "
    "lake: the URL of the lake.",
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
    help="wandb: the folder `wandb` with offline runs. Default: the server of W&B.",
)
@click.option("--run", "only", metavar="RUN", multiple=True, help="mlflow, wandb: only this run. Can be repeated.")
@share_option
@read_options(default_last="12h", formats=(), engines=True)
def command(
    request: ReadRequest,
    form: str,
    by: str | None,
    out: str | None,
    uri: str | None,
    folder: Path | None,
    only: tuple[str, ...],
    share_platform: str | None,
) -> None:
    """Exports charges to a file, a data folder to a lake, or the cost of runs to their trackers.

    `csv` has the rows of `pyrometer cost`, for a spreadsheet. `focus` has charges per day in FOCUS 1.2. Both can be
    written as CSV or Parquet. `mlflow` writes tags and metrics of runs, `wandb` writes their summary. `lake` copies a
    whole data folder, next to those of other clusters."""
    if by is not None and form != "csv":
        raise click.UsageError(f"--by applies to csv only: the rows of {form} are fixed.")
    if form == "mlflow":
        _export_to_mlflow(request, uri, only)
    elif form == "wandb":
        _export_to_wandb(request, folder, only)
    elif form == LAKE:
        copy_folder(request, out)
    else:
        _export_charges(request, form, by, None if out is None else Path(out), share_platform)


# -- charges ----------------------------------------------------------------------------------------------------------


def _export_charges(
    request: ReadRequest, form: str, by: str | None, path: Path | None, share_platform: str | None
) -> None:
    download = CHARGEBACK[form]
    answer = request.answer(download.what, **({} if by is None else {"by": by}), **shared_by(share_platform))
    _write(download, answer, path)
    if path is not None:
        money = "" if answer["total"]["usd_micro"] is None else f", {dollars(answer['total']['usd_micro'])}"
        click.echo(f"{counted(len(answer['rows']), 'row')}{money}: {path}", err=True)
    print_books(answer["books"])
    print_known(answer)
    unpriced_ms = answer["total"]["unpriced_gpu_ms"]
    if unpriced_ms:
        how = "are not included" if form == "focus" else "are included without dollars"
        click.echo(f"{hours(unpriced_ms)} have no price and {how}. Set one with --price.", err=True)


def _write(download: Download, answer: dict[str, Any], path: Path | None) -> None:
    if path is None:
        sys.stdout.writelines(download.text(answer))
        return
    pieces, _, _ = download.written_as(path.suffix.lower().removeprefix("."))
    with path.open("wb") as to:
        for piece in pieces(answer):
            to.write(piece.encode() if isinstance(piece, str) else piece)


# -- trackers ---------------------------------------------------------------------------------------------------------
# The clients of trackers (httpx2, wandb) take a while to load: they are imported only when a tracker is written to.


def _export_to_mlflow(request: ReadRequest, uri: str | None, only: Collection[str]) -> None:
    """Writes tags and metrics of the runs of a tracking server."""
    from pyrometer.collect.trackers.mlflow import Mlflow

    _refuse_lake(request, "mlflow")
    if not uri:
        raise click.UsageError("No tracking server: pass --tracking-uri, or set MLFLOW_TRACKING_URI.")
    asyncio.run(_write_to_mlflow(Mlflow(uri, os.environ.get("MLFLOW_TRACKING_TOKEN")), request, only))


async def _write_to_mlflow(mlflow: Mlflow, request: ReadRequest, only: Collection[str]) -> None:
    from pyrometer.collect.trackers.mlflow import RejectedRequestError
    from pyrometer.export.mlflow import write_summary

    written = missing = 0
    try:
        for run_id, run_summary in _summaries(request, "mlflow", only):
            try:
                await write_summary(mlflow, run_id, run_summary)
                written += 1
            except RejectedRequestError:
                missing += 1
    finally:
        await mlflow.close()
    _print_written(written, missing, "mlflow", mlflow.uri)


def _export_to_wandb(request: ReadRequest, folder: Path | None, only: Collection[str]) -> None:
    """Writes the summary of runs on the server of W&B, or next to each run in a folder of offline runs."""
    from pyrometer.export import wandb

    _refuse_lake(request, "wandb")
    summaries = dict(_summaries(request, "wandb", only))
    if not summaries:
        _print_written(0, 0, "wandb", "")
    result = wandb.write_summaries_online(summaries) if folder is None else wandb.write_summaries(folder, summaries)
    _print_written(result.written, result.missing, "wandb", str(folder or "W&B"))
    if result.written and folder is not None:
        click.echo("`wandb sync` uploads them with the runs.")


def _refuse_lake(request: ReadRequest, tracker: str) -> None:
    if request.lake is not None:
        raise click.UsageError(f"A lake cannot be exported to {tracker}: pass --data or --server instead of --lake.")


def _summaries(request: ReadRequest, tracker: str, only: Collection[str]) -> Iterator[tuple[str, RunSummary]]:
    """The IDs of a tracker's runs, and what to write to each. One question per run is enough: runs are few."""
    url = read_settings(os.environ, request.data).public_url
    rows = [
        row
        for row in request.answer("runs")["rows"]
        if any(one["tracker"] == tracker for one in row["trackers"]) and (not only or row["run"] in only)
    ]
    with progress_bar("Stamping") as progress:
        for number, row in enumerate(rows, 1):
            shown: dict[str, Any] = request.answer("show", run=row["run"], without="windows")
            until_ms = max((point[1] for points in shown["metrics"].values() for point in points[-1:]), default=0)
            run_summary = summarize_run(shown, shown["findings"], at_ms=until_ms, public_url=url)
            for one in row["trackers"]:
                if one["tracker"] == tracker:
                    yield one["id"], run_summary
            progress(number, len(rows))


def _print_written(written: int, missing: int, tracker: str, place: str) -> None:
    if not written and not missing:
        raise click.ClickException(
            f"No run here belongs to {tracker}. `pyrometer import {tracker}` joins runs with those of the tracker."
        )
    others = f"; {counted(missing, 'run')} not found in {place}" if missing else ""
    click.echo(f"{counted(written, 'run')} stamped{others}.")
