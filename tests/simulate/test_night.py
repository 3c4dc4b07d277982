"""Simulated folders: stored records, their ledger, and the accuracy of findings."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC
from pathlib import Path

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.checks.check_list import problems
from pyrometer.answers.score import ledger_cells, score, truth_window
from pyrometer.answers.why import why
from pyrometer.model.settings import Settings
from pyrometer.simulate.night import simulate
from pyrometer.simulate.scenarios import SCENARIOS
from pyrometer.store import Store

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A night of a small cluster with its ledger."""
    with Store(tmp_path_factory.mktemp("night") / "data", create=True) as store:
        truth = simulate(store, "hang", seed=4, hours=4)
        build(store, Settings(), now_ms=truth_window(truth).to_ms)
        yield store, truth


def test_simulated_folder_has_the_records_of_all_sources(night):
    store, truth = night
    kinds = {part.kind for part in store.parts()}
    assert kinds >= {
        "node",
        "slot",
        "pod",
        "owner",
        "workload",
        "allocation",
        "gpu_sample",
        "run",
        "step_window",
        "span",
        "batch",
        "metric",
        "event",
        "price",
    }
    assert json.loads((store.folder / "truth.json").read_text()) == truth
    assert store.rejections() == {}


def test_late_rows_are_separate_parts_and_repeats_count_once(night):
    store, _ = night
    hours = [part.from_ms for part in store.parts("gpu_sample")]
    assert len(hours) > len(set(hours))
    store.expose_all(["gpu_sample"])
    rows = store.connection.execute(
        "SELECT count(*), count(DISTINCT (node_uid, slot_index, time_ms)) FROM gpu_sample"
    ).fetchone()
    assert rows[0] == rows[1]


def test_simulated_ledger_passes_the_check_and_matches_the_truth(night):
    store, truth = night
    assert list(problems(store)) == []
    answer = why(store, truth_window(truth), Settings(), zone=UTC)
    assert answer["total"]["gpu_ms"] == truth["total"]["gpu_ms"]
    assert answer["total"]["usd_micro"] == pytest.approx(truth["total"]["usd_micro"], rel=1e-6)
    assert answer["evidence"]["kubernetes"] == 1.0


def test_resumed_attempt_continues_from_its_last_checkpoint(night):
    store, _ = night
    store.expose_all(["run", "event", "step_window"])
    rows = store.connection.execute(
        "SELECT run, attempt, max(resumed_step) FROM run WHERE resumed_step IS NOT NULL GROUP BY ALL"
    ).fetchall()
    assert rows
    for run, attempt, resumed in rows:
        saved, first = (
            store.connection.execute(query, [run, attempt]).fetchone()[0]
            for query in (
                "SELECT max(step) FROM event WHERE kind = 'checkpoint_saved' AND run = ? AND attempt < ?",
                "SELECT min(first_step) FROM step_window WHERE run = ? AND attempt = ?",
            )
        )
        assert resumed == saved == first


@pytest.mark.parametrize(("scenario", "hidden"), [("gpu_only", "step_window"), ("kube_only", "gpu_sample")])
def test_less_evidence_omits_the_records_of_its_sources(tmp_path, monkeypatch, scenario, hidden):
    small = SCENARIOS[scenario]._replace(make=lambda seed, gpus=None: SCENARIOS["overnight"].make(seed, 80, 4))
    monkeypatch.setitem(SCENARIOS, scenario, small)
    with Store(tmp_path / "data", create=True) as store:
        truth = simulate(store, scenario)
        kinds = {part.kind for part in store.parts()}
        assert hidden not in kinds
        assert "run" not in kinds
        assert "pod" in kinds
        window = truth_window(truth)
        build(store, Settings(), now_ms=window.to_ms)
        answer = why(store, window, Settings(), zone=UTC)
        scored = score(truth, answer, ledger_cells(store, window))
    shown = {row["state"] for row in answer["states"]}
    assert not shown & {"train", "data_stall", "straggler_wait", "comm_stall", "lost_work", "checkpoint", "evaluate"}
    assert scored["state_error"] < 0.02
    if scenario == "kube_only":
        assert shown <= {"unobserved", "startup", "gang_wait", "free", "unhealthy"}


# -- how right it is --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explained():
    """The evaluation of benchmarks/detect.py, which covers more nights."""
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        yield importlib.import_module("detect_simulated").explained
    finally:
        sys.path.remove(str(REPOSITORY / "benchmarks"))


@pytest.mark.heavy
def test_findings_of_simulated_nights_match_the_truth(explained):
    nights = [explained("overnight", seed)[1] for seed in (1, 2)]
    counts = {name: sum(row[name] for n in nights for row in n["causes"]) for name in ("planted", "found", "matched")}
    assert counts["matched"] >= 0.9 * max(counts["planted"], counts["found"]) > 0
    assert min(night["culprit"] for night in nights) >= 0.9
    assert max(night["state_error"] for night in nights) <= 0.02
    whole = sum(row["truth_gpu_ms"] for night in nights for row in night["states"])
    for row in (row for night in nights for row in night["states"]):
        off = abs(row["found_gpu_ms"] - row["truth_gpu_ms"])
        assert off <= max(0.05 * row["truth_gpu_ms"], 0.002 * whole), row["state"]


@pytest.mark.heavy
def test_quiet_nights_have_no_findings(explained):
    for seed in (1, 2):
        _, scored = explained("quiet", seed)
        assert scored["wrong"] == []
        assert scored["state_error"] <= 0.02
