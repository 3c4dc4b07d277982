"""One step on all ranks for the terminal: bars per rank, which rank the others waited for, and the data behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from pyrometer.model.human import counted, date
from pyrometer.render.gantt import Bar, BarStyle, GanttRow, gantt, length_ticks
from pyrometer.render.why_text import Style

MAX_ROWS, SLOWEST, FASTEST = 16, 8, 4
MAX_DATA_RANKS = 8

KINDS = {
    "data": BarStyle("d", "yellow", "data"),
    "copy": BarStyle("c", "magenta", "copy"),
    "forward": BarStyle("f", "green", "forward"),
    "backward": BarStyle("b", "cyan", "backward"),
    "sync": BarStyle("s", "blue", "sync"),
    "optimizer": BarStyle("o", "bright_green", "optimizer"),
    "checkpoint": BarStyle("k", "bright_yellow", "checkpoint"),
    "evaluate": BarStyle("e", "bright_cyan", "evaluate"),
    "compile": BarStyle("x", "bright_magenta", "compile"),
    "garbage": BarStyle("g", "bright_red", "garbage collection"),
    "other": BarStyle("-", "white", "other"),
}
WAIT = BarStyle("·", "red", "waiting for the last rank")


def step_lines(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    """The step: a headline, the rank that the others waited for, the bars, the critical path, the data."""
    ranks = answer["ranks"]
    at = datetime.fromisoformat(answer["from"])
    traced = f"{len(ranks)} of {answer['ranks_of_run']:,} ranks" if len(ranks) < answer["ranks_of_run"] else None
    yield style(
        f"{answer['run']}, step {answer['step']:,}: {length(answer['duration_ms'])} "
        f"on {traced or counted(len(ranks), 'rank')}",
        bold=True,
    )
    yield style(
        f"attempt {answer['attempt']}, {at:%a}, {date(at)}, {at:%H:%M:%S.%f}"[:-3] + f", trace {answer['trace_id']}",
        dim=True,
    )
    yield from textwrap.wrap(_waiting(answer), width)
    if answer["critical_path"]:  # empty if nothing in the step took any time
        yield ""
        yield from gantt(_rows(ranks), 0.0, answer["duration_ms"], width=width, style=style, ticks=length_ticks)
        yield ""
        yield from _critical(answer["critical_path"], width)
    yield from _own_spans(answer, width)
    yield from _data(answer, style, width)
    yield from _remarks(answer, width)


def span_chain(
    spans: Sequence[dict[str, Any]], checkpoint: dict[str, Any] | None, style: Style, width: int, *, lost: bool = False
) -> Iterator[str]:
    """The phases of one batch in a step, and its checkpoint."""
    phases: dict[str, float] = {}
    for span in spans:
        if span["name"] in KINDS:
            phases[span["name"]] = phases.get(span["name"], 0.0) + span["duration_ms"]
    way = [f"{name} {length(phases[name])}" for name in KINDS if name in phases] or ["its step was not traced"]
    if checkpoint is None:
        way.append("in no checkpoint" if lost else "in no checkpoint yet")
    else:
        way.append(f"checkpoint of step {checkpoint['step']:,} (attempt {checkpoint['attempt']})")
    for line in textwrap.wrap(" → ".join(way), width - 2):
        yield f"  {style(line, dim=not phases)}"


def length(ms: float) -> str:
    """Milliseconds, with fewer decimals the longer it is."""
    digits = 2 if ms < 10 else 1 if ms < 100 else 0
    return f"{ms:,.{digits}f} ms"


def samples_text(samples: Sequence[str], width: int) -> str:
    """As many samples as fit. Consecutive numbers are written as a range."""
    shown = _ranges(samples)
    text = ""
    for number, one in enumerate(shown):
        more = f", … {len(samples):,} in total" if number + 1 < len(shown) else ""
        longer = f"{text}, {one}" if text else one
        if len(longer) + len(more) > width and text:
            return f"{text}, …"
        text = longer
    return text


def _ranges(samples: Sequence[str]) -> list[str]:
    """Consecutive numbers as "7–12", other samples as they are."""
    shown: list[str] = []
    first: int | None = None
    previous: int | None = None
    for sample in [*samples, None]:
        number = int(sample) if sample is not None and sample.isdecimal() and len(sample) < 19 else None
        if first is not None and previous is not None and number != previous + 1:
            shown.append(
                f"{first}–{previous}" if previous > first + 1 else ", ".join(map(str, range(first, previous + 1)))
            )
            first = None
        if number is None and sample is not None:
            shown.append(sample)
        if number is not None and first is None:
            first = number
        previous = number
    return shown


def _waiting(answer: dict[str, Any]) -> str:
    """One sentence: which rank the others waited for."""
    late, ranks = answer["waited_for"], answer["ranks"]
    if late is not None:
        why = ""
        if late["phase"] is not None and late["excess_ms"] > 0:
            name = "time outside all phases" if late["phase"] == "other" else late["phase"]
            why = (
                f": its {name} took {length(late['phase_ms'])}, {length(late['excess_ms'])} more than "
                f"{'the others’' if late['ranks'] > 1 else 'the other’s'}"
            )
        who = "The other rank" if late["ranks"] == 1 else f"{late['ranks']} ranks"
        return f"{who} waited {length(late['waited_ms'])} for rank {late['rank']}{why}."
    waited = [rank["waited_ms"] for rank in ranks if rank["waited_ms"]]
    if not waited:
        return "No rank waited for another." if len(ranks) > 1 else "There is only one rank, so no waiting."
    return (
        f"No rank stood out: the median wait was {length(median(waited))}, for rank {ranks[0]['rank']}, which was last."
    )


def _rows(ranks: Sequence[dict[str, Any]]) -> list[GanttRow]:
    """One row per rank, the last to be ready first. Of many ranks only both ends, and one line for the rest."""
    rows = [_row(rank, critical=number == 0) for number, rank in enumerate(ranks)]
    if len(rows) <= MAX_ROWS:
        return rows
    between = ranks[SLOWEST : len(rows) - FASTEST]
    waited = [rank["waited_ms"] for rank in between if rank["waited_ms"] is not None]
    spread = f" that waited {min(waited):,.1f}–{max(waited):,.1f} ms, median {median(waited):,.1f}" if waited else ""
    return [*rows[:SLOWEST], GanttRow(f"   … {len(between)} ranks{spread} …"), *rows[-FASTEST:]]


def _row(rank: dict[str, Any], *, critical: bool) -> GanttRow:
    bars: list[Bar] = []
    waited = rank["waited_ms"] or 0.0
    for name, start, lasted in rank["timeline"]:
        waits = min(waited, lasted) if name == "sync" else 0.0
        if waits > 0:
            waited -= waits
            bars.append(Bar(WAIT, start, start + waits))
        if lasted > waits:
            bars.append(Bar(KINDS[name], start + waits, start + lasted))
    note = "no sync" if rank["waited_ms"] is None else "was last" if critical else f"waited {length(rank['waited_ms'])}"
    return GanttRow(f"{'▶' if critical else ' '} rank {rank['rank']}", bars, note, bold=critical)


def _critical(path: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """The critical path as a line."""
    pieces = " → ".join(f"{piece['name']} {length(piece['duration_ms'])}" for piece in _joined(path))
    total = length(sum(piece["duration_ms"] for piece in path))
    yield from textwrap.wrap(
        f"Critical path ({total}, on rank {path[0]['rank']}): {pieces}", width, subsequent_indent="  "
    )


def _joined(path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The critical path, with repeated micro-batches summed up in the order in which they first appear."""
    if len(path) <= 2 * len(KINDS):
        names = [piece["name"] for piece in path]
        if len(set(names)) == len(names):
            return list(path)
    sums: dict[str, float] = {}
    for piece in path:
        sums[piece["name"]] = sums.get(piece["name"], 0.0) + piece["duration_ms"]
    return [
        {"name": name, "duration_ms": spent} for name, spent in sums.items() if spent >= 0.0005 * sum(sums.values())
    ]


