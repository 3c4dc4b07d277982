"""Stamps as Weights & Biases takes them: the summary of a run, written by its own client.

Offline, another part of the run is written beside it, a folder as a resumed run has them, with a summary and nothing
else: `wandb sync` sends the parts of a run one after the other. The folder of the run itself is not touched. What was
stamped before is replaced, unless it was sent already. Online, the client's public API changes the summary of a run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.collect.source import SourceError, words
from pyrometer.collect.trackers.wandb import STAMPED, Folder, folders
from pyrometer.export.tracker_summary import GPU_HOURS, USD, Stamp


class Stamped(NamedTuple):
    """How many runs are stamped, and how many are not there."""

    written: int
    missing: int


def summary_of(stamp: Stamp) -> dict[str, Any]:
    """All of a stamp in one place; the last point of a curve is what it cost."""
    last = stamp.curve[-1] if stamp.curve else None
    cost = {GPU_HOURS: last.gpu_hours, USD: last.usd} if last else {}
    known = {name: value for name, value in cost.items() if value is not None}
    return {**stamp.tags, **stamp.figures, **known, **stamp.whole, STAMPED: stamp.at_ms}


def stamp_online(stamps: Mapping[str, Stamp]) -> Stamped:
    """Stamps runs on W&B's server, with the key and the address that its client knows."""
    wandb = _client()
    try:
        api = wandb.Api()
    except (wandb.Error, ValueError) as error:
        raise SourceError(f"W&B does not let its client in: {words(error)[:300]}") from None
    missing = 0
    for run_id, found in stamps.items():
        summary = summary_of(found)
        try:
            told = api.run(run_id).summary
            if any(told.get(name) != value for name, value in summary.items()):
                told.update(summary)
        except (wandb.Error, ValueError):  # offline, deleted, or another server's
            missing += 1
    return Stamped(len(stamps) - missing, missing)


def stamp(path: Path, stamps: Mapping[str, Stamp]) -> Stamped:
    """Stamps the runs of a folder `wandb`, by their ids."""
    runs: dict[str, Folder] = {}
    before: dict[str, list[Folder]] = {}
    for place in folders(path):
        folder = Folder(place)
        if folder.read():
            runs[folder.id] = folder
        elif folder.is_stamp:
            before.setdefault(folder.id, []).append(folder)
    here = {run_id: found for run_id, found in stamps.items() if run_id in runs}
    for run_id, found in here.items():
        summary, old = summary_of(found), before.get(run_id, [])
        if any({name: part.summary.get(name) for name in summary} == summary for part in old):
            continue
        _write(runs[run_id], summary)
        for part in old:
            if not any(part.path.glob("*.synced")):
                shutil.rmtree(part.path)
    return Stamped(len(here), len(stamps) - len(here))


def _write(beside: Folder, summary: Mapping[str, Any]) -> None:
    """Made elsewhere, and moved when it is whole: the client would point `latest-run` at it."""
    wandb = _client()
    told = beside.run
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
    )
    with tempfile.TemporaryDirectory(dir=beside.path.parent, prefix=".pyrometer-") as making:
        run = wandb.init(
            id=told.run_id,
            project=told.project or None,
            entity=told.entity or None,
            resume="allow",
            mode="offline",
            dir=making,
            reinit="create_new",
            settings=settings,
        )
        made = Path(run.settings.sync_dir)
        run.summary.update(dict(summary))
        run.finish()
        made.rename(beside.path.parent / made.name)


def _client() -> Any:
    try:
        import wandb
    except ImportError:
        raise SourceError("W&B's runs are stamped by its own client: pip install 'pyrometer[wandb]'") from None
    return wandb
