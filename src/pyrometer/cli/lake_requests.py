"""Questions to a lake, and `pyrometer export lake`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyrometer.cli.settings_files import read_settings
from pyrometer.model.human import counted
from pyrometer.model.settings import Settings, with_values

if TYPE_CHECKING:
    from pyrometer.cli.command_support import LakeRequest, ReadRequest


def ask_lake(request: LakeRequest, what: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The answer of a lake to a question."""
    from pyrometer.cli.progress_bar import progress_bar
    from pyrometer.questions.lake import Lake, answer_of_lake
    from pyrometer.store.engines import engine_of
    from pyrometer.store.lake import LakeStorage

    own = read_settings(os.environ)
    lake = Lake(LakeStorage(request.url), request.clusters, cache_folder(own), own.lake_cache_mib, _settings)
    with progress_bar("Reading") as progress:
        return answer_of_lake(lake, what, parameters, engine_of(request.engine, request.address), progress)


def _settings(recorded: Mapping[str, Any]) -> Settings:
    """The settings that the server of a cluster recorded in the lake, overridden by those of this environment."""
    known = {name: value for name, value in recorded.items() if name in Settings._fields}
    return read_settings(os.environ, defaults=with_values(Settings(), known, "The manifest of a lake"))


def cache_folder(settings: Settings) -> str:
    """The folder where files of buckets are cached."""
    if settings.lake_cache:
        return settings.lake_cache
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return str(Path(caches) / "pyrometer" / "lake")


def print_known(answer: Mapping[str, Any]) -> None:
    """Prints on stderr which clusters of a lake end before the time range of the answer."""
    if "window" not in answer:
        return
    for one in answer.get("clusters", ()):
        if _moment(one["to"]) < _moment(answer["window"]["to"]):
            click.echo(f"The lake has no data of {one['cluster']} after {one['to']}.", err=True)


def _moment(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def copy_folder(request: ReadRequest, url: str | None) -> None:
    """Copies a data folder into a lake once. A server does it continuously."""
    from pyrometer.account.query.lake_manifest import ensure_lake_source, manifest_header
    from pyrometer.cli.command_support import bring_up_to_date, data_folder, open_store
    from pyrometer.store.lake import LakeStorage
    from pyrometer.store.lake.lake_copier import LakeCopier

    if request.server is not None or request.lake is not None:
        raise click.UsageError("A lake is copied from a data folder: pass --data DIR. A server copies its own folder.")
    if request.parameters:
        raise click.UsageError(f"A whole folder is copied into a lake: drop --{min(request.parameters)}.")
    if len(request.clusters) > 1:
        raise click.UsageError("--cluster is the name of this cluster in the lake: pass it once.")
    folder = data_folder(request.data)
    settings = read_settings(os.environ, folder)
    settings = settings._replace(cluster=request.clusters[0]) if request.clusters else settings
    place = url or settings.lake
    if not place:
        raise click.UsageError("No lake: pass --out URL (a folder or s3://BUCKET/PREFIX), or set `lake`.")
    copier = LakeCopier(LakeStorage(place))
    now_ms = time.time_ns() // 1_000_000
    with open_store(folder) as store:
        covered = bring_up_to_date(store, settings)
        if covered is None:
            raise click.ClickException(f"{folder} contains nothing to account for yet.")
        ensure_lake_source(store)
        manifest = manifest_header(store, settings, covered)
        copied = copier.copy(store, manifest, now_ms=now_ms)
    removed = f", {counted(copied.removed, 'file')} removed" if copied.removed else ""
    size = f"{copied.bytes / 1e6:,.1f} MB"
    click.echo(f"{counted(copied.files, 'file')} copied, {size}{removed}: {manifest.cluster} in {copier.storage.url}")
