"""`pyrometer import`: a trace, a recording, or what an experiment tracker knows, into a data folder."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import click
import yaml

from pyrometer.account.names import open_names
from pyrometer.account.sums import sums
from pyrometer.account.time_range import TimeRange
from pyrometer.cli.progress import progress_bar
from pyrometer.cli.running import WAIT_FOR_FOLDER_S, bring_up_to_date, open_store
from pyrometer.cli.settings import FOLDER_FILE, read_settings
from pyrometer.collect import recording
from pyrometer.collect.mlflow import Mlflow
from pyrometer.collect.recorded_truth import recorded_truth
from pyrometer.collect.recording import Recordings
from pyrometer.collect.source import Source, drain
from pyrometer.collect.speedrun import SpeedrunLogs
from pyrometer.collect.traces import OpenbTrace, PhillyTrace
from pyrometer.explain.words import counted, hours
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.tracked import TrackedRunWriter, read_mlflow, read_wandb
from pyrometer.simulate.night import TRUTH
from pyrometer.store import Store

FORMATS = {
    "openb": "Alibaba's 2023 GPU cluster: the pod list, or its folder",
    "philly": "Microsoft's Philly: philly.csv, or its folder",
    "speedrun": "modded-nanogpt's GPT-2 speed runs: a log, or a folder of logs",
    "recording": "a folder of NAME-gpu.csv, NAME-steps.csv, NAME-truth.json",
    "mlflow": "the runs of a tracking server, by its address; what is secret about it is in MLFLOW_TRACKING_TOKEN",
    "wandb": "Weights & Biases: a folder `wandb` with runs, offline ones too",
}
TRACKERS = ("mlflow", "wandb")
SOURCES: dict[str, type[OpenbTrace | PhillyTrace | SpeedrunLogs]] = {
    "openb": OpenbTrace,
    "philly": PhillyTrace,
    "speedrun": SpeedrunLogs,
}


@click.command(epilog="Formats: " + "; ".join(f"{name} ({what})" for name, what in FORMATS.items()) + ".")
@click.argument("format_", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("place", metavar="PATH")
@click.option("--out", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder.")
@click.option("--without-steps", is_flag=True, help="Of a recording, GPU telemetry alone.")
def command(format_: str, place: str, folder: Path, without_steps: bool) -> None:
    """Reads a trace, a recording, or the runs of a tracker into a data folder, and accounts for it. Reading it again
    changes nothing."""
    if without_steps and format_ != "recording":
        raise click.UsageError(f"--without-steps is for recordings, not for {format_}.")
    if format_ != "mlflow" and not Path(place).exists():
        raise click.UsageError(f"{place} is not there: {FORMATS[format_]}.")
    if format_ in TRACKERS:
        _read_tracker(format_, place, folder)
        return
    path = Path(place)
    source: OpenbTrace | PhillyTrace | SpeedrunLogs | Recordings
    source = Recordings(path, with_steps=not without_steps) if format_ == "recording" else SOURCES[format_](path)
    with Store(folder, create=True, wait_s=WAIT_FOR_FOLDER_S) as store:
        asyncio.run(_read(source, store))
        if format_ == "recording":
            if not (folder / FOLDER_FILE).exists():
                (folder / FOLDER_FILE).write_text(yaml.safe_dump(recording.SETTINGS), encoding="utf-8")
            truth = recorded_truth(path, with_steps=not without_steps)
            (folder / TRUTH).write_text(json.dumps(truth), encoding="utf-8")
        store.seal()
        store.set_meta("origin", "recorded")
        covered = bring_up_to_date(store, read_settings(os.environ, folder))
        if covered is None:
            raise click.ClickException(f"{path} holds nothing to account for.")
        open_names(store)
        groups = sums(store, TimeRange(covered.from_ms, covered.end_ms), ["outcome"], zone=UTC)
    counts = "".join(f", {count:,} {what}" for what, count in source.counts.items())
    whole_ms = sum(group.gpu_ms for group in groups)
    unit_ms = MS_PER_HOUR if whole_ms >= MS_PER_HOUR else MS_PER_MINUTE  # as `hours` has it
    by_outcome = ", ".join(f"{group.key[0] or 'free'} {group.gpu_ms / unit_ms:,.1f}" for group in groups)
    click.echo(f"{hours(whole_ms)} ({by_outcome}){counts}.")
    what, which = ("worth speedrun", "--target 3.28") if format_ == "speedrun" else ("why", "--all")
    click.echo(f"Now: pyrometer {what} --data {folder} {which}")


def _read_tracker(format_: str, place: str, folder: Path) -> None:
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
    click.echo(f"Now: pyrometer worth --data {folder}")


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
