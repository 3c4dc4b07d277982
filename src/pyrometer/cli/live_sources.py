"""Answers before anything is installed: reads a Prometheus or a cluster into a folder, and queries that."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.time_range import time_range_of, zone_of
from pyrometer.cli.command_support import ReadRequest, answer_from
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.cli.settings_files import read_settings
from pyrometer.collect.kubernetes.api import connect
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.questions.parameters import DEFAULT_LAST
from pyrometer.questions.registry import question
from pyrometer.serve.ingest.backfill import Backfill
from pyrometer.store import Store


def read_and_answer(
    request: ReadRequest, what: str, *, prometheus: str | None, kube: bool, context: str | None
) -> dict[str, Any]:
    """The answer from the history of a Prometheus and the objects of a cluster. The data is kept only with --data."""
    if request.lake is not None:
        raise click.UsageError("--lake cannot be combined with --kube or --prometheus.")
    if request.server is not None:
        raise click.UsageError("--server cannot be combined with --kube or --prometheus.")
    with ExitStack() as stack:
        folder = request.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyrometer-")))
        settings = read_settings(os.environ, folder)
        query = question(what, request.parameters, settings)
        now_ms = time.time_ns() // 1_000_000 // MS_PER_MINUTE * MS_PER_MINUTE
        from_ms, to_ms = _window(request, what, settings, now_ms)
        with Store(folder, create=True) as store:
            asyncio.run(_read(Backfill(store, settings, from_ms, to_ms), settings, prometheus, kube, context))
            return answer_from(store, settings, query, f"{prometheus or 'The cluster'}")


async def _read(history: Backfill, settings: Settings, prometheus: str | None, kube: bool, context: str | None) -> None:
    remembers = Prometheus(prometheus, settings) if prometheus else None
    api = connect(context) if kube else None
    try:
        with progress_bar("Reading") as progress:
            await history.read(remembers, api, progress)
    finally:
        for connection in (remembers, api):
            if connection is not None:
                await connection.close()


def _window(request: ReadRequest, what: str, settings: Settings, now_ms: int) -> tuple[int, int]:
    """The time range to read, at most up to now."""
    parameters = request.parameters
    zone = zone_of(parameters.get("tz") or settings.timezone)
    if parameters.get("all"):
        raise click.UsageError("--all could be years of a Prometheus: pass --last or --since.")
    window = time_range_of(
        parameters.get("last"),
        parameters.get("since"),
        parameters.get("until"),
        parameters.get("month"),
        False,
        zone,
        DEFAULT_LAST[what],
    )(LedgerCoverage(now_ms - 12 * MS_PER_HOUR, now_ms, 0))
    if window.from_ms >= now_ms:
        raise click.UsageError("The time range is in the future.")
    return window.from_ms, min(window.to_ms, now_ms)
