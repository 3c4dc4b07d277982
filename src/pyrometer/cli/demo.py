"""`pyrometer demo`: the main job on a simulated night, from records to the report."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from pyrometer.account.sums import Window
from pyrometer.cli.running import WAIT_FOR_FOLDER_S, bring_up_to_date
from pyrometer.cli.settings import read_settings
from pyrometer.cli.simulate import make_night
from pyrometer.explain.html import render_html
from pyrometer.explain.score import truth_window
from pyrometer.explain.text import plain, render_text
from pyrometer.explain.why import why
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.serve.report import PORT, report_server
from pyrometer.simulate.replay import replay
from pyrometer.store import Store, files

SEED = 38  # a night in which much goes wrong
LIVE_SPEED = 600
REFRESH_S = 2


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
    then serves the report to this machine until Ctrl-C."""
    truth = make_night(folder, "overnight", seed, None, None)
    click.echo("Simulated a night on 304 GPUs. What follows is computed from its records alone.")
    window = truth_window(truth)
    serve = sys.stdout.isatty() and not no_serve
    if live:
        _live(folder, window, serve)
        return
    answer = _answer(folder, window)
    report, page = folder / "why.html", render_html(answer)
    files.write_text(report, page)
    click.echo()
    click.echo(render_text(answer, click.style if sys.stdout.isatty() else plain), nl=False)
    click.echo(f"The same as a page: {report}")
    click.echo(f"Go on: pyrometer cost --data {folder} --by team,experiment, or: pyrometer score {folder}")
    if serve:
        _serve(page)


def _answer(folder: Path, window: Window) -> dict[str, Any]:
    settings = read_settings(os.environ, folder)
    with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
        bring_up_to_date(store, settings, now_ms=window.to_ms)
        return why(store, window, settings, zone=UTC)


def _serve(page: str) -> None:
    server = report_server(lambda: page)
    with server, suppress(KeyboardInterrupt):
        _say_where(server.server_address[1])
        server.serve_forever()


def _say_where(port: object) -> None:
    note = "" if port == PORT else f" ({PORT} is taken)"
    click.echo(f"Served at http://127.0.0.1:{port}/ until Ctrl-C{note}.")


# -- live ---------------------------------------------------------------------------------------------------------


def _live(folder: Path, window: Window, serve: bool) -> None:
    """The night as it happens: records arrive, the ledger grows, the report changes."""
    settings = read_settings(os.environ, folder)
    page = ["<p>The night begins.</p>"]
    server = report_server(lambda: page[0]) if serve else None
    if server is not None:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _say_where(server.server_address[1])
    with tempfile.TemporaryDirectory() as scratch, Store(folder) as night, Store(Path(scratch), create=True) as store:
        store.set_meta("origin", "simulated")
        began_s, told_ms = time.monotonic(), window.from_ms - 1
        while told_ms < window.to_ms:
            now_ms = min(window.from_ms + round((time.monotonic() - began_s) * 1000 * LIVE_SPEED), window.to_ms)
            if now_ms - told_ms < 5 * MS_PER_MINUTE and now_ms < window.to_ms:
                time.sleep((5 * MS_PER_MINUTE - (now_ms - told_ms)) / 1000 / LIVE_SPEED)
                continue
            replay(night, store, told_ms, now_ms)
            told_ms = now_ms
            bring_up_to_date(store, settings, now_ms=now_ms)
            store.seal(before_ms=now_ms - 60 * MS_PER_MINUTE)
            answer = why(store, Window(window.from_ms, now_ms - now_ms % MS_PER_MINUTE), settings, zone=UTC)
            page[0] = render_html(answer).replace(
                "<head>", f'<head><meta http-equiv="refresh" content="{REFRESH_S}">', 1
            )
            _redraw(render_text(answer, click.style if sys.stdout.isatty() else plain))
        page[0] = render_html(answer)
    files.write_text(folder / "why.html", page[0])
    click.echo(f"The same as a page: {folder / 'why.html'}")
    if server is not None:
        with suppress(KeyboardInterrupt):
            click.echo("Ctrl-C ends it.")
            threading.Event().wait()


def _redraw(text: str) -> None:
    if sys.stdout.isatty():
        click.clear()
    click.echo(text)
