"""Who pays for an experiment that more than one team works on."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.cost import cost
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.records import Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, cluster, pod


def teams(folder: Path, settings: Settings, **later: str | None) -> dict[str, float]:
    """GPU-hours by team of two workloads of one experiment: `research` began it."""
    first = Workload(
        START_MS,
        "test",
        "w0",
        "Job",
        "research",
        "w0",
        experiment="scaling",
        experiment_rule="label:experiment",
        team="research",
        team_rule="namespace",
        created_ms=START_MS - HOUR,
    )
    second = first._replace(workload_uid="w1", namespace="infra", team="infra", created_ms=START_MS, **later)
    with Store(folder, create=True) as store:
        store.append([*cluster(hours=1), first, second, *pod("p0", "w0", "n0"), *pod("p1", "w1", "n1")])
        build(store, settings, now_ms=START_MS + HOUR)
        open_names(store)
        answer = cost(store, TimeRange(START_MS, START_MS + HOUR), ["team"], zone=UTC)
    return {row["team"]: row["gpu_hours"] for row in answer["rows"]}


def test_bill_to_owner_charges_the_team_of_the_workload(tmp_path: Path) -> None:
    assert teams(tmp_path, Settings()) == {"research": 4.0}


def test_bill_to_namespace_charges_each_namespace(tmp_path: Path) -> None:
    assert teams(tmp_path, Settings(bill_to="namespace")) == {"research": 2.0, "infra": 2.0}


@pytest.mark.parametrize(
    "own",
    [
        {"team_rule": "label:team"},  # it says who pays
        {"experiment_rule": "name"},  # unnamed experiments: two workloads may have the same name by chance
    ],
)
def test_explicit_names_win_over_derived_ones(tmp_path: Path, own: dict[str, str]) -> None:
    assert teams(tmp_path, Settings(), **own) == {"research": 2.0, "infra": 2.0}


def test_changing_bill_to_rebuilds_nothing(tmp_path: Path) -> None:
    assert teams(tmp_path, Settings()) == {"research": 4.0}
    with Store(tmp_path) as store:
        covered = build(store, Settings(bill_to="namespace"), now_ms=START_MS + HOUR)
        assert covered is not None
        assert covered.chunks_built == 0
        open_names(store)
        answer = cost(store, TimeRange(START_MS, START_MS + HOUR), ["team"], zone=UTC)
    assert {row["team"] for row in answer["rows"]} == {"research", "infra"}
