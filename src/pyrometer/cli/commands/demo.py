"""`pyrometer demo`: a simulated night, from records to the report."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.score import truth_window
from pyrometer.answers.why import why
from pyrometer.cli.command_support import WAIT_FOR_FOLDER_S, bring_up_to_date
from pyrometer.cli.commands.serve import run_server
from pyrometer.cli.commands.simulate import make_night
from pyrometer.cli.settings_files import read_settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.render.why_html import render_html
from pyrometer.render.why_text import plain, render_text
from pyrometer.serve.main import Services, SourceOptions
from pyrometer.simulate.replay import replay
from pyrometer.store import Store, files

SEED = 38  # a night with many problems
LIVE_SPEED = 600
REPLAY_EVERY_MS = 5 * MS_PER_MINUTE  # simulated time per update
LOOPBACK, PORT = "127.0.0.1", 8411


@click.command()
@click.option(
    "--out",
    "folder",
    metavar="DIR",
    default="pyrometer-demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The data folder to create.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=SEED, show_default=True, help="Each seed makes a different night."
)
@click.option("--no-serve", is_flag=True, help="Print the answer, write the report, and exit.")
@click.option("--live", is_flag=True, help=f"Replay the night at {LIVE_SPEED} times real speed.")
def command(folder: Path, seed: int, no_serve: bool, live: bool) -> None:
    """Simulates a night on 304 GPUs, shows what was wasted and why, and writes the HTML report. On a terminal it then
    serves the page on this machine until Ctrl-C."""
    truth = make_night(folder, "overnight", seed, None, None)
    click.echo("Simulated a night on 304 GPUs. Everything below is computed from its records alone.")
    window = truth_window(truth)
    serve = sys.stdout.isatty() and not no_serve
    if live:
        _live(folder, window, serve)
        return
    answer = _answer(folder, window)
    report = folder / "why.html"
    files.write_text(report, render_html(answer))
    click.echo()
    click.echo(render_text(answer, click.style if sys.stdout.isatty() else plain), nl=False)
    click.echo(f"HTML report: {report}")
    click.echo(f"Next: pyrometer cost --data {folder} --by team,experiment, or pyrometer score {folder}")
    if serve:
        with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
            run_server(store, LOOPBACK, _port(), SourceOptions())


def _answer(folder: Path, window: TimeRange) -> dict[str, Any]:
    settings = read_settings(os.environ, folder)
    with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
        bring_up_to_date(store, settings, now_ms=window.to_ms)
        return why(store, window, settings, zone=UTC)


def _port() -> int:
    """The default port, or any free port if it is taken."""
    with socket.socket() as tried:
        try:
            tried.bind((LOOPBACK, PORT))
        except OSError:
            click.echo(f"Port {PORT} is in use. Using another port.")
            return 0
    return PORT


# -- live ---------------------------------------------------------------------------------------------------------


def _live(folder: Path, window: TimeRange, serve: bool) -> None:
    """Replays the night: records arrive, the ledger grows, and the page or the printed report follows."""
    settings = read_settings(os.environ, folder)
    with tempfile.TemporaryDirectory() as scratch, Store(folder) as night, Store(Path(scratch), create=True) as store:
        store.set_meta("origin", "simulated")
        night_replay = NightReplay(night, store, window)
        if serve:
            run_server(store, LOOPBACK, _port(), SourceOptions(), alongside=night_replay.into)
            return
        while night_replay.is_running():
            time.sleep(night_replay.pause_s())
            now_ms = night_replay.step()
            bring_up_to_date(store, settings, now_ms=now_ms)
            store.seal(before_ms=now_ms - MS_PER_HOUR)
            answer = why(store, TimeRange(window.from_ms, now_ms - now_ms % MS_PER_MINUTE), settings, zone=UTC)
            _redraw(render_text(answer, click.style if sys.stdout.isatty() else plain))
    files.write_text(folder / "why.html", render_html(answer))
    click.echo(f"HTML report: {folder / 'why.html'}")


class NightReplay:
    """A replay of a night, faster than real time."""

    def __init__(self, night: Store, store: Store, window: TimeRange) -> None:
        self.night, self.store, self.window = night, store, window
        self._began_s = time.monotonic()
        self._replayed_ms = window.from_ms - 1

    def is_running(self) -> bool:
        """Whether records are left to replay."""
        return self._replayed_ms < self.window.to_ms

    def pause_s(self) -> float:
        """How long to wait for the next update."""
        pause_ms = REPLAY_EVERY_MS - (self._now_ms() - self._replayed_ms)
        return 0.0 if self._now_ms() >= self.window.to_ms else max(pause_ms / 1000 / LIVE_SPEED, 0.0)

    def step(self) -> int:
        """Stores what has happened since the last update, and returns the simulated time."""
        now_ms = self._now_ms()
        replay(self.night, self.store, self._replayed_ms, now_ms)
        self._replayed_ms = now_ms
        return now_ms

    async def into(self, services: Services) -> None:
        """Replays everything into the store of a server, whose page follows."""
        while self.is_running():
            await asyncio.sleep(self.pause_s())
            async with services.core.lock:
                await asyncio.to_thread(self.step)
            await services.accounting.update()

    def _now_ms(self) -> int:
        passed_ms = round((time.monotonic() - self._began_s) * 1000 * LIVE_SPEED)
        return min(self.window.from_ms + passed_ms, self.window.to_ms)


def _redraw(text: str) -> None:
    if sys.stdout.isatty():
        click.clear()
    click.echo(text)
