"""A run of a pipeline by its steps: cost, attempts and findings."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.fleet.pipeline import PipelineNotFoundError, show_pipeline
from pyrometer.model.records import Event, PipelineRun, PipelineStep, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, PRICE_USD_MICRO, START_MS, all_ranks, at, cluster, job, pod, run

WINDOW = TimeRange(START_MS, START_MS + 2 * HOUR)
USD_AN_HOUR = PRICE_USD_MICRO  # of one GPU
FLOW = PipelineRun(at(0), "test", "run-1", "flow", "ml", "nightly", "retrain", "running", at(0))


def step(
    name: str, attempt: int, state: str, from_min: float, to_min: float | None = None, **more: Any
) -> PipelineStep:
    ended_ms = None if to_min is None else at(to_min)
    return PipelineStep(at(to_min or from_min), "run-1", name, attempt, state, at(from_min), ended_ms, **more)


def flow_pod(
    name: str, node: str, what: str, attempt: int, from_min: float, to_min: float | None, **more: Any
) -> list[Any]:
    part = {"pipeline_run": "run-1", "pipeline_step": what, "pipeline_attempt": attempt, "attempt": attempt}
    return pod(name, "flow", node, from_min=from_min, to_min=to_min, **part, **more)


PIPELINE = [
    *cluster(),
    FLOW,
    Workload(START_MS, "test", "flow", "Workflow", "ml", "retrain-x", team="nlp", experiment="nightly"),
    step("prepare", 1, "succeeded", 0, 5),
    step("canary", 1, "skipped", 115, 115),
    step("train", 1, "failed", 5, 30, message="main: Error (exit code 1)\nmore"),
    step("train", 2, "running", 30),
    *flow_pod("train-0", "n0", "train", 1, 5, 30),
    *flow_pod("train-1", "n0", "train", 2, 30, None),
    *job("llama", pods=1, from_min=60, to_min=90),
    *job("other", pods=0),
    *pod("mine", "other", "n1", gpus=1),
]


def stored(folder: Path, records: list[Any]) -> Store:
    store = Store(folder, create=True)
    store.append(records)
    build(store, Settings(), now_ms=WINDOW.to_ms)
    return store


def shown(folder: Path, records: list[Any], name: str = "nightly") -> dict[str, Any]:
    with stored(folder, records) as store:
        return show_pipeline(store, name, WINDOW, Settings(), zone=UTC)


def test_show_pipeline_lists_steps_with_their_cost(tmp_path: Path) -> None:
    records = [row for row in PIPELINE if getattr(row, "pod_uid", "") != "llama-0"]
    answer = shown(tmp_path, records)["pipeline"]
    assert (answer["id"], answer["name"], answer["pipeline"], answer["state"]) == (
        "run-1",
        "nightly",
        "retrain",
        "running",
    )
    steps = {row["step"]: row for row in answer["steps"]}
    assert list(steps) == ["prepare", "train", "canary"]
    assert {name: row["state"] for name, row in steps.items()} == {
        "prepare": "succeeded",
        "train": "running",
        "canary": "skipped",
    }
    first, second = steps["train"]["attempts"]
    assert (first["state"], first["duration_ms"], first["message"]) == (
        "retried",
        25 * 60_000,
        "main: Error (exit code 1)\nmore",
    )
    assert first["usd_micro"] == 2 * USD_AN_HOUR * 25 // 60
    assert (second["state"], second["ended"], second["usd_micro"]) == ("running", None, 2 * USD_AN_HOUR * 90 // 60)
    assert steps["train"]["usd_micro"] == answer["total"]["usd_micro"] == first["usd_micro"] + second["usd_micro"]
    assert (steps["prepare"]["usd_micro"], steps["prepare"]["goodput"]) == (0, None)
    assert steps["train"]["workloads"] == [{"uid": "flow", "kind": "Workflow", "namespace": "ml", "name": "retrain-x"}]
    assert answer["teams"] == ["nlp"]


def test_job_of_a_step_has_its_own_attempts(tmp_path: Path) -> None:
    part = {"pipeline_run": "run-1", "pipeline_step": "llama"}
    records = [
        row._replace(**part) if getattr(row, "pod_uid", "") == "llama-0" and hasattr(row, "phase") else row
        for row in PIPELINE
    ]
    (row,) = [row for row in shown(tmp_path, records)["pipeline"]["steps"] if row["step"] == "llama"]
    assert (row["state"], row["duration_ms"], row["usd_micro"]) == (
        "succeeded",
        30 * 60_000,
        USD_AN_HOUR // 2,
    )  # it shares
    assert row["workloads"][0]["kind"] == "PyTorchJob"


def test_findings_belong_to_the_step_of_their_pods(tmp_path: Path) -> None:
    ours = {"pipeline_run": "run-1", "pipeline_step": "train"}
    records = [row._replace(**ours) if hasattr(row, "phase") else row for row in job()]
    silent = [*cluster(), FLOW, *records, *run(), *all_ranks(0, 30)]  # and then it does not report any more
    stuck = [Event(at(31), "stuck", run="run", attempt=1, rank=rank, reason="backward") for rank in range(4)]
    answer = shown(tmp_path, [*silent, *stuck])
    assert [(one["cause"], one["step"]) for one in answer["findings"]] == [("hang", "train")]
    (row,) = answer["pipeline"]["steps"]
    assert row["findings"] == [answer["findings"][0]["id"]]
    assert row["wasted_usd_micro"] > 0.7 * row["usd_micro"]
    assert answer["pipeline"]["total"]["goodput"] == row["goodput"] == pytest.approx(0.25, abs=0.02)


def test_show_pipeline_finds_a_run_by_name_or_id(tmp_path: Path) -> None:
    again = FLOW._replace(run_id="run-2", time_ms=at(1), started_ms=at(1))
    with stored(tmp_path, [*PIPELINE, again]) as store:
        for name, run_id in (("run-1", "run-1"), ("nightly (run-1)", "run-1"), ("nightly", "run-2")):
            answer = show_pipeline(store, name, WINDOW, Settings(), zone=UTC, findings=False)["pipeline"]
            assert (answer["id"], answer["name"]) == (run_id, f"nightly ({run_id})")
        with pytest.raises(PipelineNotFoundError) as error:
            show_pipeline(store, "weekly", WINDOW, Settings(), zone=UTC)
        assert set(error.value.recorded) == {"nightly (run-1)", "nightly (run-2)"}
