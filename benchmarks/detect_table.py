"""The results of the parts of benchmarks/detect.py, and their table.

A part is a function that is given the command's arguments and yields rows. It may yield a row again once it knows more:
the last one with the same name counts, so that results survive an interrupted run.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

MARKS = ("simulated", "recorded", "live")


class Tally(NamedTuple):
    """Findings of one cause: how many there were to find, were found, and were right; of those whose culprit is known,
    how many there were, and how many named it."""

    planted: int = 0
    found: int = 0
    right: int = 0
    named: int = 0
    named_right: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*map(sum, zip(self, other, strict=True)))

    @property
    def precision(self) -> float | None:
        return self.right / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        return self.right / self.planted if self.planted else None

    @property
    def culprit(self) -> float | None:
        return self.named_right / self.named if self.named else None


class Row(NamedTuple):
    """One line of the table: how right `why` was about some nights, recordings or runs that are alike."""

    part: str
    what: str
    evidence: str  # full, gpu, kubernetes
    marked: str  # one of MARKS
    cases: int  # nights, recordings, runs
    of: int  # how many there will be
    gpu_days: float
    causes: Mapping[str, Tally]
    state_error: float | None = None
    notes: tuple[str, ...] = ()  # what was missed, wrong, or blamed on another run or node
    runs: tuple[str, ...] = ()  # a line of the table of live runs for each

    @property
    def name(self) -> tuple[str, ...]:
        return self[:4]

    @property
    def all_causes(self) -> Tally:
        return together(self.causes.values())


class Part(Protocol):
    def __call__(self, args: argparse.Namespace) -> Iterator[Row]: ...


def together(tallies: Iterable[Tally]) -> Tally:
    """Their sums."""
    whole = Tally()
    for tally in tallies:
        whole = whole.plus(tally)
    return whole


def tallies(truth: Iterable[Mapping[str, Any]], scored: Mapping[str, Any]) -> dict[str, Tally]:
    """What one score says, by cause; `truth` is what was planted there."""
    named = Counter(f["cause"] for f in truth if f.get("detectable", True) and f.get("culprit"))
    named.subtract(f["cause"] for f in scored["missed"] if f["culprit"])
    wrong = Counter(f["cause"] for f in scored["wrong_culprit"])
    return {
        row["cause"]: Tally(
            row["planted"], row["found"], row["matched"], named[row["cause"]], named[row["cause"]] - wrong[row["cause"]]
        )
        for row in scored["causes"]
    }


def markdown(rows: Iterable[Row]) -> str:
    """All rows, and below them each cause by evidence."""
    rows = list(rows)
    lines = [
        "| what | evidence | | cases | GPU-days | found | precision | recall | culprit | state error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        whole = row.all_causes
        stopped = "" if row.cases >= row.of else f" of {row.of}"
        lines.append(
            f"| {row.what} | {row.evidence} | {row.marked} | {row.cases}{stopped} | {_days(row.gpu_days)} "
            f"| {whole.found} | {_percent(whole.precision)} | {_percent(whole.recall)} | {_percent(whole.culprit)} "
            f"| {_percent(row.state_error, 2)} |"
        )
    planted = [row for row in rows if row.all_causes.planted]
    for marked in MARKS:
        columns = list(dict.fromkeys(row.evidence for row in planted if row.marked == marked))
        if columns:
            lines += ["", *_by_cause([row for row in planted if row.marked == marked], marked, columns)]
    runs = [line for row in rows for line in row.runs]
    if runs:
        lines += [
            "",
            "| live run | planted | found | culprit | found after | steps |",
            "|---|---|---|---|---|---|",
            *runs,
        ]
    return "\n".join(lines) + "\n"


def _by_cause(rows: list[Row], marked: str, columns: list[str]) -> Iterator[str]:
    """Right of found and right of planted, over all rows of an evidence together."""
    causes: dict[tuple[str, str], Tally] = {}
    for row in rows:
        for cause, tally in row.causes.items():
            key = cause, row.evidence
            causes[key] = causes.get(key, Tally()).plus(tally)
    yield (
        f"| cause ({marked}) | "
        + " | ".join(f"{evidence}: precision | recall | culprit" for evidence in columns)
        + " |"
    )
    yield "|---" * (1 + 3 * len(columns)) + "|"
    for cause in sorted({cause for cause, _ in causes}):
        cells = []
        for evidence in columns:
            tally = causes.get((cause, evidence), Tally())
            cells += [
                _of(tally.right, tally.found),
                _of(tally.right, tally.planted),
                _of(tally.named_right, tally.named),
            ]
        yield f"| `{cause}` | " + " | ".join(cells) + " |"


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 1 else f"{days:.3f}"


def _of(part: int, whole: int) -> str:
    return f"{_percent(part / whole)} ({part}/{whole})" if whole else "–"


def _percent(share: float | None, places: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{places}f} %"
