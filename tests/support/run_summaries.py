"""Answers of `show` and `why` for one run, for tests of run summaries."""

from __future__ import annotations

from datetime import UTC

from pyrometer.account.query.answer_json import iso
from tests.support.clusters import at

WORKLOAD = {"uid": "llama", "kind": "PyTorchJob", "namespace": "ml", "name": "llama"}


FINDING = {"id": "f1", "cause": "hang", "usd_micro": 2_000_000, "title": "llama hung for 4 min.", "workload": WORKLOAD}


def shown(ended_min: float | None = 60, **more):
    """The answer of `show`, of a run that pays a dollar every ten minutes and speaks twice a minute."""
    points = [
        [step, at(step / 2), 1 / (step + 1), 60_000 * step, 50_000 * step] for step in range(2 * int(ended_min or 60))
    ]
    return {
        "run": "carp",
        "experiment": "sft",
        "team": "nlp",
        "workload": WORKLOAD,
        "attempts": 2,
        "outcome": "succeeded",
        "ended": None if ended_min is None else iso(at(ended_min), UTC),
        "gpu_ms": 7_200_000,
        "gpu_hours": 2.0,
        "usd_micro": 6_000_001,
        "usd": 6.0,
        "goodput": 0.75,
        "steps": 119,
        "metrics": {"loss": points, "lr": points[:1]},
        "states": [
            {"state": "train", "family": "useful", "gpu_ms": 5_400_000, "usd_micro": 4_500_001},
            {"state": "hang", "family": "waste", "gpu_ms": 1_800_000, "usd_micro": 1_500_000},
        ],
        **more,
    }
