"""Findings like those of `why`, and their lifecycle, for tests of notifications."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from pyrometer.account.query.answer_json import iso
from pyrometer.act.finding_lifecycle import FindingTracker
from tests.support.clusters import MINUTE, START_MS


def finding(
    name: str = "aaaaaaaaaaaa",
    *,
    cause: str = "straggler",
    usd: float = 100.0,
    since: int = 0,
    to: int = 60,
    **more: Any,
) -> dict[str, Any]:
    """A finding from one minute of the night to another."""
    return {
        "id": name,
        "cause": cause,
        "title": f"{name} waited for rank 7",
        "team": "nlp",
        "experiment": "sft",
        "workload": {"uid": name, "kind": "PyTorchJob", "namespace": "ml", "name": "llama"},
        "owner_uid": name,
        "culprit": {"rank": 7, "node": "n0"},
        "from": iso(START_MS + since * MINUTE, UTC),
        "to": iso(START_MS + to * MINUTE, UTC),
        "gpu_ms": round(usd * 1_000_000),
        "confidence": 0.9,
        "usd_micro": round(usd * 1_000_000),
        "usd": usd,
        "evidence": ["it was late"],
        "suggestion": "Move it.",
        "what_if": {"sentence": None},
        "ended": False,
    } | more


def answer(at_min: int, *findings: dict[str, Any]) -> dict[str, Any]:
    """The answer of `why` when the ledger ends at a minute."""
    window = {"from": iso(START_MS, UTC), "to": iso(START_MS + at_min * MINUTE, UTC)}
    return {"window": window, "findings": list(findings)}


class FindingHistory:
    """The findings of a server over several updates."""

    def __init__(self) -> None:
        self.lives = FindingTracker()

    def look(self, at_min: int, *findings: dict[str, Any]) -> list[Any]:
        """All findings after another update."""
        self.lives.look(answer(at_min, *findings))
        return self.lives.all()
