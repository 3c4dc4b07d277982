"""`pyrometer trace RUN`: the lifecycle of a run, one step on all ranks, or one sample through its steps."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.model.human import counted, date_time
from pyrometer.render.gantt import terminal_width
from pyrometer.render.lifecycle_text import run_lines
from pyrometer.render.step_text import span_chain, step_lines
from pyrometer.render.why_text import Style, plain

MAX_WAYS = 12


@click.command()
@click.argument("run")
@click.option("--step", metavar="N", help="Show this global step on all ranks.")
@click.option(
    "--sample", metavar="ID", help="Show the batches with this sample, from data loading to update and checkpoint."
)
@click.option("--attempt", metavar="K", help="The attempt, if several ran the step. Default: the last.")
@read_options(default_last=None, formats=("table", "json", "perfetto", "otlp"))
@click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the answer to this file. Default: stdout.",
)
def command(
    request: ReadRequest, run: str, step: str | None, sample: str | None, attempt: str | None, path: Path | None
) -> None:
    """Shows the lifecycle of a run. With --step, one step on all ranks. With --sample, the steps that used a sample."""
    values = {"step": step, "sample": sample, "attempt": attempt}
    answer = request.answer("trace", run=run, **{name: value for name, value in values.items() if value is not None})
    if request.output == "json" and path is None:
        print_json(answer)
        return
    if path is not None:
        path.write_text(_text(answer, request.output, plain) + "\n", encoding="utf-8")
        return
    click.echo(_text(answer, request.output, click.style if sys.stdout.isatty() else plain))


def _text(answer: dict[str, Any], form: str, style: Style) -> str:
    if form == "json":
        return json.dumps(answer, indent=1, ensure_ascii=False, allow_nan=False)
    if form in ("perfetto", "otlp"):
        if not answer["spans"]:
            raise click.ClickException(_not_traced(answer))
        return json.dumps(_exported(answer, form), ensure_ascii=False, allow_nan=False)
    return "\n".join(_lines(answer, style, terminal_width()))


def _exported(answer: dict[str, Any], form: str) -> dict[str, Any]:
    if form == "perfetto":
        from pyrometer.export.perfetto import perfetto_trace

        return perfetto_trace(answer)
    from pyrometer.export.trace_otlp import otlp_trace

    return otlp_trace(answer)


def _lines(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    if "sample" in answer:
        yield from _sample_lines(answer, style, width)
    elif answer["step"] is None:
        yield from run_lines(answer, style, width)
    elif answer["spans"]:
        yield from step_lines(answer, style, width)
    else:
        yield from textwrap.wrap(_not_traced(answer), width)


def _not_traced(answer: dict[str, Any]) -> str:
    """One sentence: why there is no trace, and which traces exist."""
    if "sample" in answer:
        return f"No step that consumed sample {answer['sample']} was traced. Only some steps and slow steps are traced."
    run, step = answer["run"], answer["step"]
    near = ", ".join(f"{one:,}" for one in answer["nearest"])
    others = f" Nearest traced steps: {near}." if near else " No step of this run was traced."
    if answer["attempts"]:
        of = " and ".join(map(str, answer["attempts"]))
        return f"Step {step:,} of {run} was traced in attempt {of}, not in attempt {answer['attempt']}.{others}"
    if answer["done"]:
        return f"Step {step:,} of {run} ran but was not traced: only some steps and slow steps are.{others}"
    return f"Step {step:,} of {run} was not recorded.{others}"


def _sample_lines(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    sample, ways = answer["sample"], answer["ways"]
    if not ways:
        yield f"None of {counted(answer['batches'], 'recorded batch')} of {answer['run']} has sample {sample}."
    else:
        often = "once" if answer["total"] == 1 else counted(answer["total"], "time")
        yield style(f"{answer['run']} consumed sample {sample} {often}", bold=True)
    for way in ways[:MAX_WAYS]:
        at = date_time(datetime.fromisoformat(way["at"]), seconds=True)
        lost = "; repeated later" if way["lost"] else ""
        step = "unknown step" if way["step"] is None else f"step {way['step']:,}"
        yield ""
        yield (
            f"{at}  {style(step, bold=True)}, rank {way['rank']}, micro-batch {way['micro_batch']}, "
            f"epoch {way['epoch']}, attempt {way['attempt']}"
        )
        of = f" of {way['dataset']}" if way["dataset"] else ""
        yield f"  one of {counted(way['batch_size'], 'sample')} of batch {way['batch']}{of}{lost}"
        yield from span_chain(way["spans"], way["checkpoint"], style, width, lost=way["lost"])
    if len(ways) > MAX_WAYS:
        yield f"\n… and {len(ways) - MAX_WAYS} more: `-o json`."
    if answer["unknown_batches"]:
        yield f"\nThe samples of {counted(answer['unknown_batches'], 'more batch')} are unknown and may include it."
