"""Commands that read a lake, and the one that copies a data folder into one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyrometer.cli.settings import read_settings
from pyrometer.explain.words import counted
from pyrometer.model.settings import Settings, with_values

if TYPE_CHECKING:
    from pyrometer.cli.running import LakeOptions, ReadRequest


def ask_lake(asked: LakeOptions, what: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The answer of a lake."""
    from pyrometer.cli.progress import progress_bar
    from pyrometer.serve.lakes import Lake, answer_of_lake
    from pyrometer.store.engines import engine_of
    from pyrometer.store.lake import LakeStorage

    own = read_settings(os.environ)
    lake = Lake(LakeStorage(asked.url), asked.clusters, cache_folder(own), own.lake_cache_mib, _settings)
    with progress_bar("Reading") as progress:
        return answer_of_lake(lake, what, parameters, engine_of(asked.engine, asked.address), progress)


def _settings(told: Mapping[str, Any]) -> Settings:
    """As the cluster's server had them, unless whoever asks says otherwise."""
    known = {name: value for name, value in told.items() if name in Settings._fields}
    return read_settings(os.environ, defaults=with_values(Settings(), known, "The manifest of a lake"))


def cache_folder(settings: Settings) -> str:
    """Where files of buckets are kept."""
    if settings.lake_cache:
        return settings.lake_cache
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return str(Path(caches) / "pyrometer" / "lake")


def print_known(answer: Mapping[str, Any]) -> None:
    """Of a lake: which cluster is not known to the end of the answer, on stderr."""
    if "window" not in answer:
        return
    for one in answer.get("clusters", ()):
        if _moment(one["to"]) < _moment(answer["window"]["to"]):
            click.echo(f"Of {one['cluster']} the lake knows nothing after {one['to']}.", err=True)


def _moment(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def copy_folder(asked: ReadRequest, url: str | None) -> None:
    """`pyrometer export lake`: what a server does by itself, once."""
    from pyrometer.account.lake_manifest import ensure_lake_source, manifest_header
    from pyrometer.cli.running import bring_up_to_date, data_folder, open_store
    from pyrometer.store.lake import LakeStorage
    from pyrometer.store.lake.copying import LakeCopier

    if asked.server is not None or asked.lake is not None:
        raise click.UsageError("A lake is copied from a data folder: say --data DIR. A server does it by itself.")
    if asked.parameters:
        raise click.UsageError(f"All of a folder is copied into a lake: leave out --{min(asked.parameters)}.")
    if len(asked.clusters) > 1:
        raise click.UsageError("--cluster says what the folder's cluster is called in the lake: say it once.")
    folder = data_folder(asked.data)
    settings = read_settings(os.environ, folder)
    settings = settings._replace(cluster=asked.clusters[0]) if asked.clusters else settings
    place = url or settings.lake
    if not place:
        raise click.UsageError("Which lake? Say --out URL, a folder or s3://BUCKET/PREFIX, or set `lake`.")
    copier = LakeCopier(LakeStorage(place))
    now_ms = time.time_ns() // 1_000_000
    with open_store(folder) as store:
        covered = bring_up_to_date(store, settings)
        if covered is None:
            raise click.ClickException(f"{folder} holds nothing to account for yet.")
        ensure_lake_source(store)
        told = manifest_header(store, settings, covered)
        copied = copier.copy(store, told, now_ms=now_ms)
    removed = f", {counted(copied.removed, 'file')} removed" if copied.removed else ""
    size = f"{copied.bytes / 1e6:,.1f} MB"
    click.echo(f"{counted(copied.files, 'file')} copied, {size}{removed}: {told.cluster} in {copier.storage.url}")
