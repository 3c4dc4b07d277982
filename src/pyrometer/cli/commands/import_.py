"""`pyrometer import`: a data set, a recording, or the runs of an experiment tracker into a data folder."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click
import yaml

from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.cli.command_support import WAIT_FOR_FOLDER_S, bring_up_to_date, open_store
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.cli.settings_files import FOLDER_FILE, read_settings
from pyrometer.collect.source import Source, drain
from pyrometer.collect.trackers.mlflow import Mlflow
from pyrometer.model.human import counted, hours
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.ingest.tracker_sync import TrackedRunWriter, read_mlflow, read_wandb
from pyrometer.simulate.night import TRUTH
from pyrometer.store import Store

DATASETS = "pyrometer_datasets"  # the folder datasets/ of a checkout; the wheel does not have it


class _Format(NamedTuple):
    help: str
    module: str = ""  # in DATASETS; empty for trackers, which this package reads
    source: str = ""  # the class in that module


FORMATS = {
    "openb": _Format("Alibaba's 2023 GPU cluster: the pod list, or its folder", "traces", "OpenbTrace"),
    "philly": _Format("Microsoft's Philly: philly.csv, or its folder", "traces", "PhillyTrace"),
    "speedrun": _Format("modded-nanogpt's GPT-2 speed runs: a log, or a folder of logs", "speedrun", "SpeedrunLogs"),
    "recording": _Format("a folder with NAME-gpu.csv, NAME-steps.csv and NAME-truth.json", "recording", "Recordings"),
    "mlflow": _Format("the URL of a tracking server; its token is read from MLFLOW_TRACKING_TOKEN"),
    "wandb": _Format("Weights & Biases: a folder `wandb` with runs, including offline runs"),
}


class _DatasetSource(Source, Protocol):
    counts: Counter[str]  # how many of what were read


@click.command(epilog="Formats: " + "; ".join(f"{name} ({one.help})" for name, one in FORMATS.items()) + ".")
@click.argument("format_", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("place", metavar="PATH")
@click.option("--out", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder.")
@click.option("--without-steps", is_flag=True, help="recording: import only the GPU telemetry.")
def command(format_: str, place: str, folder: Path, without_steps: bool) -> None:
    """Imports a data set, a recording, or the runs of a tracker into a data folder, and builds its ledger. Importing
    the same data again changes nothing."""
    if without_steps and format_ != "recording":
        raise click.UsageError(f"--without-steps applies to recordings, not to {format_}.")
    if format_ != "mlflow" and not Path(place).exists():
        raise click.UsageError(f"{place} does not exist. {format_} takes {FORMATS[format_].help}.")
    if not FORMATS[format_].module:
        _import_tracker(format_, place, folder)
        return
    path = Path(place)
    options = {"with_steps": not without_steps} if format_ == "recording" else {}
    source: _DatasetSource = getattr(_dataset_module(format_), FORMATS[format_].source)(path, **options)
    with Store(folder, create=True, wait_s=WAIT_FOR_FOLDER_S) as store:
        asyncio.run(_read(source, store))
        if format_ == "recording":
            _write_truth(path, folder, with_steps=not without_steps)
        store.seal()
        store.set_meta("origin", "recorded")
        covered = bring_up_to_date(store, read_settings(os.environ, folder))
        if covered is None:
            raise click.ClickException(f"{path} contains nothing to account for.")
        open_names(store)
        groups = sums(store, TimeRange(covered.from_ms, covered.end_ms), ["outcome"], zone=UTC)
    counts = "".join(f", {count:,} {what}" for what, count in source.counts.items())
    total_ms = sum(group.gpu_ms for group in groups)
    unit_ms = MS_PER_HOUR if total_ms >= MS_PER_HOUR else MS_PER_MINUTE  # the unit that `hours` chooses
    by_outcome = ", ".join(f"{group.key[0] or 'free'} {group.gpu_ms / unit_ms:,.1f}" for group in groups)
    click.echo(f"{hours(total_ms)} ({by_outcome}){counts}.")
    what, which = ("worth speedrun", "--target 3.28") if format_ == "speedrun" else ("why", "--all")
    click.echo(f"Next: pyrometer {what} --data {folder} {which}")


def _dataset_module(format_: str) -> Any:
    """The module of a checkout that reads a data set. It is loaded only when it is needed."""
    if importlib.util.find_spec(DATASETS) is None:
        raise click.ClickException(
            f"The {format_} importer is only part of a source checkout: clone Pyrometer's repository, run `make setup` "
            f"and use `.venv/bin/pyrometer import {format_}`."
        )
    return importlib.import_module(f"{DATASETS}.{FORMATS[format_].module}")


def _write_truth(path: Path, folder: Path, *, with_steps: bool) -> None:
    """Writes what `pyrometer score` compares with, and settings that suit a recording of seconds and minutes."""
    if not (folder / FOLDER_FILE).exists():
        settings = importlib.import_module(f"{DATASETS}.recording").SETTINGS
        (folder / FOLDER_FILE).write_text(yaml.safe_dump(settings), encoding="utf-8")
    truth = importlib.import_module(f"{DATASETS}.recorded_truth").recorded_truth(path, with_steps=with_steps)
    (folder / TRUTH).write_text(json.dumps(truth), encoding="utf-8")


def _import_tracker(format_: str, place: str, folder: Path) -> None:
    with open_store(folder, create=True) as store:
        tracking = TrackedRunWriter(store, local=True)
        with progress_bar("Reading") as progress:
            if format_ == "mlflow":
                runs = asyncio.run(_read_mlflow(place, tracking, progress))
            else:
                runs = read_wandb(Path(place), tracking, progress)
        if not runs:
            raise click.ClickException(f"{place} has no runs.")
        store.seal()
        bring_up_to_date(store, read_settings(os.environ, folder))
    counts = "".join(f"; {count:,} {what}" for what, count in sorted(tracking.counts.items()))
    click.echo(f"{counted(runs, 'run')}{counts}.")
    for words in tracking.ambiguous.values():
        click.echo(words, err=True)
    click.echo(f"Next: pyrometer worth --data {folder}")


async def _read_mlflow(uri: str, tracking: TrackedRunWriter, progress: Callable[[int, int], None]) -> int:
    mlflow = Mlflow(uri, os.environ.get("MLFLOW_TRACKING_TOKEN"))
    try:
        return await read_mlflow(mlflow, tracking, progress)
    finally:
        await mlflow.close()


async def _read(source: Source, store: Store) -> None:
    with progress_bar("Reading") as progress:
        async for delivery in drain(source, store):
            progress(round(1000 * delivery.progress), 1000)
