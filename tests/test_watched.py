"""A real training on one H200, watched by nothing but the agent: from its answers to the ledger and the findings.

tests/data/h200-agent was recorded by benchmarks/watched.py.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parent.parent
RECORDED = REPOSITORY / "tests" / "data" / "h200-agent"


@pytest.fixture(scope="module")
def watched() -> ModuleType:
    spec = importlib.util.spec_from_file_location("watched", REPOSITORY / "benchmarks" / "watched.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / "truth.json").read_text())
    return found


@pytest.fixture(scope="module")
def answer(watched: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = watched.explain(RECORDED)
    return found


def lasted_ms(truth: dict[str, Any], *states: str) -> int:
    return sum(one["to_ms"] - one["from_ms"] for one in truth["intervals"] if one["state"] in states)


def test_every_observable_state_has_its_time(answer: dict[str, Any], truth: dict[str, Any]) -> None:
    found = {row["state"]: row["gpu_ms"] for row in answer["states"]}
    for state, true_ms in (
        ("hang", lasted_ms(truth, "hang")),
        ("idle_held", lasted_ms(truth, "idle_held")),
        ("startup", lasted_ms(truth, "startup")),
        ("active", lasted_ms(truth, "train", "diverged")),
    ):
        assert found[state] == pytest.approx(true_ms, abs=6_000), state  # every edge is seen a scrape or two late


def test_planted_findings_are_found_without_false_alarms(answer: dict[str, Any]) -> None:
    assert [finding["cause"] for finding in answer["findings"]] == ["hang", "idle_held"]
    hang, idle = answer["findings"]
    assert "a spinning kernel" in hang["evidence"][0]
    assert "showed no activity" in idle["evidence"][0]
