"""`pyrometer lineage RUN`: the data behind a step, a checkpoint or a loss spike, and the steps that used a sample."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.model.human import counted, date_time, listed
from pyrometer.render.gantt import terminal_width
from pyrometer.render.step_text import samples_text
from pyrometer.render.tables import print_table
from pyrometer.render.why_text import Style, plain

MAX_ROWS = 40
MAX_BATCHES = 6  # per spike
MAX_SUSPECTS = 8
SET = "Ranks sum their gradients, so the update depends on all these samples together."


@click.command()
@click.argument("run")
@click.option(
    "--step", metavar="N", help="Show the data of all ranks behind this step, and the checkpoints that include it."
)
@click.option("--sample", metavar="ID", help="Show every step, rank, epoch and micro-batch that consumed this sample.")
@click.option("--checkpoint", metavar="STEP", help="Show the steps, epochs and samples in the checkpoint of this step.")
@click.option("--spikes", is_flag=True, help="Show the largest spikes of the loss, and the data behind them.")
@click.option("--metric", metavar="NAME", help="With --spikes: the metric. Default: the loss.")
@click.option("--attempt", metavar="K", help="The attempt, if several have the step or checkpoint.")
@click.option("--limit", metavar="N", help="With -o json: list at most N batches. Default: 1000.")
@click.option("--offset", metavar="N", help="With -o json: skip the first N batches.")
@read_options(default_last=None)
def command(request: ReadRequest, run: str, spikes: bool, **values: str | None) -> None:
    """Shows which data is behind a step, a checkpoint or a loss spike, or which steps and checkpoints used a sample."""
    parameters = {name: value for name, value in values.items() if value is not None}
    if spikes:
        parameters["spikes"] = "1"
    answer = request.answer("lineage", run=run, **parameters)
    if request.output == "json":
        print_json(answer)
        return
    style = click.style if sys.stdout.isatty() else plain
    print_answer = next(function for name, function in _PRINTERS.items() if name in answer or name == "updates")
    print_answer(answer, style, terminal_width())


def _print_wrapped(text: str, width: int, indent: str = "") -> None:
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent):
        click.echo(line)


def _print_step(answer: dict[str, Any], style: Style, width: int) -> None:
    run, step, updates = answer["run"], answer["step"], answer["updates"]
    if not updates:
        near = ", ".join(f"{one:,}" for one in answer["nearest"])
        others = f" Nearest steps with data: {near}." if near else " No step of this run has recorded data."
        _print_wrapped(f"The data behind step {step:,} of {run} was not recorded.{others}", width)
    attempts = {attempt: [u for u in updates if u["attempt"] == attempt] for attempt in _attempts(updates)}
    for attempt, own in attempts.items():
        samples = sum(len(update["samples"] or ()) for update in own)
        lost = ", repeated by a later attempt" if own[0]["lost"] else ""
        ranks = len({update["rank"] for update in own})
        head = (
            f"{run}, step {step:,}, attempt {attempt}{lost}: {counted(samples, 'sample')} on {counted(ranks, 'rank')}"
        )
        for line in textwrap.wrap(head, width):
            click.echo(style(line, bold=True))
        if attempt != max(attempts) and _data(own) == _data(attempts[max(attempts)]):
            click.echo(f"  the same as in attempt {max(attempts)}")
        else:
            _batches(own, width)
    if answer["total"] > len(updates):
        click.echo(f"{answer['total']:,} batches in total: `-o json --limit {answer['total']}`.")
    silent = answer["ranks_without_batches"]
    if silent:
        _print_wrapped(f"Not recorded: the batches of {_ranks([one['rank'] for one in silent])}.", width)
    _in_checkpoints(answer, width)
    if updates:
        _print_wrapped(SET, width)


def _attempts(updates: list[dict[str, Any]]) -> list[int]:
    return sorted({update["attempt"] for update in updates})


def _data(updates: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What was consumed, regardless of the attempt."""
    return [(update["rank"], update["micro_batch"], update["dataset"], update["samples"]) for update in updates]


def _batches(updates: list[dict[str, Any]], width: int, most: int = MAX_ROWS, *, steps: bool = False) -> None:
    for update in updates[:most]:
        dataset = f" {update['dataset']}" if update["dataset"] else ""
        step = f"step {update['step']:,}, " if steps else ""
        head = f"  {step}rank {update['rank']}, micro-batch {update['micro_batch']}, epoch {update['epoch']}{dataset}: "
        samples = (
            "unknown" if update["samples"] is None else samples_text(update["samples"], max(20, width - len(head)))
        )
        click.echo(f"{head}{samples}")
    if len(updates) > most:
        click.echo(f"  … and {counted(len(updates) - most, 'batch')} more: `-o json`.")


