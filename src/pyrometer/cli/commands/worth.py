"""`pyrometer worth`: the cost and results of experiments, or of the runs of one experiment."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click

from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.model.human import counted, date_time, dollars, duration, hours, ratio
from pyrometer.render.curves import glyphs_for
from pyrometer.render.gantt import terminal_width
from pyrometer.render.tables import print_table, sparkline
from pyrometer.render.why_text import plain
from pyrometer.render.worth_chart import AXES, NothingToDrawError, chart_lines

FRONT = "★"  # marks runs on the Pareto front


@click.command()
@click.argument("named", metavar="[EXPERIMENT]", required=False)
@click.option("--metric", metavar="NAME", help="The metric to compare. Default: an evaluation loss, else a loss.")
@click.option("--target", metavar="VALUE", help="Show what each run cost until the metric reached VALUE.")
@click.option("--by", type=click.Choice(AXES), help="X axis of the chart. Default: dollars.")
@read_options(default_last=None, formats=("table", "json", "chart"))
def command(request: ReadRequest, named: str | None, metric: str | None, target: str | None, by: str | None) -> None:
    """Lists experiments with their cost and best result, most expensive first. With EXPERIMENT, lists its runs: which
    are on the Pareto front (★), what reaching a target cost, and the gain from the last 10% of spend. `-o chart` draws
    the runs."""
    if by is not None and request.output != "chart":
        raise click.UsageError("--by needs -o chart.")
    if request.output == "chart" and named is None:
        raise click.UsageError(
            "A chart shows the runs of one experiment: pass its name. List experiments with `pyrometer worth`."
        )
    values = {"experiment": named, "metric": metric, "target": target}
    answer = request.answer("worth", **{name: value for name, value in values.items() if value is not None})
    if request.output == "json":
        print_json(answer)
    elif "rows" in answer:
        _print_experiments(answer)
    elif request.output == "chart":
        _print_chart(answer, by or "dollars")
    else:
        _print_runs(answer)


def _print_experiments(answer: dict[str, Any]) -> None:
    if not answer["rows"]:
        click.echo("No training runs in this time range. `pyrometer cost --by experiment` shows what held GPUs.")
        return
    print_table(
        [
            "experiment",
            "team",
            "last seen",
            "metric",
            "trend",
            "runs",
            "running",
            "GPU-hours",
            "cost",
            "goodput",
            "best",
            "latest",
        ],
        [
            [
                row["experiment"],
                _teams(row),
                date_time(datetime.fromisoformat(row["last_seen"])),
                _metric(row),
                sparkline(row["trend"]),
                f"{row['runs']:,}",
                f"{row['running']:,}",
                f"{row['gpu_hours']:,.1f}",
                _money(row["usd_micro"]),
                _percent(row["goodput"]),
                _value(row["best"]),
                _value(row["final"]),
            ]
            for row in answer["rows"]
        ],
        figures=7,
        spare=("running", "last seen", "team", "GPU-hours", "trend", "goodput"),
    )
    runs = sum(row["runs"] for row in answer["rows"])
    click.echo(f"\n{_spent(answer['total'])} spent on {counted(runs, 'run')} of {_experiments(answer)}.")


def _print_chart(answer: dict[str, Any], by: str) -> None:
    style = click.style if sys.stdout.isatty() else plain
    glyphs = glyphs_for(sys.stdout.encoding)
    try:
        click.echo("\n".join(chart_lines(answer, by, width=terminal_width(), glyphs=glyphs, style=style)))
    except NothingToDrawError as error:
        raise click.ClickException(str(error)) from None


def _print_runs(answer: dict[str, Any]) -> None:
    rows, target = answer["runs"], answer["target"]
    if not rows:
        click.echo(
            f"{answer['experiment']} has no training runs in this time range. It cost {_spent(answer['total'])}."
        )
        return
    compiled = any(row["compile_ms"] is not None for row in rows)
    print_table(
        [
            "",
            "run",
            "outcome",
            "started",
            "trend",
            "steps",
            "GPU-hours",
            "cost",
            "startup",
            *(["compile"] if compiled else []),
            "goodput",
            "best",
            "at step",
            "final",
            *(["to target"] if target is not None else []),
            "last 10%",
        ],
        [
            [
                FRONT if row["pareto"] else "",
                row["run"],
                row["outcome"],
                date_time(datetime.fromisoformat(row["started"])),
                sparkline(_evenly(row["curve"])),
                f"{row['steps']:,}",
                f"{row['gpu_hours']:,.2f}",
                _money(row["usd_micro"]),
                _startup(row),
                *([_compile(row)] if compiled else []),
                _percent(row["goodput"]),
                _value(row["best"]),
                None if row["best_step"] is None else f"{row['best_step']:,}",
                _value(row["final"]),
                *([_to_target(row)] if target is not None else []),
                _bought(row["marginal"]),
            ]
            for row in rows
        ],
        figures=9 + (target is not None) + compiled,
        spare=("compile", "startup", "steps", "GPU-hours", "started", "trend", "last 10%", "at step", "outcome"),
    )
    click.echo(f"\n{_metric_sentence(answer)}")
    click.echo(_sentence(answer))
    if answer["already_dominated_usd_micro"]:
        late = dollars(answer["already_dominated_usd_micro"])
        click.echo(f"{late} was spent after another run had already reached the same result for less.")


def _evenly(curve: list[list[Any]], width: int = 24) -> list[float]:
    """The values of a curve, evenly thinned to at most `width`."""
    if len(curve) <= width:
        return [point[2] for point in curve]
    return [curve[number * (len(curve) - 1) // (width - 1)][2] for number in range(width)]


def _metric_sentence(answer: dict[str, Any]) -> str:
    if answer["metric"] is None:
        return "No metric with a goal was reported, so the results of these runs are unknown."
    if answer["goal"] is None:
        return f"Metric: {answer['metric']}. It is not known whether higher or lower is better."
    guessed = " (guessed from its name)" if answer["goal_guessed"] else ""
    others = [one["name"] for one in answer["metrics"] if one["name"] != answer["metric"]]
    more = f" Other metrics (--metric): {', '.join(others[:6])}." if others else ""
    return f"Metric: {answer['metric']}, {'lower' if answer['goal'] == 'min' else 'higher'} is better{guessed}.{more}"


def _sentence(answer: dict[str, Any]) -> str:
    """The summary below the table."""
    judged = [row for row in answer["runs"] if row["best"] is not None]
    beaten = answer["dominated_runs"]
    spent = _spent(answer["total"])
    if len(judged) < 2:
        return f"{spent} in total. There is no other run to compare with."
    if not beaten:
        return f"{spent} in total. No run was outperformed by a cheaper one."
    if answer["dominated_usd_micro"] is None:
        return f"{beaten} of {counted(len(judged), 'run')} were outperformed by a cheaper run."
    wasted = dollars(answer["dominated_usd_micro"])
    return f"{wasted} of {dollars(answer['total']['usd_micro'])} went to runs that a cheaper run outperformed."


def _teams(row: dict[str, Any]) -> str | None:
    return f"{row['team']} +{len(row['teams']) - 1}" if len(row["teams"]) > 1 else row["team"]


def _metric(row: dict[str, Any]) -> str | None:
    if row["metric"] is None:
        return None
    arrow = {True: " improving", False: " flat", None: ""}[row["improving"]]
    return f"{row['metric']}{arrow}"


def _to_target(row: dict[str, Any]) -> str | None:
    if row["to_target_gpu_hours"] is None:
        return None
    micro = row["to_target_usd_micro"]
    return f"{row['to_target_gpu_hours']:,.2f} h" if micro is None else dollars(micro)


def _startup(row: dict[str, Any]) -> str:
    """What a run cost before its first step was done."""
    micro = row["startup_usd_micro"]
    return duration(row["startup_gpu_ms"]) if micro is None else dollars(micro)


def _compile(row: dict[str, Any]) -> str | None:
    return None if row["compile_ms"] is None else duration(row["compile_ms"])


def _bought(marginal: dict[str, Any] | None) -> str | None:
    """The share of the whole gain of a run that its last 10% of spend bought."""
    if marginal is None or marginal["share_of_all_gain"] is None:
        return None
    return ratio(marginal["share_of_all_gain"])


def _spent(total: dict[str, Any]) -> str:
    return hours(total["gpu_ms"]) if total["usd_micro"] is None else dollars(total["usd_micro"])


def _experiments(answer: dict[str, Any]) -> str:
    return counted(sum(row["experiment"] is not None for row in answer["rows"]), "experiment")


def _money(usd_micro: int | None) -> str:
    return "–" if usd_micro is None else dollars(usd_micro)


def _percent(share: float | None) -> str:
    return "–" if share is None else ratio(share)


def _value(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
