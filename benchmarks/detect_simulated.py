"""Parts of benchmarks/detect.py: simulated nights with faults, and simulated days without any."""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from detect_table import Row, Tally, tallies, together

CALLED = {"sdk": "full", "gpu": "gpu", "kubernetes": "kubernetes"}
MS_PER_DAY = 86_400_000


class Nights(NamedTuple):
    """Similar nights: a scenario, a size, the best evidence, and how many of the requested seeds."""

    scenario: str
    gpus: int
    hours: int
    evidence: str
    part: float = 1.0  # of the seeds

    def seeds(self, args: argparse.Namespace) -> range:
        return range(args.first, args.first + max(1, round(self.part * args.seeds)))


NIGHTS = tuple(
    Nights("overnight", gpus, 12, evidence, part)
    for evidence, parts in (("sdk", (1.0, 0.3, 0.1)), ("gpu", (0.4, 0.2, 0.1)), ("kubernetes", (0.4, 0.2, 0.1)))
    for gpus, part in zip((304, 80, 1_000), parts, strict=True)
)
DAYS = tuple(
    Nights("quiet", gpus, 24, evidence, part)
    for evidence, parts in (("sdk", (0.2, 0.1)), ("gpu", (0.1, 0.05)), ("kubernetes", (0.1, 0.05)))
    for gpus, part in zip((304, 80), parts, strict=True)
)


class Night(NamedTuple):
    """What one night came to."""

    seed: int
    gpu_ms: int
    causes: dict[str, Tally]
    state_error: float
    notes: tuple[str, ...]


def explained(
    scenario: str, seed: int, gpus: int | None = None, hours: int | None = None, evidence: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Simulates a night, accounts for it and explains it: its truth, and how that compares with it."""
    from pyrometer.account.build.ledger import build
    from pyrometer.answers.score import ledger_cells, score, truth_window
    from pyrometer.answers.why import why
    from pyrometer.model.settings import Settings
    from pyrometer.simulate.night import simulate
    from pyrometer.store import Store

    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), create=True) as store:
        truth = simulate(store, scenario, seed=seed, gpus=gpus, hours=hours, evidence=evidence)
        window = truth_window(truth)
        build(store, Settings(), now_ms=window.to_ms)
        answer = why(store, window, Settings(), zone=UTC)
        return truth, score(truth, answer, ledger_cells(store, window))


def one_night(kind: Nights, seed: int) -> Night:
    """The part that is kept."""
    truth, scored = explained(kind.scenario, seed, kind.gpus, kind.hours, kind.evidence)
    return Night(
        seed,
        truth["total"]["gpu_ms"],
        tallies(truth["findings"], scored),
        scored["state_error"],
        tuple(_notes(seed, scored)),
    )


def _notes(seed: int, scored: dict[str, Any]) -> Iterator[str]:
    for what in ("missed", "wrong", "wrong_culprit"):
        for finding in scored[what]:
            beside = finding.get("title") or finding.get("found") or f"overlap {finding.get('overlap')}"
            yield (
                f"seed {seed}: {what} {finding['cause']} of {(finding['workload'] or {}).get('name')}, "
                f"{finding['from'][11:19]} to {finding['to'][11:19]}, ${finding['usd'] or 0:,.2f}, "
                f"{finding['culprit']}: {beside}"
            )


def row_of(part: str, nights: Sequence[Night], of: int, what: str, evidence: str) -> Row:
    """The nights together: every finding counts the same, and every night's state error."""
    causes = {cause: together(n.causes.get(cause, Tally()) for n in nights) for n in nights for cause in n.causes}
    return Row(
        part,
        what,
        evidence,
        "simulated",
        len(nights),
        of,
        sum(n.gpu_ms for n in nights) / MS_PER_DAY,
        dict(sorted(causes.items())),
        sum(n.state_error for n in nights) / len(nights),
        tuple(note for n in nights for note in n.notes),
    )


def nights(args: argparse.Namespace) -> Iterator[Row]:
    """Nights with faults, of several sizes and with more and less evidence."""
    yield from _all(args, "simulated", NIGHTS)


def days(args: argparse.Namespace) -> Iterator[Row]:
    """Days in which much happens and nothing goes wrong: whatever is found is a false alarm."""
    yield from _all(args, "clean", DAYS)


def _all(args: argparse.Namespace, part: str, kinds: Sequence[Nights]) -> Iterator[Row]:
    for kind in kinds:
        called = CALLED[kind.evidence]
        if (args.evidence and called not in args.evidence) or (args.gpus and kind.gpus not in args.gpus):
            continue
        seeds = kind.seeds(args)
        what = f"{kind.scenario}, {kind.gpus:,} GPUs, {kind.hours} h"
        done: list[Night] = []
        pool = ProcessPoolExecutor(args.processes, initializer=_stopped_by_parent)
        try:
            for night in pool.map(partial(one_night, kind), seeds):
                done.append(night)
                yield row_of(part, done, len(seeds), what, called)
        finally:
            pool.shutdown(cancel_futures=True)  # who stops it does not wait for all the others


def _stopped_by_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
