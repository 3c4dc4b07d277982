"""What runs of pipelines and sweeps are made of: steps and trials with their states, and dollars that add up."""

from __future__ import annotations

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
from pyrometer.answers.fleet.pipeline import show_pipeline
from pyrometer.model.records import PipelineRun, PipelineStep, Sweep, Trial
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, at, cluster, pod

WINDOW = TimeRange(START_MS, START_MS + 2 * HOUR)
FLOW = PipelineRun(at(0), "test", "run-1", "flow", "ml", "nightly", "retrain", "running", at(0))


def step(
    name: str, attempt: int, state: str, from_min: float, to_min: float | None = None, **more: Any
) -> PipelineStep:
    ended_ms = None if to_min is None else at(to_min)
    return PipelineStep(at(to_min or from_min), "run-1", name, attempt, state, at(from_min), ended_ms, **more)


def stored(folder: Path, records: list[Any]) -> Store:
    store = Store(folder, create=True)
    store.append(records)
    build(store, Settings(), now_ms=WINDOW.to_ms)
    return store


# -- sweeps -----------------------------------------------------------------------------------------------------------


SWEEP = Sweep(at(0), "test", "sweep", "ml", "search", "running", "loss", "min", 0.1, "random", "t2", at(0))


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
def test_part_costs_add_up_in_every_grouping(parts: Store, by: list[str], price: int) -> None:
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
