"""`pyrometer demo`: the main job on a simulated night, from records to the report."""

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

from pyrometer.account.time_range import TimeRange
from pyrometer.cli.running import WAIT_FOR_FOLDER_S, bring_up_to_date
from pyrometer.cli.serve import run_server
from pyrometer.cli.settings import read_settings
from pyrometer.cli.simulate import make_night
from pyrometer.explain.html import render_html
from pyrometer.explain.score import truth_window
from pyrometer.explain.text import plain, render_text
from pyrometer.explain.why import why
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve.main import Services, SourceOptions
from pyrometer.simulate.replay import replay
from pyrometer.store import Store, files

SEED = 38  # a night in which much goes wrong
LIVE_SPEED = 600
TOLD_EVERY_MS = 5 * MS_PER_MINUTE  # of the night
LOOPBACK, PORT = "127.0.0.1", 8411


@click.command()
@click.option(
    "--out", "folder", metavar="DIR", default="pyrometer-demo", show_default=True,
    type=click.Path(path_type=Path), help="The data folder to make.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True, help="Another seed is another night.")
@click.option("--no-serve", is_flag=True, help="Print, write the report, and exit.")
@click.option("--live", is_flag=True, help=f"Replay the night {LIVE_SPEED} times as fast as it happened.")
def command(folder: Path, seed: int, no_serve: bool, live: bool) -> None:
    """Simulates a night on 304 GPUs, accounts for it, says what burned and why, and writes the report; on a terminal it
    then serves the page to this machine until Ctrl-C."""
    truth = make_night(folder, "overnight", seed, None, None)
    click.echo("Simulated a night on 304 GPUs. What follows is computed from its records alone.")
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
    click.echo(f"The same as a page: {report}")
    click.echo(f"Go on: pyrometer cost --data {folder} --by team,experiment, or: pyrometer score {folder}")
    if serve:
        with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
            run_server(store, LOOPBACK, _port(), SourceOptions())


def _answer(folder: Path, window: TimeRange) -> dict[str, Any]:
    settings = read_settings(os.environ, folder)
    with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
        bring_up_to_date(store, settings, now_ms=window.to_ms)
        return why(store, window, settings, zone=UTC)


def _port() -> int:
    """The usual one, or any when that is taken."""
    with socket.socket() as tried:
        try:
            tried.bind((LOOPBACK, PORT))
        except OSError:
            click.echo(f"Port {PORT} is taken, so another one is used.")
            return 0
    return PORT


# -- live ---------------------------------------------------------------------------------------------------------


def _live(folder: Path, window: TimeRange, serve: bool) -> None:
    """The night as it happens: records arrive, the ledger grows; the page, or else the report, changes."""
    settings = read_settings(os.environ, folder)
    with tempfile.TemporaryDirectory() as scratch, Store(folder) as night, Store(Path(scratch), create=True) as store:
        store.set_meta("origin", "simulated")
        replayed = NightReplay(night, store, window)
        if serve:
            run_server(store, LOOPBACK, _port(), SourceOptions(), alongside=replayed.into)
            return
        while replayed.goes_on():
            time.sleep(replayed.early_s())
            now_ms = replayed.step()
            bring_up_to_date(store, settings, now_ms=now_ms)
            store.seal(before_ms=now_ms - MS_PER_HOUR)
            answer = why(store, TimeRange(window.from_ms, now_ms - now_ms % MS_PER_MINUTE), settings, zone=UTC)
            _redraw(render_text(answer, click.style if sys.stdout.isatty() else plain))
    files.write_text(folder / "why.html", render_html(answer))
    click.echo(f"The same as a page: {folder / 'why.html'}")


class NightReplay:
    """A night once more, some hundred times as fast as it happened."""

    def __init__(self, night: Store, store: Store, window: TimeRange) -> None:
        self.night, self.store, self.window = night, store, window
        self._began_s = time.monotonic()
        self._told_ms = window.from_ms - 1

    def goes_on(self) -> bool:
        """Whether there is more to come."""
        return self._told_ms < self.window.to_ms

    def early_s(self) -> float:
        """How long until enough has happened to tell."""
        early_ms = TOLD_EVERY_MS - (self._now_ms() - self._told_ms)
        return 0.0 if self._now_ms() >= self.window.to_ms else max(early_ms / 1000 / LIVE_SPEED, 0.0)

    def step(self) -> int:
        """Hands over what has happened since, and says until when."""
        now_ms = self._now_ms()
        replay(self.night, self.store, self._told_ms, now_ms)
        self._told_ms = now_ms
        return now_ms

    async def into(self, services: Services) -> None:
        """All of it into the store of a server, which tells those who look at its page."""
        while self.goes_on():
            await asyncio.sleep(self.early_s())
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
