"""`pyrometer score`: a simulated folder compared with its truth, as text and JSON."""

from __future__ import annotations

import json
import shutil
from datetime import UTC

import pytest

from pyrometer.account.query.answer_json import iso
from pyrometer.store import Store
from tests.support.clusters import at, cluster, event, job, run, steps

CONTRACT = {"precision", "recall", "culprit", "state_error", "usd_error", "detect_s_p90", "causes"}


def planted(cause, from_min, to_min, usd, **more):
    workload = {"uid": "llama", "kind": "PyTorchJob", "namespace": "ml", "name": "llama"}
    return {
        "cause": cause,
        "workload": workload,
        "experiment": "llama-sft",
        "team": "nlp",
        "culprit": None,
        "from": iso(at(from_min), UTC),
        "to": iso(at(to_min), UTC),
        "gpu_ms": 1,
        "usd_micro": round(usd * 1e6),
        "usd": usd,
        "detectable": True,
    } | more


def cell(state, hour, minutes):
    return {"workload_uid": "llama", "hour": iso(at(60 * hour), UTC), "state": state, "gpu_ms": minutes * 60_000}


TRUTH = {
    "scenario": "hang",
    "seed": 7,
    "evidence": "full",
    "window": {"from": iso(at(0), UTC), "to": iso(at(120), UTC)},
    "findings": [planted("hang", 40, 120, 19.2, culprit={"rank": 1}), planted("straggler", 0, 40, 4.8)],
    "cells": [cell("train", 0, 160), cell("hang", 0, 80), cell("hang", 1, 240)],
}


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """A folder with a hang, and a truth with one more fault."""
    folder = tmp_path_factory.mktemp("simulated") / "data"
    reports = [event("stuck", 40, rank, step=3999 - (rank == 2)) for rank in range(4)]
    windows = [w for rank in range(4) for w in steps(rank, 0, 40, forward_ms=60_000)]
    with Store(folder, create=True) as store:
        store.append([*cluster(), *job(), *run(), *windows, *reports])
    (folder / "truth.json").write_text(json.dumps(TRUTH))
    return folder


def test_score_json_has_the_documented_keys(cached_pyrometer, simulated):
    answer = cached_pyrometer("score", simulated, "-o", "json").json
    assert answer.keys() >= CONTRACT
    assert (answer["precision"], answer["recall"], answer["culprit"]) == (1.0, 0.5, 0.0)
    assert (answer["state_error"], answer["usd_error"], answer["detect_s_p90"]) == (0.0, 0.2, 60.0)
    assert (answer["scenario"], answer["seed"], answer["origin"]) == ("hang", 7, "simulated")
    assert all({"cause", "precision", "recall", "found", "planted"} <= row.keys() for row in answer["causes"])
    assert [finding["cause"] for finding in answer["missed"]] == ["straggler"]
    assert answer["wrong"] == []


def test_score_table_prints_a_summary(cached_pyrometer, simulated):
    lines = cached_pyrometer("score", simulated).lines
    assert lines[0] == "Simulated: hang, seed 7, evidence: full"
    assert lines[1] == "findings: precision 100.0%, recall 50.0%, culprit 0.0%"
    assert lines[2] == "error: states 0.0%, dollars 20.0%"
    assert lines[3] == "time to detect, p90: 1 min"
    assert [line.split() for line in lines[5:8]] == [
        ["cause", "right", "found", "planted"],
        ["hang", "1", "1", "1"],
        ["straggler", "0", "0", "1"],
    ]
    assert lines[9] == "missed  straggler of ml/llama, Fri 20:00:00 – 20:40:00, $4.80, no culprit"
    accused = " ".join(lines[10:])
    assert accused.startswith("culprit hang of ml/llama, Fri 20:40:00 – 22:00:00, $19, rank 1; found: rank")
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no truth.json: only folders made by `simulate` or `import recording` can be"),
        ("{", "is not JSON"),
        ("[]", "contains no truth"),
        ("{}", "cannot be used: its window lacks 'from' or 'to'."),
        (json.dumps(TRUTH | {"evidence": "none"}), "cannot be used: its evidence is 'none'"),
    ],
)
def test_invalid_truth_is_a_one_line_error(pyrometer, simulated, tmp_path, text, message):
    folder = shutil.copytree(simulated, tmp_path / "copy")
    (folder / "truth.json").unlink()
    if text is not None:
        (folder / "truth.json").write_text(text)
    assert message in pyrometer("score", folder).failed(1)


def test_score_of_another_folder_is_an_error(pyrometer, tmp_path):
    assert "is not a Pyrometer data folder" in pyrometer("score", tmp_path).failed(1)