def _own_spans(answer: dict[str, Any], width: int) -> Iterator[str]:
    """The spans that the program named itself: how often, how long, and where the longest was."""
    own: dict[str, list[dict[str, Any]]] = {}
    for span in answer["spans"]:
        if span["name"] not in KINDS and span["name"] != "step":
            own.setdefault(span["name"], []).append(span)
    for name, spans in own.items():
        longest = max(spans, key=lambda span: span["duration_ms"])
        typical = median(span["duration_ms"] for span in spans)
        slowest = f"longest {length(longest['duration_ms'])} on rank {longest['rank']}"
        text = f"{name}: {counted(len(spans), 'time')}, median {length(typical)}, {slowest}"
        yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")


def _data(answer: dict[str, Any], style: Style, width: int) -> Iterator[str]:
    """The batches behind the first few ranks."""
    run, step, ranks = answer["run"], answer["step"], answer["ranks"]
    yield ""
    if not any(rank["batches"] for rank in ranks):
        yield "The data behind this step was not recorded."
        return
    batches = [batch for rank in ranks for batch in rank["batches"]]
    epochs = ", ".join(sorted({str(batch["epoch"]) for batch in batches}))
    datasets = ", ".join(sorted({batch["dataset"] for batch in batches if batch["dataset"]}))
    micro = max(len(rank["batches"]) for rank in ranks)
    each = f", {micro} micro-batches per rank" if micro > 1 else ""
    yield style(f"Data behind it: {datasets + ', ' if datasets else ''}epoch {epochs}{each}", bold=True)
    for rank in ranks[:MAX_DATA_RANKS]:
        head = f"  rank {rank['rank']}: "
        unknown = sum(batch["samples"] is None for batch in rank["batches"])
        samples = [sample for batch in rank["batches"] for sample in batch["samples"] or ()]
        parts = [samples_text(samples, max(20, width - len(head) - (20 if unknown else 0)))] if samples else []
        parts += [f"{counted(unknown, 'batch')} unknown"] if unknown else []
        yield f"{head}{' and '.join(parts) or 'not recorded'}"
    if len(ranks) > MAX_DATA_RANKS:
        yield f"  … and {len(ranks) - MAX_DATA_RANKS} more ranks: `pyrometer lineage {run} --step {step}`"


def _remarks(answer: dict[str, Any], width: int) -> Iterator[str]:
    moved = max(abs(rank["clock_shift_ms"]) for rank in answer["ranks"])
    remarks = []
    if moved >= max(1.0, 0.01 * answer["duration_ms"]):
        remarks.append(
            f"Clocks of nodes differ by up to {length(moved)}. They are aligned to when ranks left the sync."
        )
    if answer["lost"]:
        remarks.append("A later attempt repeated this step, so no later model includes this update.")
    others = [number for number in answer["attempts"] if number != answer["attempt"]]
    if others:
        of = " and ".join(map(str, others))
        remarks.append(f"Attempt {of} also did this step: --attempt {others[-1]}.")
    if remarks:
        yield ""
    for text in remarks:
        yield from textwrap.wrap(text, width)
