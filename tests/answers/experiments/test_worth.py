"""Whether a run was worth what it cost: which metric counts, what a target cost, which runs no other one beats."""

from __future__ import annotations

import math
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import total
from pyrometer.account.query.sums import Sum, rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.experiment_list import experiments
from pyrometer.answers.experiments.worth import ExperimentNotFoundError, MetricNotFoundError, worth
from pyrometer.model import events
from pyrometer.model.records import Event, Metric, Run, StepWindow
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, PRICE_USD_MICRO, START_MS, at, cluster, minutes
from tests.support.sweep_runs import run_records

# -- laws ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 10**8)), max_size=30))
def test_rounded_costs_of_runs_add_up_to_the_total(spent: list[tuple[int, int]]) -> None:
    groups = [Sum((place,), ms, ms * price, 0) for place, (ms, price) in enumerate(spent)]
    assert sum(micro or 0 for micro in rounded(groups)) == (total(groups)["usd_micro"] or 0)


# -- which metric -------------------------------------------------------------------------------------------------


# -- of a store ---------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        yield store


def accounted(store: Store, records: list[Any]) -> TimeRange:
    store.append([*cluster(), *records])
    build(store, Settings(), now_ms=START_MS + 2 * HOUR)
    return TimeRange(START_MS, START_MS + 2 * HOUR)


def test_worth_lists_runs_with_their_cost(store):
    window = accounted(
        store,
        [
            *run_records("good", 0, 60, [3.0, 2.0, 1.0, 0.5]),
            *run_records("cheap", 1, 20, [3.0, 2.0]),
            *run_records("beaten", 2, 100, [3.0, 2.5, math.nan, 1.0, math.inf]),
            *run_records("silent", 3, 10, []),
            *run_records("other", 3, 10, [1.0], experiment="else", from_min=30),
        ],
    )
    answer = worth(store, "sweep", window, zone=UTC, target=2.0)
    assert (answer["experiment"], answer["team"], answer["metric"], answer["goal"]) == (
        "sweep",
        "nlp",
        "val/loss",
        "min",
    )
    assert answer["metrics"] == [{"name": "val/loss", "goal": "min", "goal_guessed": False, "runs": 3}]
    rows = {row["run"]: row for row in answer["runs"]}
    assert list(rows) == ["beaten", "good", "cheap", "silent"]
    assert {name: row["pareto"] for name, row in rows.items()} == {
        "good": True,
        "cheap": True,
        "beaten": False,
        "silent": False,
    }
    minute_usd_micro = PRICE_USD_MICRO // 60
    good = rows["good"]
    assert (good["usd_micro"], good["gpu_hours"], good["steps"]) == (60 * minute_usd_micro, 1.0, 6000)
    assert (good["best"], good["best_step"], good["final"], good["goodput"]) == (0.5, 6000, 0.5, 1.0)
    assert (good["to_target_usd_micro"], good["to_target_step"]) == (30 * minute_usd_micro, 3000)
    assert (good["to_target_gpu_hours"], good["to_target_ms"]) == (0.5, 30 * 60_000 - 1)
    assert good["marginal"] == {
        "usd_micro": 6 * minute_usd_micro,
        "usd": 0.36,
        "gain": 0.5,
        "gain_per_usd": 1.38889,
        "share_of_all_gain": 0.2,
    }
    assert good["curve"][1] == [3000, at(30) - 1, 2.0, 30 * 60_000, 30 * minute_usd_micro]
    beaten = rows["beaten"]
    assert (beaten["best"], beaten["final"], len(beaten["curve"])) == (1.0, 1.0, 3)  # without NaN
    assert rows["silent"]["best"] is rows["silent"]["marginal"] is rows["silent"]["to_target_usd"] is None
    assert answer["total"]["usd_micro"] == sum(row["usd_micro"] for row in rows.values())
    assert answer["dominated_usd_micro"] == beaten["usd_micro"]
    # at its first value after 20 minutes the cheap one had already got as good for half of that
    assert (beaten["dominated_since"], beaten["dominated_after_usd_micro"]) == (
        minutes(20, 20)[0].replace(":20:00Z", ":19:59.999Z"),
        80 * minute_usd_micro,
    )
    assert good["dominated_since"] is None
    assert answer["already_dominated_usd_micro"] == sum(row["dominated_after_usd_micro"] for row in rows.values())


def test_cost_of_a_value_within_a_minute_is_the_time_held_by_then(store):
    """Whole minutes evenly; of the first and the last, only the part that was held."""
    records = [
        r._replace(
            **{
                name: getattr(r, name) + 20_000
                for name in ("scheduled_ms", "started_ms", "from_ms")
                if getattr(r, name, None) is not None
            }
        )
        for r in run_records("a", 0, 3, [])
    ]
    moments = (10, 20, 30, 60, 90, 179.999)
    reported = [Metric(START_MS + round(1000 * s), "a", 1, 0, "loss", 9.0 - n, n, "min") for n, s in enumerate(moments)]
    window = accounted(store, [*records, *reported])
    (row,) = worth(store, "sweep", window, zone=UTC)["runs"]
    assert [point[3] for point in row["curve"]] == [0, 1, 10_001, 40_001, 70_001, 160_000]
    assert row["gpu_ms"] == 160_000
    assert row["curve"][-1][4] == row["usd_micro"]


