"""Answers as files: which question is behind each format, and how its answer becomes one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pyrometer.export.csv import as_text, cost_table
from pyrometer.export.focus import focus_table
from pyrometer.export.perfetto import perfetto

Answer = dict[str, Any]


class Download(NamedTuple):
    """A format of a file."""

    what: str  # the question
    text: Callable[[Answer], Iterator[str]]  # the file, piece by piece
    about: Callable[[Answer], str]  # what is in it, for its name
    kind: str = "text/csv"
    suffix: str = "csv"


def _window(answer: Answer) -> str:
    return f"{answer['window']['from']}-{answer['window']['to']}"


def _step(answer: Answer) -> str:
    return f"{answer['run']}-{answer['step']}"


CHARGEBACK = {
    "csv": Download("cost", lambda answer: as_text(cost_table(answer)), _window),
    "focus": Download("charges", lambda answer: as_text(focus_table(answer)), _window),
}
DOWNLOADS = {
    **CHARGEBACK,
    "perfetto": Download(
        "trace", lambda answer: iter([json.dumps(perfetto(answer))]), _step, "application/json", "json"
    ),
}


def file_name(form: str, answer: Answer) -> str:
    """As `pyrometer-csv-2026-11-01T000000Z-2026-12-01T000000Z.csv`: nothing in it that a shell or a header minds."""
    download = DOWNLOADS[form]
    return re.sub(r"[^A-Za-z0-9.+-]", "", f"pyrometer-{form}-{download.about(answer)[:100]}.{download.suffix}")