def _in_checkpoints(answer: dict[str, Any], width: int) -> None:
    saved = answer["checkpoints"]
    if not saved:
        _print_wrapped("No checkpoint includes this update.", width)
        return
    first = saved[0]
    at = datetime.fromisoformat(first["at"])
    more = f", and in {len(saved) - 1} later checkpoints up to step {saved[-1]['step']:,}" if len(saved) > 1 else ""
    _print_wrapped(
        f"In the checkpoint of step {first['step']:,} "
        f"({date_time(at, seconds=True)}, attempt {first['attempt']}){more}.",
        width,
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed([str(rank) for rank in ranks], 8)}"


def _print_sample(answer: dict[str, Any], style: Style, width: int) -> None:
    updates, looked_at = answer["updates"], f"{answer['batches']:,} recorded batches"
    if not updates:
        _print_wrapped(f"Sample {answer['sample']} is in none of {looked_at} of {answer['run']}.", width)
    else:
        often = "once" if answer["total"] == 1 else f"{answer['total']:,} times"
        click.echo(style(f"{answer['run']} consumed sample {answer['sample']} {often} in {looked_at}", bold=True))
        print_table(
            ["when", "dataset", "attempt", "epoch", "step", "rank", "micro", "checkpoint"],
            [
                [
                    date_time(datetime.fromisoformat(one["at"]), seconds=True),
                    one["dataset"],
                    f"{one['attempt']}†" if one["lost"] else one["attempt"],
                    one["epoch"],
                    None if one["step"] is None else f"{one['step']:,}",
                    one["rank"],
                    one["micro_batch"],
                    one["checkpoint"] and f"{one['checkpoint']['step']:,}",
                ]
                for one in updates[:MAX_ROWS]
            ],
            figures=6,
        )
        if answer["total"] > MAX_ROWS:
            click.echo(f"… {answer['total'] - MAX_ROWS:,} more: `-o json`.")
        if any(one["lost"] for one in updates):
            _print_wrapped("†: a later attempt repeated this step, so no later model includes this update.", width)
    if answer["unknown_batches"]:
        _print_wrapped(f"The samples of {answer['unknown_batches']:,} batches are unknown and may include it.", width)


def _print_checkpoint(answer: dict[str, Any], style: Style, width: int) -> None:
    saved = answer["checkpoint"]
    at = datetime.fromisoformat(saved["at"])
    head = f"{answer['run']}, checkpoint of step {saved['step']:,}, saved by attempt {saved['attempt']}"
    click.echo(style(f"{head} at {date_time(at, seconds=True)}", bold=True))
    for part in answer["parts"]:
        recorded = "all" if part["recorded_steps"] >= part["steps"] else f"{part['recorded_steps']:,}"
        click.echo(
            f"  attempt {part['attempt']}: steps {part['from_step']:,}–{part['to_step'] - 1:,} "
            f"({part['steps']:,} steps, {recorded} with recorded data)"
        )
    if not answer["parts"]:
        click.echo("  no recorded steps")
    if answer["epochs"]:
        click.echo()
        print_table(
            ["dataset", "loader", "epoch", "steps", "batches", "unknown", "samples"],
            [
                [
                    one["dataset"],
                    one["loader"],
                    one["epoch"],
                    f"{one['first_step']:,}–{one['last_step']:,}",
                    f"{one['batches']:,}",
                    f"{one['unknown_batches']:,}",
                    f"{one['samples']:,}",
                ]
                for one in answer["epochs"]
            ],
            figures=4,
        )
        more = "" if answer["total"] <= answer["limit"] else f", {answer['limit']:,} at a time"
        _print_wrapped(f"`-o json` lists all {counted(answer['total'], 'batch')}{more}.", width)
    if answer["also_saved_by"]:
        others = " and ".join(map(str, answer["also_saved_by"]))
        _print_wrapped(
            f"Attempt {others} also saved a checkpoint of this step: --attempt {answer['also_saved_by'][-1]}.", width
        )


def _print_spikes(answer: dict[str, Any], style: Style, width: int) -> None:
    spikes, run, name = answer["spikes"], answer["run"], answer["metric"]
    if not spikes:
        _print_wrapped(f"{name} of {run} has no spikes in {answer['values']:,} values.", width)
        return
    click.echo(style(f"{name} of {run}: {_found(answer)} in {answer['values']:,} values", bold=True))
    if answer["reason"] is not None:
        _print_wrapped(f"The samples behind it are unknown. {answer['reason']}", width)
    else:
        for line in _suspects(answer, style, width):
            click.echo(line)
    likely = _likely(answer)
    for spike in spikes:
        click.echo()
        click.echo("\n".join(_spike_head(spike, name, width)))
        several = spike["first_step"] != spike["last_step"]
        having = [one for one in spike["updates"] if likely and likely["sample"] in (one["samples"] or ())]
        if having:
            _batches(having, width, steps=several)
        elif spike["updates"]:
            worst_first = sorted(spike["updates"], key=lambda one: one["rank"] != spike["worst_rank"])
            _batches(worst_first, width, MAX_BATCHES, steps=several)
        elif spike["reason"] is not None:
            if answer["reason"] is None:
                _print_wrapped(f"The samples behind it are unknown. {spike['reason']}", width, "  ")
        else:
            near = ", ".join(f"{one:,}" for one in spike["nearest"])
            _print_wrapped(
                f"Its data was not recorded.{' Nearest steps with data: ' + near + '.' if near else ''}", width, "  "
            )


