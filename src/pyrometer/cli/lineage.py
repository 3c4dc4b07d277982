"""`pyrometer lineage RUN`: which data is behind a step, a checkpoint or a loss spike, and where a sample went."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from pyrometer.cli.gantt import terminal_width
from pyrometer.cli.running import ReadRequest, print_json, read_options
from pyrometer.cli.step_text import samples_text
from pyrometer.cli.tables import print_table
from pyrometer.explain.text import Style, plain
from pyrometer.explain.words import counted, listed

MOST_ROWS = 40
MOST_BATCHES = 6  # of a spike
MOST_SUSPECTS = 8
SET = "After the ranks have put their gradients together, an update is of all these samples at once."


@click.command()
@click.argument("run")
@click.option("--step", metavar="N", help="The data of all ranks behind a step, and the checkpoints with its update.")
@click.option("--sample", metavar="ID", help="Every step, rank, epoch and micro-batch that consumed this sample.")
@click.option("--checkpoint", metavar="STEP", help="The steps, epochs and samples that are in this checkpoint.")
@click.option("--spikes", is_flag=True, help="The largest jumps of the loss, and the data behind them.")
@click.option("--metric", metavar="NAME", help="With --spikes: which metric. Default: the loss.")
@click.option("--attempt", metavar="K", help="Whose step or checkpoint, where several attempts have it.")
@click.option("--limit", metavar="N", help="How many batches the JSON lists. Default: 1000.")
@click.option("--offset", metavar="N", help="How many it leaves out before those.")
@read_options(default_last=None)
def command(asked: ReadRequest, run: str, spikes: bool, **told: str | None) -> None:
    """Which data is behind a step, a checkpoint or a jump of the loss; which steps and checkpoints have a sample."""
    parameters = {name: value for name, value in told.items() if value is not None}
    if spikes:
        parameters["spikes"] = "1"
    answer = asked.answer("lineage", run=run, **parameters)
    if asked.output == "json":
        print_json(answer)
        return
    style = click.style if sys.stdout.isatty() else plain
    told_of = next(of for name, of in _TOLD.items() if name in answer or name == "updates")
    told_of(answer, style, terminal_width())


def _say(text: str, width: int, indent: str = "") -> None:
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent):
        click.echo(line)


def _of_step(answer: dict[str, Any], style: Style, width: int) -> None:
    run, step, updates = answer["run"], answer["step"], answer["updates"]
    if not updates:
        near = ", ".join(f"{one:,}" for one in answer["nearest"])
        others = f"; the nearest steps with data: {near}" if near else ", nor that of any other step"
        _say(f"The data behind step {step:,} of {run} was not recorded{others}.", width)
    attempts = {attempt: [u for u in updates if u["attempt"] == attempt] for attempt in _attempts(updates)}
    for attempt, own in attempts.items():
        samples = sum(len(update["samples"] or ()) for update in own)
        lost = ", done again by a later attempt" if own[0]["lost"] else ""
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
        click.echo(f"{answer['total']:,} batches in all: `-o json --limit {answer['total']}`.")
    silent = answer["ranks_without_batches"]
    if silent:
        _say(f"Not recorded: the batches of {_ranks([one['rank'] for one in silent])}.", width)
    _in_checkpoints(answer, width)
    if updates:
        _say(SET, width)


def _attempts(updates: list[dict[str, Any]]) -> list[int]:
    return sorted({update["attempt"] for update in updates})


def _data(updates: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What was consumed, whichever attempt did it."""
    return [(update["rank"], update["micro_batch"], update["dataset"], update["samples"]) for update in updates]


def _batches(updates: list[dict[str, Any]], width: int, most: int = MOST_ROWS, *, steps: bool = False) -> None:
    for update in updates[:most]:
        dataset = f" {update['dataset']}" if update["dataset"] else ""
        step = f"step {update['step']:,}, " if steps else ""
        head = f"  {step}rank {update['rank']}, micro-batch {update['micro_batch']}, epoch {update['epoch']}{dataset}: "
        known = "unknown" if update["samples"] is None else samples_text(update["samples"], max(20, width - len(head)))
        click.echo(f"{head}{known}")
    if len(updates) > most:
        click.echo(f"  … and {counted(len(updates) - most, 'batch')} more: `-o json`.")


def _in_checkpoints(answer: dict[str, Any], width: int) -> None:
    saved = answer["checkpoints"]
    if not saved:
        _say("No checkpoint holds this update.", width)
        return
    first = saved[0]
    at = datetime.fromisoformat(first["at"])
    more = f", and in {len(saved) - 1} later up to step {saved[-1]['step']:,}" if len(saved) > 1 else ""
    _say(f"In the checkpoint of step {first['step']:,} ({at:%d %b %H:%M:%S}, attempt {first['attempt']}){more}.", width)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed([str(rank) for rank in ranks], 8)}"


def _of_sample(answer: dict[str, Any], style: Style, width: int) -> None:
    updates, looked_at = answer["updates"], f"{answer['batches']:,} recorded batches"
    if not updates:
        _say(f"No batch of {answer['run']} has sample {answer['sample']}; {looked_at} were looked at.", width)
    else:
        often = "once" if answer["total"] == 1 else f"{answer['total']:,} times"
        click.echo(style(f"{answer['run']} consumed sample {answer['sample']} {often} in {looked_at}", bold=True))
        print_table(
            ["when", "dataset", "attempt", "epoch", "step", "rank", "micro", "checkpoint"],
            [
                [
                    f"{datetime.fromisoformat(one['at']):%d %b %H:%M:%S}", one["dataset"],
                    f"{one['attempt']}†" if one["lost"] else one["attempt"], one["epoch"],
                    None if one["step"] is None else f"{one['step']:,}", one["rank"], one["micro_batch"],
                    one["checkpoint"] and f"{one['checkpoint']['step']:,}",
                ]
                for one in updates[:MOST_ROWS]
            ],
            figures=6,
        )  # fmt: skip
        if answer["total"] > MOST_ROWS:
            click.echo(f"… {answer['total'] - MOST_ROWS:,} more: `-o json`.")
        if any(one["lost"] for one in updates):
            _say("†: a later attempt did this step again, so this update is in no later model.", width)
    if answer["unknown_batches"]:
        _say(f"The samples of {answer['unknown_batches']:,} batches are not known: it may be in those too.", width)


