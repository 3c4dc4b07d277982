"""The lifecycle of a run for the terminal: its attempts as bars, and the events of each."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from pyrometer.findings.run_failures import failure_text
from pyrometer.model.human import counted, date, date_time, duration, size
from pyrometer.render.gantt import Bar, BarStyle, GanttRow, clock_ticks, gantt
from pyrometer.render.step_text import length
from pyrometer.render.why_text import Style

MAX_ATTEMPTS = 12
MAX_UNFOLDED = 3  # events of one kind that are listed one by one; more become one line

KINDS = {
    "training": BarStyle("t", "green", "training"),
    "image_pull": BarStyle("p", "magenta", "image pull"),
    "imports": BarStyle("i", "yellow", "imports"),
    "startup": BarStyle("i", "yellow", "startup"),
    "rendezvous": BarStyle("r", "bright_yellow", "rendezvous"),
    "restore": BarStyle("l", "bright_magenta", "restore"),
    "compile": BarStyle("x", "bright_blue", "compile"),
    "first_step": BarStyle("1", "bright_green", "first step"),
    "checkpoint": BarStyle("k", "blue", "checkpoint"),
    "evaluate": BarStyle("e", "cyan", "evaluate"),
    "diverged": BarStyle("n", "bright_red", "loss not finite"),
    "loop_ended": BarStyle("z", "white", "left its loop"),
    "hang": BarStyle("h", "red", "hang"),
}
ENDS = {"succeeded": "✓", "failed": "✗", "killed": "✗"}


def run_lines(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    """The run: a headline, its attempts as bars and in words, and which steps have traces."""
    attempts = answer["attempts"]
    yield style(
        f"{answer['run']}: {counted(len(attempts), 'attempt')} in {duration(answer['duration_ms'])}, "
        f"{attempts[-1]['outcome']}",
        bold=True,
    )
    yield ""
    shown = attempts[-MAX_ATTEMPTS:]
    rows = [_row(attempt) for attempt in shown]
    start, end = min(a["start_ms"] for a in shown), max(a["start_ms"] + a["duration_ms"] for a in shown)
    first = datetime.fromisoformat(answer["from"])

    def clock(at_ms: float, every_ms: int) -> str:
        at = first + timedelta(milliseconds=at_ms - answer["start_ms"])
        if every_ms >= 86_400_000:
            return date(at)
        return f"{at:%H:%M:%S}" if every_ms < 60_000 else f"{at:%H:%M}"

    yield from gantt(rows, start, end, width=width, style=style, ticks=clock_ticks(clock), keep_short=True)
    if len(attempts) > len(shown):
        yield f"  … and {len(attempts) - len(shown)} earlier attempts: `-o json`."
    for attempt in shown:
        yield ""
        yield from _attempt(attempt, style, width)
    yield ""
    yield from textwrap.wrap(_traced(answer), width)
    if answer["traced"]["count"]:
        yield f"  pyrometer trace {answer['run']} --step {answer['traced']['slowest'][0]['step']}"


def _row(attempt: dict[str, Any]) -> GanttRow:
    """The bars of an attempt. Later kinds of KINDS cover earlier ones: a hang shows in the middle of training."""
    order = list(KINDS)
    pieces = sorted((p for p in attempt["pieces"] if p["name"] in KINDS), key=lambda p: order.index(p["name"]))
    edges = sorted({e for p in pieces for e in (p["start_ms"], p["start_ms"] + p["duration_ms"])})
    bars: list[Bar] = []
    for begin, end in itertools.pairwise(edges):
        over = [p for p in pieces if p["start_ms"] <= begin and p["start_ms"] + p["duration_ms"] >= end]
        if over:
            bars.append(Bar(KINDS[over[-1]["name"]], begin, end))
    empty = Bar(BarStyle(" ", "", ""), attempt["start_ms"], attempt["start_ms"])
    return GanttRow(
        f"attempt {attempt['attempt']}", bars or [empty], f"{ENDS.get(attempt['outcome'], '…')} {attempt['outcome']}"
    )


def _attempt(attempt: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    steps = ""
    if attempt["from_step"] is not None:
        steps = f", steps {attempt['from_step']:,}–{attempt['to_step'] - 1:,}"
    lost = f", {attempt['lost_steps']:,} of them repeated later" if attempt["lost_steps"] else ""
    resumed = f", resumed at {attempt['resumed_step']:,}" if attempt["resumed_step"] is not None else ""
    head = (
        f"attempt {attempt['attempt']}: {attempt['outcome']} after {duration(attempt['duration_ms'])} on "
        f"{counted(attempt['ranks'], 'rank')}{resumed}{steps}{lost}"
    )
    for line in textwrap.wrap(head, width, subsequent_indent="  "):
        yield style(line, bold=True)
    if attempt["failure"] and attempt["failure"]["ranks"] > 1:
        yield from textwrap.wrap(
            f"{failure_text(attempt['failure'])}", width, initial_indent="  ", subsequent_indent="  "
        )
    events = [*attempt["pieces"], *attempt["marks"]]
    events.sort(key=lambda one: (one["start_ms"], -one["duration_ms"]))
    for group in _groups(events):
        yield from _event_lines(group, width)


def _groups(pieces: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Events one by one; events of a frequent kind together, at the position of the first."""
    names = [piece["name"] for piece in pieces]
    done = set()
    for piece in pieces:
        if names.count(piece["name"]) <= MAX_UNFOLDED:
            yield [piece]
        elif piece["name"] not in done:
            done.add(piece["name"])
            yield [one for one in pieces if one["name"] == piece["name"]]


