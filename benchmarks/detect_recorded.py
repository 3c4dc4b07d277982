"""A part of benchmarks/detect.py: recordings of a real GPU, with steps and with GPU telemetry alone."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

from detect_table import Row, tallies

RECORDINGS = Path(__file__).parent.parent / "tests" / "data"
FOLDERS = ("h200", "h200-more")  # detectors were developed with the first; the others are newer


def recordings(args: argparse.Namespace) -> Iterator[Row]:
    """Each folder of recordings."""
    for folder in FOLDERS:
        for evidence in args.evidence or ("full", "gpu"):
            if evidence == "kubernetes":
                continue
            names = [
                path.name.removesuffix("-truth.json") for path in sorted((RECORDINGS / folder).glob("*-truth.json"))
            ]
            truth, scored = explained(RECORDINGS / folder, with_steps=evidence == "full")
            notes = [f"{what} {f['cause']} {f['from']}" for what in ("missed", "wrong") for f in scored[what]]
            days = sum(cell["gpu_ms"] for cell in truth["cells"]) / 86_400_000
            yield Row(
                "recorded",
                f"H200: {', '.join(names)}",
                evidence,
                "recorded",
                len(names),
                len(names),
                days,
                tallies(truth["findings"], scored),
                scored["state_error"],
                tuple(notes),
            )


def explained(path: Path, *, with_steps: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads recordings, accounts for them and explains them: their truth, and how that compares with it."""
    from pyrometer.account.build.ledger import build
    from pyrometer.answers.score import ledger_cells, score, truth_window
    from pyrometer.answers.why import why
    from pyrometer.collect.source import drain
    from pyrometer.model.settings import Settings
    from pyrometer.store import Store
    from pyrometer_datasets.recorded_truth import recorded_truth
    from pyrometer_datasets.recording import SETTINGS, Recordings

    async def read(store: Store) -> None:
        async for _ in drain(Recordings(path, with_steps=with_steps), store):
            pass

    settings = Settings(**SETTINGS)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), create=True) as store:
        asyncio.run(read(store))
        truth = recorded_truth(path, with_steps=with_steps)
        window = truth_window(truth)
        build(store, settings, now_ms=window.to_ms)
        answer = why(store, window, settings, zone=UTC)
        return truth, score(truth, answer, ledger_cells(store, window))