def _of_checkpoint(answer: dict[str, Any], style: Style, width: int) -> None:
    saved = answer["checkpoint"]
    at = datetime.fromisoformat(saved["at"])
    head = f"{answer['run']}, checkpoint of step {saved['step']:,}, saved by attempt {saved['attempt']}"
    click.echo(style(f"{head} at {at:%d %b %H:%M:%S}", bold=True))
    for part in answer["parts"]:
        known = "all of them" if part["recorded_steps"] >= part["steps"] else f"{part['recorded_steps']:,} of them"
        click.echo(
            f"  attempt {part['attempt']}: steps {part['from_step']:,}–{part['to_step'] - 1:,} "
            f"({part['steps']:,}; the data of {known} is recorded)"
        )
    if not answer["parts"]:
        click.echo("  no step of it is known")
    if answer["epochs"]:
        click.echo()
        print_table(
            ["dataset", "loader", "epoch", "steps", "batches", "unknown", "samples"],
            [
                [
                    one["dataset"], one["loader"], one["epoch"], f"{one['first_step']:,}–{one['last_step']:,}",
                    f"{one['batches']:,}", f"{one['unknown_batches']:,}", f"{one['samples']:,}",
                ]
                for one in answer["epochs"]
            ],
            figures=4,
        )  # fmt: skip
        more = "" if answer["total"] <= answer["limit"] else f", {answer['limit']:,} at a time"
        _say(f"Each of the {counted(answer['total'], 'batch')}: `-o json`{more}.", width)
    if answer["also_saved_by"]:
        others = " and ".join(map(str, answer["also_saved_by"]))
        _say(f"Attempt {others} saved one of this step too: --attempt {answer['also_saved_by'][-1]}.", width)


def _of_spikes(answer: dict[str, Any], style: Style, width: int) -> None:
    spikes, run, name = answer["spikes"], answer["run"], answer["metric"]
    if not spikes:
        _say(
            f"{name} of {run} does not jump: no one of {answer['values']:,} values is far from the ones before.", width
        )
        return
    click.echo(style(f"{name} of {run}: {_found(answer)} in {answer['values']:,} values", bold=True))
    if answer["reason"] is not None:
        _say(f"No sample is named. {answer['reason']}", width)
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
            _batches(worst_first, width, MOST_BATCHES, steps=several)
        elif spike["reason"] is not None:
            if answer["reason"] is None:
                _say(f"No sample is named. {spike['reason']}", width, "  ")
        else:
            near = ", ".join(f"{one:,}" for one in spike["nearest"])
            _say(f"its data was not recorded{'; the nearest steps with data: ' + near if near else ''}", width, "  ")


def _found(answer: dict[str, Any]) -> str:
    jumps = sum(spike["kind"] == "spike" for spike in answer["spikes"])
    broken = len(answer["spikes"]) - jumps
    said = [counted(jumps, "spike")] if jumps else []
    said += ["not a number"] if broken else []
    more = answer["found"] - len(answer["spikes"])
    return " and ".join(said) + (f" (the largest of {answer['found']:,})" if more > 0 else "")


def _spike_head(spike: dict[str, Any], name: str, width: int) -> Iterator[str]:
    at = datetime.fromisoformat(spike["at"])
    where = f"step {spike['step']:,}, {at:%d %b %H:%M:%S}, attempt {spike['attempt']}"
    if spike["kind"] == "nonfinite":
        text = f"{where}: {name} is not a finite number"
    else:
        usual = "" if spike["usual"] is None else f", usual before it {spike['usual']:.4g}"
        text = f"{where}: {spike['value']:.4g}{usual} ({spike['score']:,.0f} times the usual spread)"
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
    """The one sample that stands out: behind more spikes than any other, and more than chance explains."""
    rows: list[dict[str, Any]] = answer["suspects"]["rows"]
    return rows[0] if rows and rows[0]["stands_out"] else None


def _suspects(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    """Which samples stand out."""
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
            head = "1 sample is behind several of these, which may be chance:"
        else:
            head = f"{counted(suspects['total'], 'sample')} are behind several of these, some of them by chance:"
        yield from textwrap.wrap(head, width)
        for row in shared[:MOST_SUSPECTS]:
            of = f" of {row['dataset']}" if row["dataset"] else ""
            yield f"  {row['sample']}{of}: {row['spikes']} of {places}, consumed {counted(row['consumed'], 'time')}"
        if suspects["total"] > MOST_SUSPECTS:
            yield f"  … and {suspects['total'] - MOST_SUSPECTS:,} more: `-o json`."
    elif places > 1:
        yield "No sample is behind two of these."
        return
    else:
        several = any(spike["first_step"] != spike["last_step"] for spike in answer["spikes"])
        yield f"{counted(suspects['total'], 'sample')} {'in these steps' if several else 'behind it'}."
    yield from textwrap.wrap("Where to look first, not a proof: an update is of all its samples at once.", width)


_TOLD = {"spikes": _of_spikes, "checkpoint": _of_checkpoint, "sample": _of_sample, "updates": _of_step}