def test_worth_reports_startup_cost_and_compile_time(store):
    records = [
        r._replace(first_step_ms=at(10)) if isinstance(r, Run) else r
        for name, slot in (("a", 0), ("b", 1))
        for r in run_records(name, slot, 60, [2.0])
        if not isinstance(r, StepWindow) or r.time_ms >= at(10)
    ]
    compiled = [
        Event(at(5), events.COMPILED, duration_ms=ms, run="a", attempt=1, rank=rank, step=step)
        for rank, step, ms in ((0, 0, 40_000), (1, 0, 70_000), (0, 1, 5_000))
    ]
    rows = {row["run"]: row for row in worth(store, "sweep", accounted(store, [*records, *compiled]), zone=UTC)["runs"]}
    assert rows["a"]["startup_gpu_ms"] == rows["b"]["startup_gpu_ms"] == 10 * 60_000
    assert rows["a"]["startup_usd_micro"] == 10 * PRICE_USD_MICRO // 60
    assert rows["a"]["compile_ms"] == 70_000  # ranks compile at the same time, what one does twice is added
    assert rows["b"]["compile_ms"] is None  # not reported: that is not zero


def test_worth_uses_the_first_rank_that_reports_a_metric(store):
    records = [
        *run_records("a", 0, 30, [3.0, 2.0]),
        *(Metric(at(m), "a", 1, 1, "val/loss", 0.001, m, "min") for m in range(1, 30)),
    ]
    window = accounted(store, records)
    (row,) = worth(store, "sweep", window, zone=UTC)["runs"]
    (listed,) = experiments(store, window, zone=UTC)["rows"]
    assert row["best"] == listed["best"] == 2.0
    assert listed["trend"] == [3.0, 2.0]


def test_worth_accepts_a_requested_metric_without_a_goal(store):
    records = [
        *run_records("a", 0, 30, [3.0, 2.0]),
        *(Metric(at(m), "a", 1, 0, "grad_norm", m / 10, m) for m in range(1, 30)),
    ]
    window = accounted(store, records)
    answer = worth(store, "sweep", window, zone=UTC, metric="grad_norm", target=1.0)
    (row,) = answer["runs"]
    assert (answer["metric"], answer["goal"], answer["goal_guessed"]) == ("grad_norm", None, False)
    assert (row["best"], row["final"], row["to_target_step"], row["pareto"]) == (None, 2.9, None, False)
    with pytest.raises(MetricNotFoundError, match=r"'acc' in this time range\. Reported: grad_norm, val/loss"):
        worth(store, "sweep", window, zone=UTC, metric="acc")
    with pytest.raises(ExperimentNotFoundError) as refused:
        worth(store, "swep", window, zone=UTC)
    assert refused.value.recorded == ["sweep"]


def test_worth_without_prices_compares_gpu_time(store):
    records = [r for r in cluster() if type(r).__name__ != "Price"]
    store.append([*records, *run_records("a", 0, 60, [2.0]), *run_records("b", 1, 30, [1.0])])
    build(store, Settings(), now_ms=START_MS + 2 * HOUR)
    answer = worth(store, "sweep", TimeRange(START_MS, START_MS + 2 * HOUR), zone=UTC, target=2.0)
    rows = {row["run"]: row for row in answer["runs"]}
    assert (rows["a"]["pareto"], rows["b"]["pareto"]) == (False, True)
    assert rows["a"]["usd_micro"] is rows["a"]["to_target_usd"] is rows["a"]["marginal"] is None
    assert rows["a"]["to_target_gpu_hours"] == 1.0
    assert answer["dominated_usd_micro"] is None
    assert answer["dominated_runs"] == 1


def test_long_curve_is_thinned_without_losing_its_best_point(store):
    values = 5_000
    losses = [5.0 - n / values + (0.3 if n % 7 else 0.0) for n in range(values)]
    losses[3_333] = 0.25
    window = accounted(store, run_records("a", 0, 100, losses))
    (row,) = worth(store, "sweep", window, zone=UTC, target=0.3)["runs"]
    assert (row["best"], row["best_step"], row["final"]) == (0.25, 6668, losses[-1])
    assert row["to_target_step"] == row["best_step"]
    assert len(row["curve"]) <= 200
    assert [point[2] for point in row["curve"]][:1] == losses[:1]
    assert 0.25 in [point[2] for point in row["curve"]]
