"""What runs of pipelines and sweeps are made of: steps and trials with their states, and dollars that add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.cost import cost
from pyrometer.account.query.groupings import KUBEFLOW_GROUPINGS
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.worth import worth
from pyrometer.answers.fleet.pipeline import PipelineNotFoundError, show_pipeline
from pyrometer.answers.fleet.sweep import SweepNotFoundError, show_sweep
from pyrometer.answers.runs.overview import runs, show
from pyrometer.model.records import Event, Metric, PipelineRun, PipelineStep, Sweep, Trial, Workload
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


def test_a_run_of_a_pipeline_by_its_steps(tmp_path: Path) -> None:
    records = [row for row in PIPELINE if getattr(row, "pod_uid", "") != "llama-0"]
    told = shown(tmp_path, records)["pipeline"]
    assert (told["id"], told["name"], told["pipeline"], told["state"]) == ("run-1", "nightly", "retrain", "running")
    steps = {row["step"]: row for row in told["steps"]}
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
    assert steps["train"]["usd_micro"] == told["total"]["usd_micro"] == first["usd_micro"] + second["usd_micro"]
    assert (steps["prepare"]["usd_micro"], steps["prepare"]["goodput"]) == (0, None)
    assert steps["train"]["workloads"] == [{"uid": "flow", "kind": "Workflow", "namespace": "ml", "name": "retrain-x"}]
    assert told["teams"] == ["nlp"]


def test_a_job_of_its_own_is_a_step_with_its_own_attempts(tmp_path: Path) -> None:
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


def test_findings_are_of_the_step_that_was_there(tmp_path: Path) -> None:
    ours = {"pipeline_run": "run-1", "pipeline_step": "train"}
    records = [row._replace(**ours) if hasattr(row, "phase") else row for row in job()]
    silent = [*cluster(), FLOW, *records, *run(), *all_ranks(0, 30)]  # and then nothing more is heard of it
    stuck = [Event(at(31), "stuck", run="run", attempt=1, rank=rank, reason="backward") for rank in range(4)]
    answer = shown(tmp_path, [*silent, *stuck])
    assert [(one["cause"], one["step"]) for one in answer["findings"]] == [("hang", "train")]
    (row,) = answer["pipeline"]["steps"]
    assert row["findings"] == [answer["findings"][0]["id"]]
    assert row["wasted_usd_micro"] > 0.7 * row["usd_micro"]
    assert answer["pipeline"]["total"]["goodput"] == row["goodput"] == pytest.approx(0.25, abs=0.02)


def test_a_run_has_a_name_an_id_and_both_where_names_are_not_enough(tmp_path: Path) -> None:
    again = FLOW._replace(run_id="run-2", time_ms=at(1), started_ms=at(1))
    with stored(tmp_path, [*PIPELINE, again]) as store:
        for name, run_id in (("run-1", "run-1"), ("nightly (run-1)", "run-1"), ("nightly", "run-2")):
            told = show_pipeline(store, name, WINDOW, Settings(), zone=UTC, findings=False)["pipeline"]
            assert (told["id"], told["name"]) == (run_id, f"nightly ({run_id})")
        with pytest.raises(PipelineNotFoundError) as error:
            show_pipeline(store, "weekly", WINDOW, Settings(), zone=UTC)
        assert set(error.value.recorded) == {"nightly (run-1)", "nightly (run-2)"}


# -- sweeps -----------------------------------------------------------------------------------------------------------


def trial(number: int, state: str, value: float | None, from_min: float, to_min: float | None) -> list[Any]:
    uid, ended_ms = f"trial-{number}", None if to_min is None else at(to_min)
    told = Trial(
        at(to_min or from_min),
        uid,
        "sweep",
        "ml",
        f"t{number}",
        state,
        json.dumps({"lr": str(number)}),
        value,
        started_ms=at(from_min),
        ended_ms=ended_ms,
    )
    workload = Workload(START_MS, "test", f"w{number}", "Job", "ml", f"t{number}", team="nlp")
    held = pod(f"p{number}", f"w{number}", f"n{number % 2}", from_min=from_min, to_min=to_min, trial_uid=uid)
    return [told, workload, *held]


SWEEP = Sweep(at(0), "test", "sweep", "ml", "search", "running", "loss", "min", 0.1, "random", "t2", at(0))
TRIALS = [
    *cluster(),
    SWEEP,
    *trial(1, "succeeded", 0.5, 0, 30),
    *trial(2, "succeeded", 0.3, 0, 60),
    *trial(3, "early_stopped", 0.9, 30, 40),
    *trial(4, "failed", None, 60, 65),
    *trial(5, "running", None, 100, None),
]


def test_a_sweep_says_who_won_and_what_the_others_cost(tmp_path: Path) -> None:
    with stored(tmp_path, TRIALS) as store:
        told = show_sweep(store, "search", WINDOW, zone=UTC)["sweep"]
        with pytest.raises(SweepNotFoundError):
            show_sweep(store, "other", WINDOW, zone=UTC)
    minute = 2 * USD_AN_HOUR // 60
    assert (told["best_trial"], told["metric"], told["goal"], told["target"]) == ("t2", "loss", "min", 0.1)
    assert [(row["trial"], row["usd_micro"]) for row in told["trials"]] == [
        ("t2", 60 * minute),
        ("t1", 30 * minute),
        ("t5", 20 * minute),
        ("t3", 10 * minute),
        ("t4", 5 * minute),
    ]
    assert (told["best_usd_micro"], told["losers_usd_micro"], told["going_on_usd_micro"]) == (
        60 * minute,
        45 * minute,
        20 * minute,
    )
    assert told["total"]["usd_micro"] == 125 * minute
    assert (told["early_stopped"], told["early_stopped_usd_micro"]) == (1, 10 * minute)
    assert told["early_stopped_saved_usd_micro"] == 35 * minute  # the median of those that ran to their end is 45
    assert {row["trial"] for row in told["trials"] if row["pareto"]} == {"t1", "t2", "t3"}
    assert told["trials"][0]["parameters"] == {"lr": "2"}
    assert told["trials"][0]["workload"]["name"] == "t2"


@pytest.mark.parametrize(("goal", "best"), [("min", "t2"), ("max", "t3"), (None, None)])
def test_the_best_trial_is_found_where_katib_does_not_say_it(
    tmp_path: Path, goal: str | None, best: str | None
) -> None:
    silent = SWEEP._replace(best_trial=None, goal=goal)
    with stored(tmp_path, [silent if row is SWEEP else row for row in TRIALS]) as store:
        assert show_sweep(store, "search", WINDOW, zone=UTC)["sweep"]["best_trial"] == best


# -- the law ----------------------------------------------------------------------------------------------------------

NAMED = [
    FLOW,
    FLOW._replace(run_id="run-2"),
    SWEEP,
    Trial(at(0), "x", "sweep", "ml", "tx", "running"),
    *pod("a", "wa", "n0", gpus=1, to_min=33, pipeline_run="run-1", pipeline_step="x", trial_uid="x"),
    *pod("b", "wb", "n1", from_min=7, to_min=71, pipeline_run="run-1", pipeline_step="y"),
    *pod("c", "wc", "n0", gpus=1, from_min=40, to_min=57, pipeline_run="run-1", trial_uid="unknown"),
    *pod("d", "wd", "n0", gpus=1, from_min=61, pipeline_run="run-2", pipeline_step="x"),
    *pod("e", "we", "n1", gpus=1, from_min=71, pipeline_run="unknown", trial_uid="x"),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with stored(tmp_path_factory.mktemp("parts"), [*cluster(), *NAMED]) as store:
        open_names(store)
        yield store


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    by=st.lists(
        st.sampled_from([*KUBEFLOW_GROUPINGS, "team", "state", "pod", "node", "hour"]),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    price=st.integers(1, 10**9),
)
def test_parts_add_up_to_their_whole_and_every_grouping_to_the_same_total(
    parts: Store, by: list[str], price: int
) -> None:
    whole = cost(parts, WINDOW, ["state"], zone=UTC, price_usd_micro=price)["total"]
    answer = cost(parts, WINDOW, by, zone=UTC, price_usd_micro=price)
    assert answer["total"] == whole
    for figure in ("usd_micro", "gpu_ms"):
        assert sum(row[figure] for row in answer["rows"]) == whole[figure]
    one = show_pipeline(parts, "run-1", WINDOW, Settings(), zone=UTC, price_usd_micro=price, findings=False)["pipeline"]
    assert [row["step"] for row in one["steps"]] == ["x", "y", None]
    for figure in ("usd_micro", "gpu_ms", "wasted_usd_micro"):
        assert sum(row[figure] for row in one["steps"]) == one["total"][figure]
        for row in one["steps"]:
            assert sum(each[figure] for each in row["attempts"]) == pytest.approx(row[figure], abs=1)
    listed = cost(parts, WINDOW, ["pipeline_run"], zone=UTC, price_usd_micro=price)["rows"]
    held = {row["pipeline_run"]: row["gpu_ms"] for row in listed}
    assert held["nightly (run-1)"] == one["total"]["gpu_ms"]
    assert {"nightly (run-1)", "nightly (run-2)", "unknown", None} == set(held)


# -- what only a controller tells of ----------------------------------------------------------------------------------


def of_trainer(*, sdk: bool) -> list[Any]:
    told = [
        Metric(at(minute), "llama", 1, 0, name, value)
        for minute in range(10, 100, 10)
        for name, value in (
            ("progress", minute / 2),
            ("remaining_seconds", 6_000.0 - minute),
            ("loss", 3 - minute / 50),
        )
    ]
    return [*cluster(), *job(), *(run() + all_ranks(0, 100) if sdk else []), *told]


def test_a_trainjob_without_the_sdk_is_a_run_with_progress_and_curves(tmp_path: Path) -> None:
    with stored(tmp_path, of_trainer(sdk=False)) as store:
        (row,) = runs(store, WINDOW, zone=UTC)["rows"]
        about = show(store, "llama", WINDOW, Settings(), zone=UTC, without=["findings"])
        (judged,) = worth(store, "llama-sft", WINDOW, zone=UTC)["runs"]
    assert (row["run"], row["ranks"], row["attempts"], row["outcome"]) == ("llama", 4, 1, "running")
    assert row["usd_micro"] == 4 * 2 * USD_AN_HOUR
    assert row["goodput"] is None  # nobody saw its steps
    assert row["progress"] == {
        "share": 0.45,
        "eta_ms": 5_910_000 - 30 * 60_000,
        "told_ms": at(90),
        "source": "trainjob",
    }
    assert [point[2] for point in about["metrics"]["loss"]] == pytest.approx(
        [3 - minute / 50 for minute in range(10, 100, 10)]
    )
    assert about["metrics"]["loss"][-1][4] == pytest.approx(4 * 1.5 * USD_AN_HOUR, rel=0.01)
    assert (judged["best"], judged["goodput"]) == (pytest.approx(1.2), None)


def test_a_run_that_speaks_for_itself_is_one_run_and_has_its_controller_s_progress(tmp_path: Path) -> None:
    with stored(tmp_path, of_trainer(sdk=True)) as store:
        (row,) = runs(store, WINDOW, zone=UTC)["rows"]
    assert (row["run"], row["steps"], row["progress"]["share"]) == ("run", 10_000, 0.45)
    assert row["goodput"] > 0.5
