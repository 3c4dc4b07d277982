"""Tables, cells and texts of the HTML report, and the answer in the form in which its sections need it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyrometer.model.human import duration
from pyrometer.model.states import FAMILIES, state_title
from pyrometer.model.units import MS_PER_SECOND
from pyrometer.render import svg
from pyrometer.render.amounts import Measure, gpu_hours
from pyrometer.render.svg import BarPart, escaped, stacked_bar


class ReportContext(NamedTuple):
    """The answer, with the values that every section needs."""

    answer: dict[str, Any]
    measure: Measure
    clock: svg.Clock
    window: svg.TimeAxis
    total: int
    states: list[int]
    families: dict[str, int]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> ReportContext:
        """A family is the sum of its states."""
        measure = Measure.of(answer["total"])
        states = measure.amounts(answer["states"])
        families = dict.fromkeys(FAMILIES, 0)
        for row, amount in zip(answer["states"], states, strict=True):
            family = row["family"] if row["family"] in families else "unknown"
            families[family] += amount
        return cls(
            answer=answer,
            measure=measure,
            clock=svg.Clock.of(answer["timezone"]),
            window=interval_of(answer["window"]),
            total=answer["total"][measure.key],
            states=states,
            families=families,
        )


def html_table(css_class: str, heads: Sequence[tuple[str, str]], rows: Sequence[str]) -> str:
    """A table. Its cells are HTML; its heads are (text, CSS class)."""
    head = "".join(f'<th scope="col" class="{css}"><span>{escaped(name)}</span></th>' for name, css in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="{css_class}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def text_cell(text: str, css_class: str = "n") -> str:
    """A cell with text."""
    return f'<td class="{css_class}">{escaped(text)}</td>'


def chart_cell(parts: Sequence[BarPart], whole: int, label: str) -> str:
    """A cell with a stacked bar."""
    return f'<td class="chart">{stacked_bar(parts, whole, label)}</td>'


def amount_heads(page: ReportContext) -> list[tuple[str, str]]:
    """The heads of the columns that `amount_cells` fills."""
    return [("Spent", "n"), ("GPU-hours", "n hours")] if page.measure.is_money else [("GPU-hours", "n")]


def amount_cells(page: ReportContext, row: dict[str, Any], amount: int) -> str:
    """An amount and its GPU-hours. Time without a price is shown as such, not as zero."""
    number = "no price" if row[page.measure.key] is None else page.measure.number(amount)
    return text_cell(number) + (text_cell(gpu_hours(row["gpu_ms"]), "n hours") if page.measure.is_money else "")


def state_label(state: str) -> str:
    """The shown name of a state, with its color."""
    return f'<i class="key {svg.state_class(state)}"></i>{escaped(state_title(state))}'


def workload_name(workload: dict[str, Any] | None) -> str:
    """The namespace and the name of a workload."""
    return f"{foreign_text(workload['namespace'])}/<wbr>{foreign_text(workload['name'])}" if workload else "Unallocated"


def foreign_text(text: object) -> str:
    """Text from users or pods; `bdi` isolates its writing direction."""
    if isinstance(text, list | tuple):
        text = ", ".join(str(part) for part in text)
    return f"<bdi>{escaped(text)}</bdi>" if text is not None and text != "" else ""


def spaced(name: str) -> str:
    """A code name with spaces."""
    return name.replace("_", " ")


def interval_of(row: dict[str, Any]) -> svg.TimeAxis:
    """The interval of a row."""
    return svg.TimeAxis(time_ms_of(row["from"]), time_ms_of(row["to"]))


def time_ms_of(iso: str) -> int:
    """An ISO 8601 time in milliseconds."""
    return round(datetime.fromisoformat(iso).timestamp() * MS_PER_SECOND)


def gpu_count(count: float) -> str:
    """A number of GPUs."""
    return "0" if count == 0 else f"{count:,.0f}" if count >= 9.95 else f"{count:.1f}"


def unbroken_duration(duration_ms: int) -> str:
    """A duration without line breaks."""
    return duration(duration_ms).replace(" ", "\u00a0")