def _found(answer: dict[str, Any]) -> str:
    jumps = sum(spike["kind"] == "spike" for spike in answer["spikes"])
    broken = len(answer["spikes"]) - jumps
    parts = [counted(jumps, "spike")] if jumps else []
    parts += [counted(broken, "non-finite value")] if broken else []
    more = answer["found"] - len(answer["spikes"])
    return " and ".join(parts) + (f" (the largest of {answer['found']:,})" if more > 0 else "")


def _spike_head(spike: dict[str, Any], name: str, width: int) -> Iterator[str]:
    at = datetime.fromisoformat(spike["at"])
    where = f"step {spike['step']:,}, {date_time(at, seconds=True)}, attempt {spike['attempt']}"
    if spike["kind"] == "nonfinite":
        text = f"{where}: {name} is not a finite number"
    else:
        usual = "" if spike["usual"] is None else f", typically {spike['usual']:.4g} before"
        text = f"{where}: {spike['value']:.4g}{usual} ({spike['score']:,.0f} times the typical spread)"
    if spike["to_step"] != spike["step"]:
        text += f", until step {spike['to_step']:,}"
    if spike["worst_rank"] is not None:
        text += f", worst on rank {spike['worst_rank']}"
    first, last = spike["first_step"], spike["last_step"]
    if first is not None and first != last:
        text += f"; in one of the {last - first + 1:,} lineage steps {first:,}–{last:,}"
    elif first is not None and first != spike["step"]:
        text += f"; lineage step {first:,}"
    yield from textwrap.wrap(text, width, subsequent_indent="  ")


def _likely(answer: dict[str, Any]) -> dict[str, Any] | None:
    """The sample that is behind more spikes than any other and than chance explains, if there is one."""
    rows: list[dict[str, Any]] = answer["suspects"]["rows"]
    return rows[0] if rows and rows[0]["stands_out"] else None


def _suspects(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    """The samples that are behind several spikes."""
    suspects, places = answer["suspects"], answer["suspects"]["spikes"]
    shared = [row for row in suspects["rows"] if row["spikes"] > 1]
    likely = _likely(answer)
    if likely is not None:
        often = "every time" if likely["measured"] == likely["spikes"] else counted(likely["spikes"], "time")
        known = "" if likely["measured"] == likely["consumed"] else f" ({likely['measured']:,} with a known value)"
        of = f" of {likely['dataset']}" if likely["dataset"] else ""
        behind = f"all {places:,}" if likely["spikes"] == places else f"{likely['spikes']:,} of {places:,}"
        consumed = f"consumed {counted(likely['consumed'], 'time')}{known}, {often} a spike"
        wide = any(spike["first_step"] != spike["last_step"] for spike in answer["spikes"])
        among = "is among the data of" if wide else "is behind"
        text = f"Sample {likely['sample']}{of} {among} {behind}: {consumed}."
        for line in textwrap.wrap(text, width):
            yield style(line, bold=True)
    elif shared:
        if suspects["total"] == 1:
            head = "1 sample is behind several of these spikes, possibly by chance:"
        else:
            head = f"{counted(suspects['total'], 'sample')} are behind several of these spikes, some by chance:"
        yield from textwrap.wrap(head, width)
        for row in shared[:MAX_SUSPECTS]:
            of = f" of {row['dataset']}" if row["dataset"] else ""
            yield f"  {row['sample']}{of}: {row['spikes']} of {places}, consumed {counted(row['consumed'], 'time')}"
        if suspects["total"] > MAX_SUSPECTS:
            yield f"  … and {suspects['total'] - MAX_SUSPECTS:,} more: `-o json`."
    elif places > 1:
        yield "No sample is behind more than one of these spikes."
        return
    else:
        several = any(spike["first_step"] != spike["last_step"] for spike in answer["spikes"])
        yield f"{counted(suspects['total'], 'sample')} {'in these steps' if several else 'behind it'}."
    yield from textwrap.wrap(
        "This shows where to look first. It is not proof: an update depends on all its samples together.", width
    )


# By the key that only this answer has; the data of a step has no such key, so it comes last.
_PRINTERS = {"spikes": _print_spikes, "checkpoint": _print_checkpoint, "sample": _print_sample, "updates": _print_step}
