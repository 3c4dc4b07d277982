"""The lines of `top`. If the terminal is too narrow, the least important columns are dropped first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pyrometer.model.human import counted, date_time, dollars, duration, percent, ratio, staleness
from pyrometer.model.states import STATE
from pyrometer.render.tables import sparkline
from pyrometer.render.why_text import COLORS

Row = dict[str, Any]
GAP = 2
MIN_NAME_WIDTH = 12
KEYS = "q quit · ↑↓ move · s sort · / filter"


class TopColumn(NamedTuple):
    """A column and its text for a row. If space is short, the highest `drop_order` is dropped first."""

    heading: str
    text: Callable[[Row], str]
    drop_order: int
    figure: bool = False


class Sorting(NamedTuple):
    """A sort order of rows and its name."""

    name: str
    key: Callable[[Row], Any]


def _wasted(row: Row) -> float:
    share: float = sum(part for state, part in row["states"].items() if STATE[state].family == "waste")
    return share * float(row["usd_micro_per_hour"] or row["gpus"])


SORTINGS = (
    Sorting("dollars per hour", lambda row: (-(row["usd_micro_per_hour"] or 0), -row["gpus"])),
    Sorting("waste", lambda row: -_wasted(row)),
    Sorting("GPUs", lambda row: -row["gpus"]),
    Sorting("ETA", lambda row: _eta_ms(row) if _eta_ms(row) is not None else float("inf")),
    Sorting("name", lambda row: row["workload"]["name"]),
)


def _eta_ms(row: Row) -> int | None:
    return row["progress"]["eta_ms"] if row["progress"] else None


def _progress(row: Row) -> str:
    progress = row["progress"]
    if progress is None:
        return "–"
    step = "" if progress["step"] is None else f"step {progress['step']:,}"
    return " ".join(filter(None, [step, "" if progress["share"] is None else f"{100 * progress['share']:.0f}%"]))


def _eta(row: Row) -> str:
    eta_ms = _eta_ms(row)
    return "–" if eta_ms is None else duration(eta_ms)


def _metric(row: Row) -> str:
    return "–" if row["metric"] is None else f"{row['metric']['name']} {row['metric']['value']:.4g}"


def _money(micro: int | None) -> str:
    return "–" if micro is None else dollars(micro)


COLUMNS = (
    TopColumn("workload", lambda row: row["workload"]["name"], 0),
    TopColumn("team", lambda row: row["team"] or "–", 6),
    TopColumn("user", lambda row: row["user"] or "–", 13),
    TopColumn("experiment", lambda row: row["experiment"] or "–", 11),
    TopColumn("state", lambda row: row["state"] or "–", 1),
    TopColumn("useful", lambda row: sparkline(row["spark"], low=0.0, high=1.0), 5),
    TopColumn("GPUs", lambda row: f"{row['gpus']:,g}", 2, figure=True),
    TopColumn("$/h", lambda row: _money(row["usd_micro_per_hour"]), 0, figure=True),
    TopColumn("cost", lambda row: _money(row["usd_micro"]), 12, figure=True),
    TopColumn("goodput", lambda row: "–" if row["goodput"] is None else ratio(row["goodput"]), 8, figure=True),
    TopColumn("running", lambda row: "–" if row["running_ms"] is None else duration(row["running_ms"]), 9, figure=True),
    TopColumn("progress", _progress, 3, figure=True),
    TopColumn("ETA", _eta, 4, figure=True),
    TopColumn("metric", _metric, 10, figure=True),
)


def header(answer: dict[str, Any], source: str, error_text: str | None = None, now_ms: int | None = None) -> list[Text]:
    """The lines above the table: time and source, cost and waste per hour, waiting pods, and an error if any."""
    rate, queue = answer["rate"], answer["queue"]
    at = datetime.fromisoformat(answer["at"])
    first = Text(
        f"pyrometer top · {safe(source)} · {at:%a}, {date_time(at)} {at.tzname() or ''}".rstrip(), style="bold"
    )
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if stale := staleness(round(at.timestamp() * 1000), now_ms, answer.get("origin")):
        first.append(f" ({stale})", style="yellow")
    burns = f"{rate['gpus']:,g} GPUs: {rate['held_gpus']:,g} held, {rate['free_gpus']:,g} free"
    if rate["unhealthy_gpus"]:
        burns += f", {rate['unhealthy_gpus']:,g} unhealthy"
    second = Text(burns)
    if rate["usd_micro_per_hour"] is not None:
        second = Text(f"{dollars(rate['usd_micro_per_hour'])} per hour for {burns}; ")
        wasted = rate["wasted_usd_micro_per_hour"]
        share = percent(wasted, rate["usd_micro_per_hour"])
        second.append(f"{dollars(wasted)} per hour wasted ({share})", style=COLORS["waste"] if wasted else "")
    lines = [first, second]
    if queue["pods"]:
        longest = "" if queue["longest_ms"] is None else f", the longest for {duration(queue['longest_ms'])}"
        waits = "waits" if queue["pods"] == 1 else "wait"
        lines.append(Text(f"{counted(queue['pods'], 'pod')} {waits} for {queue['gpus']:,g} GPUs{longest}"))
    if error_text:
        lines.append(Text(safe(error_text), style="bold red"))
    return lines


def table(rows: Sequence[Row], width: int | None, selected: int | None = None) -> list[Text]:
    """Headings and rows in `width` columns; None: as wide as needed."""
    cells = [[safe(column.text(row)) for column in COLUMNS] for row in rows]
    widths = [max(map(cell_len, [column.heading, *(row[i] for row in cells)])) for i, column in enumerate(COLUMNS)]
    kept, widths = fitting(widths, width)
    lines = [_line([column.heading for column in COLUMNS], kept, widths, [], "bold")]
    for number, (row, texts) in enumerate(zip(rows, cells, strict=True)):
        lines.append(_line(texts, kept, widths, _styles(row), "reverse" if number == selected else ""))
    return lines


def fitting(widths: Sequence[int], width: int | None) -> tuple[list[int], list[int]]:
    """Which columns fit, and how wide each is. The name is shortened before a column is dropped."""
    given = list(widths)
    kept = list(range(len(COLUMNS)))
    while width is not None:
        more = sum(given[i] for i in kept) + GAP * (len(kept) - 1) - width
        if more <= 0:
            break
        given[0] = max(min(MIN_NAME_WIDTH, widths[0]), widths[0] - more)
        if widths[0] - given[0] >= more:
            break
        leaving = max(kept, key=lambda i: COLUMNS[i].drop_order)
        if COLUMNS[leaving].drop_order == 0:
            break
        kept.remove(leaving)
        given[0] = widths[0]
    return kept, given


def _styles(row: Row) -> list[str]:
    color = COLORS[STATE[row["state"]].family] if row["state"] else ""
    return [color if column.heading in ("state", "useful") else "" for column in COLUMNS]


def _line(texts: Sequence[str], kept: Iterable[int], widths: Sequence[int], styles: Sequence[str], base: str) -> Text:
    line = Text(style=base, no_wrap=True, overflow="ellipsis")
    for place, i in enumerate(kept):
        text = _cut(texts[i], widths[i])
        pad = " " * (widths[i] - cell_len(text))
        line.append(" " * GAP if place else "")
        line.append(pad + text if COLUMNS[i].figure else text + pad, style=styles[i] if styles else "")
    return line


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def detail(row: Row) -> Text:
    """One row in words: its workload, and what the last minutes were spent on."""
    workload = row["workload"]
    states = ", ".join(f"{state} {ratio(share)}" for state, share in row["states"].items())
    whose = [
        f"{workload['kind']} {workload['namespace']}/{workload['name']}",
        f"experiment {row['experiment']}" if row["experiment"] else "",
        f"run {row['run']}" if row["run"] and row["run"] != workload["name"] else "",
        f"user {row['user']}" if row["user"] else "",
    ]
    return Text(safe(f"{' · '.join(filter(None, whose))}: {states or 'no data yet'}"), style="dim", no_wrap=True)


def chosen_rows(rows: Sequence[Row], filter_text: str, sorting: Sorting) -> list[Row]:
    """The rows that contain the filter text, sorted."""
    word = filter_text.lower()
    found = [row for row in rows if word in _searched(row)] if word else list(rows)
    return sorted(found, key=sorting.key)


def _searched(row: Row) -> str:
    names = (row["workload"]["name"], row["workload"]["namespace"], row["run"], row["experiment"], row["team"])
    return "\n".join(str(one) for one in (*names, row["user"], row["state"]) if one).lower()


def safe(text: str) -> str:
    """Replaces control characters: names come from users, and a terminal would obey them."""
    return "".join(character if character.isprintable() else "·" for character in text)