def _event_lines(group: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    first, last = group[0], group[-1]
    name = KINDS[first["name"]].name if first["name"] in KINDS else first["name"].replace("_", " ")
    at = datetime.fromisoformat(first["at"])
    if len(group) > 1:
        took = duration(round(median(one["duration_ms"] for one in group)))
        text = f"{len(group)} × {name}, {took} each"
        gaps = [b["start_ms"] - a["start_ms"] for a, b in itertools.pairwise(group)]
        if first["name"] == "checkpoint":
            text += f", every {duration(round(median(gaps)))}"
        if last["step"] is not None:
            text += (
                f", the last at step {last['step']:,} at {date_time(datetime.fromisoformat(last['at']), seconds=True)}"
            )
    else:
        text = name
        if first["step"] is not None:
            text += (
                f" of step {first['step']:,}"
                if first["name"] in ("checkpoint", "restore")
                else f" at step {first['step']:,}"
            )
        if first["ranks"] and first["name"] not in ("checkpoint", "rendezvous"):
            ranks = ", ".join(map(str, first["ranks"][:4])) + ("…" if len(first["ranks"]) > 4 else "")
            text += f", rank{'s' if len(first['ranks']) > 1 else ''} {ranks}"
        details = [first["error"]] if first["error"] else [_reason(first), _line_of(first)]
        if any(details):
            text += f": {', '.join(filter(None, details))}"
    took_ms = 0 if len(group) > 1 else first["duration_ms"]
    took = "" if not took_ms else length(took_ms) if took_ms < 1000 else duration(took_ms)
    head = f"  {date_time(at, seconds=True):<16}  {took:>12}  "
    yield from textwrap.wrap(text, max(width, 60), initial_indent=head, subsequent_indent=" " * len(head))


def _reason(piece: dict[str, Any]) -> str:
    """The reason of an event; for a checkpoint, its size."""
    reason = piece["reason"] or ""
    return size(int(reason)) if piece["name"] == "checkpoint" and reason.isdecimal() else reason


def _line_of(piece: dict[str, Any]) -> str:
    """The most informative line of a message: the last of a stack, else the first."""
    lines = (piece["message"] or "").strip().splitlines() or [""]
    return str(lines[-1] if piece["name"] == "hang" else lines[0]).strip()


def _traced(answer: dict[str, Any]) -> str:
    traced = answer["traced"]
    if not traced["count"]:
        return "No step of this run was traced."
    newest, slowest = traced["newest"], traced["slowest"][0]
    return (
        f"{counted(traced['count'], 'step')} {'has a trace' if traced['count'] == 1 else 'have traces'}: newest "
        f"step {newest['step']:,} ({length(newest['duration_ms'])}), slowest step {slowest['step']:,} "
        f"({length(slowest['duration_ms'])})."
    )
