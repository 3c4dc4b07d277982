"""`pyrometer score`: compares the answer of `why` with the truth of a simulation or a recording."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pyrometer.answers.score import TruthError, ledger_cells, score, truth_window
from pyrometer.answers.why import why
from pyrometer.cli.command_support import WAIT_FOR_FOLDER_S, bring_up_to_date, print_json
from pyrometer.cli.progress_bar import waiting
from pyrometer.cli.settings_files import read_settings
from pyrometer.model.human import dollars, duration
from pyrometer.render.tables import print_table
from pyrometer.simulate.night import TRUTH
from pyrometer.store import Store

WIDTH = 80


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(folder: Path, output: str) -> None:
    """Compares the answer of `pyrometer why` about a simulated or recorded data folder with its truth.json: causes,
    culprits, states and dollars."""
    with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
        truth = _read_truth(folder)
        settings = read_settings(os.environ, folder)
        try:
            window = truth_window(truth)
            # A simulated night may be in the future: it ends when its truth says, whatever the clock shows.
            bring_up_to_date(store, settings, now_ms=max(window.to_ms, time.time_ns() // 1_000_000))
            with waiting("Querying the ledger"):
                answer = why(store, window, settings, zone=UTC)
                scored = score(truth, answer, ledger_cells(store, window))
        except TruthError as error:
            raise click.ClickException(f"{folder / TRUTH} cannot be used: {error}.") from None
    if output == "json":
        print_json(scored)
    else:
        _print(scored)


def _read_truth(folder: Path) -> dict[str, Any]:
    path = folder / TRUTH
    if not path.exists():
        raise click.ClickException(
            f"{folder} has no {TRUTH}: only folders made by `simulate` or `import recording` can be scored."
        )
    try:
        truth = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{path} is not JSON: {error}.") from None
    if not isinstance(truth, dict):
        raise click.ClickException(f"{path} contains no truth: it is not a JSON object.")
    return truth


def _print(scored: dict[str, Any]) -> None:
    words = [
        scored["scenario"],
        scored["seed"] is not None and f"seed {scored['seed']}",
        f"evidence: {scored['evidence']}",
    ]
    about = ", ".join(word for word in words if word)
    click.echo(click.style(f"{scored['origin'].capitalize()}: {about}", bold=True))
    right = [f"{name} {_percent(scored[name])}" for name in ("precision", "recall", "culprit")]
    click.echo(f"findings: {', '.join(right)}")
    click.echo(f"error: states {_percent(scored['state_error'])}, dollars {_percent(scored['usd_error'])}")
    if scored["detect_s_p90"] is not None:
        within = duration(round(1000 * scored["detect_s_p90"]))
        click.echo(f"time to detect, p90: {within}")
    if scored["causes"]:
        click.echo()
        rows = [[row["cause"], row["matched"], row["found"], row["planted"]] for row in scored["causes"]]
        print_table(["cause", "right", "found", "planted"], rows, figures=3)
    lines = [
        *(line for finding in scored["missed"] for line in _wrapped("missed  ", _missed(finding))),
        *(line for finding in scored["wrong"] for line in _wrapped("wrong   ", _named(finding))),
        *(line for finding in scored["wrong_culprit"] for line in _wrapped("culprit ", _accused(finding))),
    ]
    if lines:
        click.echo()
        click.echo("\n".join(lines))


def _missed(finding: dict[str, Any]) -> str:
    near = f"; found, but only {_percent(finding['overlap'])} of the time overlaps" if finding["overlap"] else ""
    return _named(finding) + near


def _accused(finding: dict[str, Any]) -> str:
    return f"{_named(finding)}; found: {_culprit(finding['found'])}"


def _named(finding: dict[str, Any]) -> str:
    workload = finding["workload"]
    of_whom = f" of {workload['namespace']}/{workload['name']}" if workload else ""
    from_time, to_time = (datetime.fromisoformat(finding[edge]).astimezone(UTC) for edge in ("from", "to"))
    times = f"{from_time:%a %H:%M:%S} – {to_time:%H:%M:%S}"
    cost = "" if finding["usd_micro"] is None else f", {dollars(finding['usd_micro'])}"
    return f"{finding['cause']}{of_whom}, {times}{cost}, {_culprit(finding['culprit'])}"


def _culprit(culprit: dict[str, Any] | None) -> str:
    if not culprit:
        return "no culprit"
    return ", ".join(f"{name} {value}" for name, value in culprit.items())


def _wrapped(first: str, text: str) -> Iterator[str]:
    return iter(textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"
