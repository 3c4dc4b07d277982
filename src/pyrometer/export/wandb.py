"""Writes run summaries to Weights & Biases with its own client.

Offline, a second folder of the run is written next to it, like that of a resumed run, with a summary only. `wandb sync`
uploads the folders of a run one after the other. The folder of the run itself is not changed. An earlier summary is
replaced unless it was uploaded. Online, the public API of the client changes the summary of the run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.collect.source import SourceError, error_text
from pyrometer.collect.trackers.wandb import STAMPED, Folder, folders
from pyrometer.export.tracker_summary import GPU_HOURS, USD, RunSummary


class WriteResult(NamedTuple):
    """The number of runs with a summary, and of runs that were not found."""

    written: int
    missing: int


def wandb_summary(summary: RunSummary) -> dict[str, Any]:
    """Tags and metrics in one dictionary, with the cost at the last point of the curve."""
    last = summary.cost_curve[-1] if summary.cost_curve else None
    cost = {GPU_HOURS: last.gpu_hours, USD: last.usd} if last else {}
    known = {name: value for name, value in cost.items() if value is not None}
    return {**summary.tags, **summary.metrics, **known, **summary.totals, STAMPED: summary.at_ms}


def write_summaries_online(summaries: Mapping[str, RunSummary]) -> WriteResult:
    """Writes summaries to the W&B server, with the API key and address that its client has."""
    wandb = _client()
    try:
        api = wandb.Api()
    except (wandb.Error, ValueError) as error:
        raise SourceError(f"W&B does not let its client in: {error_text(error)[:300]}") from None
    missing = 0
    for run_id, run_summary in summaries.items():
        values = wandb_summary(run_summary)
        try:
            stored = api.run(run_id).summary
            if any(stored.get(name) != value for name, value in values.items()):
                stored.update(values)
        except (wandb.Error, ValueError):  # an offline run, a deleted run, or a run of another server
            missing += 1
    return WriteResult(len(summaries) - missing, missing)


def write_summaries(path: Path, summaries: Mapping[str, RunSummary]) -> WriteResult:
    """Writes summaries next to the runs in a folder `wandb`. Keys are run IDs."""
    runs: dict[str, Folder] = {}
    before: dict[str, list[Folder]] = {}
    for place in folders(path):
        folder = Folder(place)
        if folder.read():
            runs[folder.id] = folder
        elif folder.is_stamp:
            before.setdefault(folder.id, []).append(folder)
    here = {run_id: one for run_id, one in summaries.items() if run_id in runs}
    for run_id, run_summary in here.items():
        values, old = wandb_summary(run_summary), before.get(run_id, [])
        if any({name: part.summary.get(name) for name in values} == values for part in old):
            continue
        _write(runs[run_id], values)
        for part in old:
            if not any(part.path.glob("*.synced")):
                shutil.rmtree(part.path)
    return WriteResult(len(here), len(summaries) - len(here))


def _write(folder: Folder, values: Mapping[str, Any]) -> None:
    """Writes the summary in a temporary folder and moves it, because the client would point `latest-run` at it."""
    wandb = _client()
    recorded = folder.run
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
    with tempfile.TemporaryDirectory(dir=folder.path.parent, prefix=".pyrometer-") as making:
        run = wandb.init(
            id=recorded.run_id,
            project=recorded.project or None,
            entity=recorded.entity or None,
            resume="allow",
            mode="offline",
            dir=making,
            reinit="create_new",
            settings=settings,
        )
        made = Path(run.settings.sync_dir)
        run.summary.update(dict(values))
        run.finish()
        made.rename(folder.path.parent / made.name)


def _client() -> Any:
    try:
        import wandb
    except ImportError:
        raise SourceError("Summaries in W&B need its client: pip install 'pyrometer[wandb]'") from None
    return wandb
