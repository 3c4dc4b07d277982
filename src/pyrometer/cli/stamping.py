"""`pyrometer export mlflow|wandb`: every run that a tracker has is told once what it cost and what was found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import click

from pyrometer.cli.progress import progress_bar
from pyrometer.cli.running import ReadRequest
from pyrometer.cli.settings import read_settings
from pyrometer.collect.mlflow import Mlflow, NotTakenError
from pyrometer.explain.words import counted
from pyrometer.export import wandb
from pyrometer.export.mlflow import stamp
from pyrometer.export.stamps import Stamp, stamp_of


def into_mlflow(asked: ReadRequest, uri: str | None, only: Collection[str]) -> None:
    """Tags and metrics of the runs of a tracking server."""
    if not uri:
        raise click.UsageError("Which tracking server? Say --tracking-uri, or set MLFLOW_TRACKING_URI.")
    asyncio.run(_into_mlflow(Mlflow(uri, os.environ.get("MLFLOW_TRACKING_TOKEN")), asked, only))


async def _into_mlflow(mlflow: Mlflow, asked: ReadRequest, only: Collection[str]) -> None:
    stamped = missing = 0
    try:
        for run_id, found in _stamps(asked, "mlflow", only):
            try:
                await stamp(mlflow, run_id, found)
                stamped += 1
            except NotTakenError:
                missing += 1
    finally:
        await mlflow.close()
    _say(stamped, missing, f"{mlflow.uri} does not have", "pyrometer import mlflow")


def into_wandb(asked: ReadRequest, folder: Path | None, only: Collection[str]) -> None:
    """The summary of runs on W&B's server; or a part with a summary beside each run in a folder of offline ones."""
    stamps = dict(_stamps(asked, "wandb", only))
    if not stamps:
        _say(0, 0, "", "pyrometer import wandb")
    stamped = wandb.stamp_online(stamps) if folder is None else wandb.stamp(folder, stamps)
    _say(stamped.written, stamped.missing, f"{folder or 'W&B'} does not have", "pyrometer import wandb")
    if stamped.written and folder is not None:
        click.echo("`wandb sync` sends them along.")


def _stamps(asked: ReadRequest, tracker: str, only: Collection[str]) -> Iterator[tuple[str, Stamp]]:
    """Ids of a tracker's runs, and what to tell them. Questions are asked one after the other: runs are few."""
    url = read_settings(os.environ, asked.data).public_url
    rows = [
        row
        for row in asked.answer("runs")["rows"]
        if any(one["tracker"] == tracker for one in row["trackers"]) and (not only or row["run"] in only)
    ]
    with progress_bar("Stamping") as progress:
        for number, row in enumerate(rows, 1):
            shown: dict[str, Any] = asked.answer("show", run=row["run"], without="windows")
            until_ms = max((point[1] for points in shown["metrics"].values() for point in points[-1:]), default=0)
            found = stamp_of(shown, shown["findings"], at_ms=until_ms, public_url=url)
            for one in row["trackers"]:
                if one["tracker"] == tracker:
                    yield one["id"], found
            progress(number, len(rows))


def _say(stamped: int, missing: int, lacking: str, how: str) -> None:
    if not stamped and not missing:
        raise click.ClickException(f"No run here is known to be one of that tracker. `{how}` joins them.")
    others = f"; {lacking} {missing:,} others" if missing else ""
    click.echo(f"{counted(stamped, 'run')} stamped{others}.")
