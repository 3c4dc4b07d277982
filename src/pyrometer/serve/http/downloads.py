"""Answers as files: the question behind each format, and how its answer is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pyrometer.export.csv import cost_table, render_csv
from pyrometer.export.focus import COLUMN_KINDS, focus_table
from pyrometer.export.parquet import COST_KINDS, render_parquet
from pyrometer.export.perfetto import perfetto_trace

Answer = dict[str, Any]
CSV, PARQUET = FILES = ("csv", "parquet")  # formats of the rows of a table


class Download(NamedTuple):
    """A format that can be downloaded."""

    what: str  # the question
    text: Callable[[Answer], Iterator[str]]  # the content of the file, piece by piece
    about: Callable[[Answer], str]  # the part of the file name that names the content
    kind: str = "text/csv"
    suffix: str = "csv"
    parquet: Callable[[Answer], Iterator[bytes]] | None = None  # the same rows as Parquet

    def written_as(self, form: str | None) -> tuple[Callable[[Answer], Iterator[str] | Iterator[bytes]], str, str]:
        """How the answer is written as one of `FILES`, its media type, and the suffix of its name."""
        if form == PARQUET and self.parquet is not None:
            return self.parquet, "application/vnd.apache.parquet", PARQUET
        return self.text, self.kind, self.suffix


def _window(answer: Answer) -> str:
    return f"{answer['window']['from']}-{answer['window']['to']}"


def _step(answer: Answer) -> str:
    return f"{answer['run']}-{answer['step']}"


CHARGEBACK = {
    "csv": Download(
        "cost",
        lambda answer: render_csv(cost_table(answer)),
        _window,
        parquet=lambda answer: render_parquet(cost_table(answer), COST_KINDS),
    ),
    "focus": Download(
        "charges",
        lambda answer: render_csv(focus_table(answer)),
        _window,
        parquet=lambda answer: render_parquet(focus_table(answer), COLUMN_KINDS),
    ),
}
DOWNLOADS = {
    **CHARGEBACK,
    "perfetto": Download(
        "trace", lambda answer: iter([json.dumps(perfetto_trace(answer))]), _step, "application/json", "json"
    ),
}


def file_name(form: str, answer: Answer, suffix: str) -> str:
    """Like `pyrometer-csv-2026-11-01T000000Z-2026-12-01T000000Z.csv`: nothing that a shell or a header would quote."""
    download = DOWNLOADS[form]
    return re.sub(r"[^A-Za-z0-9.+-]", "", f"pyrometer-{form}-{download.about(answer)[:100]}.{suffix}")
