"""A pipeline run or a sweep for the terminal: a table of its steps or trials with their cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from pyrometer.model.human import counted, date_time, dollars, duration, ratio, wrapped
from pyrometer.render.gantt import terminal_width
from pyrometer.render.tables import print_table
from pyrometer.render.why_text import Style

BAR = 24  # columns of the time axis
FRONT = "★"  # marks trials on the Pareto front
MAX_PARAMETERS = 4


def print_pipeline(answer: dict[str, Any], style: Style) -> None:
    """Prints a pipeline run: its steps in the order in which they started."""
    run = answer["pipeline"]
    click.echo(style(f"{run['name']}: {run['state']}", bold=True))
    click.echo(_cost(run["total"]))
    _echo(f"run of pipeline {run['pipeline']} in {run['namespace']}{_when(run)}, ID {run['id']}")
    click.echo("")
    from_ms, to_ms = _axis(run["steps"])
    rows = []
    for step in run["steps"]:
        rows.append(_step(step, step["step"] or "(no step)", from_ms, to_ms))
        for each in step["attempts"] if len(step["attempts"]) > 1 else ():
            rows.append(_step(each, f"  attempt {each['attempt']}", from_ms, to_ms))
    headings = ["step", "state", "started", "", "duration", "GPU-hours", "cost", "wasted", "goodput"]
    print_table(headings, rows, figures=5, spare=("goodput", "started", "GPU-hours", ""))
    for step in run["steps"]:
        for each in step["attempts"]:
            if each["message"] and each["state"] in ("failed", "retried"):
                click.echo(f"\n  {step['step']}, attempt {each['attempt']}: {each['message'].splitlines()[0]}")
    for finding in answer["findings"]:
        where = f" (step {finding['step']})" if finding["step"] else ""
        click.echo(f"\n  {dollars(finding['usd_micro'])}  {finding['title']}{where}.")


def _echo(text: str) -> None:
    """Prints a sentence, wrapped to the width of a terminal."""
    click.echo("\n".join(wrapped(text, terminal_width())) if sys.stdout.isatty() else text)


def print_sweep(answer: dict[str, Any], style: Style) -> None:
    """Prints a sweep: the winning trial first, then the others, most expensive first."""
    sweep = answer["sweep"]
    click.echo(style(f"{sweep['name']}: {sweep['state']}", bold=True))
    click.echo(_cost(sweep["total"]))
    better = {"min": ", lower is better", "max": ", higher is better", None: ""}[sweep["goal"]]
    by = f", by {sweep['algorithm']}" if sweep["algorithm"] else ""
    _echo(f"sweep of {counted(len(sweep['trials']), 'trial')} in {sweep['namespace']}{_when(sweep)}{by}")
    click.echo("")
    names = list(dict.fromkeys(name for row in sweep["trials"] for name in row["parameters"]))[:MAX_PARAMETERS]
    print_table(
        ["", "trial", "state", *names, sweep["metric"] or "value", "GPU-hours", "cost", "wasted", "goodput"],
        [
            [
                FRONT if row["pareto"] else "",
                row["trial"] + (" won" if row["best"] else ""),
                row["state"].replace("_", " "),
                *(_short(row["parameters"].get(name)) for name in names),
                None if row["value"] is None else f"{row['value']:.4g}",
                *_figures(row),
            ]
            for row in sweep["trials"]
        ],
        figures=5 + len(names),
        spare=("goodput", "GPU-hours", "wasted"),
    )
    click.echo("")
    if sweep["metric"]:
        target = "" if sweep["target"] is None else f"; target {sweep['target']:.4g}"
        click.echo(f"Metric: {sweep['metric']}{better}{target}.")
    for sentence in _sentences(sweep):
        click.echo(sentence)


def _sentences(sweep: dict[str, Any]) -> Iterator[str]:
    """The summary below the table of a sweep."""
    won, lost = sweep["best_usd_micro"], sweep["losers_usd_micro"]
    if sweep["best_trial"] and won is not None and lost is not None:
        yield f"{sweep['best_trial']} won and cost {dollars(won)}. The other trials cost {dollars(lost)}."
    if sweep["going_on_usd_micro"]:
        yield f"{dollars(sweep['going_on_usd_micro'])} spent on trials that are still running."
    if sweep["early_stopped"]:
        count = counted(sweep["early_stopped"], "trial")
        saved = sweep["early_stopped_saved_usd_micro"]
        rest = "" if saved is None else f", {dollars(saved)} less than at the cost of the median trial"
        yield f"{count} stopped early: {dollars(sweep['early_stopped_usd_micro'])}{rest}."


def _cost(total: dict[str, Any]) -> str:
    wasted = f", {dollars(total['wasted_usd_micro'])} wasted" if total["wasted_usd_micro"] else ""
    goodput = "" if total["goodput"] is None else f", {ratio(total['goodput'])} of the time training"
    return f"{dollars(total['usd_micro'])} for {total['gpu_hours']:,.2f} GPU-hours{wasted}{goodput}"


def _when(one: dict[str, Any]) -> str:
    if one["started"] is None:
        return ""
    from_, to = datetime.fromisoformat(one["started"]), one["ended"] and datetime.fromisoformat(one["ended"])
    if not to:
        return f", since {date_time(from_)}"
    took = duration(round((to - from_).total_seconds() * 1000))
    return f", {date_time(from_)} – {date_time(to)} ({took})"


def _axis(steps: Sequence[dict[str, Any]]) -> tuple[float, float]:
    starts = [_ms(step["started"]) for step in steps if step["started"]]
    ends = [_ms(step["ended"] or step["started"]) for step in steps if step["started"]]
    return min(starts, default=0.0), max(ends, default=1.0)


def _step(row: dict[str, Any], name: str, from_ms: float, to_ms: float) -> list[Any]:
    started = datetime.fromisoformat(row["started"]) if row["started"] else None
    return [
        name,
        row["state"],
        date_time(started) if started else None,
        _bar(row, from_ms, to_ms),
        None if row["duration_ms"] is None else duration(row["duration_ms"]),
        *_figures(row),
    ]


def _bar(row: dict[str, Any], from_ms: float, to_ms: float) -> str:
    """A bar from start to end on the time axis of the run. A step that is still running extends to the end."""
    if not row["started"]:
        return ""
    length_ms = max(to_ms - from_ms, 1.0)
    first = min(BAR - 1, int(BAR * (_ms(row["started"]) - from_ms) / length_ms))
    last = BAR if row["ended"] is None else max(first + 1, round(BAR * (_ms(row["ended"]) - from_ms) / length_ms))
    return " " * first + "█" * (last - first)


def _figures(row: dict[str, Any]) -> list[str | None]:
    if not row["gpu_ms"]:
        return [None] * 4
    goodput = None if row["goodput"] is None else ratio(row["goodput"])
    return [f"{row['gpu_hours']:,.2f}", dollars(row["usd_micro"]), dollars(row["wasted_usd_micro"]), goodput]


def _ms(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


def _short(value: str | None) -> str | None:
    return value if value is None or len(value) <= 12 else f"{value[:11]}…"
