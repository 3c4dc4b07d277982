"""The evidence of a time range: what detectors can ask."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.findings.evidence import Evidence
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, all_ranks, at, cluster, job, run


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """Two hours in which a job of two pods trains."""
    with Store(tmp_path_factory.mktemp("night"), create=True) as store:
        store.append([*cluster(), *job(), *run(), *all_ranks(0, 120)])
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        yield Evidence(store, TimeRange(START_MS, START_MS + 2 * HOUR), Settings(), UTC)


def test_has_knows_which_kinds_of_records_exist(evidence: Evidence) -> None:
    assert evidence.has("step_window")
    assert not evidence.has("gpu_sample")


def test_node_and_pods_have_names(evidence: Evidence) -> None:
    assert evidence.node("n0") == "node-0"
    assert evidence.node(None) is None
    assert evidence.pod_names(evidence.pods("llama")) == ["llama-0", "llama-1"]


def test_pods_of_an_unknown_owner_are_empty(evidence: Evidence) -> None:
    assert evidence.pods("no-such-workload") == []


def test_ranks_are_placed_on_their_gpus(evidence: Evidence) -> None:
    placed = evidence.ranks(evidence.pods("llama"), START_MS, START_MS + HOUR)
    assert [one.rank for one in placed] == [0, 1, 2, 3]


def test_time_within_a_day_needs_no_date(evidence: Evidence) -> None:
    assert evidence.time(at(41)) == "20:41"


def test_is_ongoing_only_until_the_end_of_the_time_range(evidence: Evidence) -> None:
    pods = evidence.pods("llama")
    assert evidence.is_ongoing("hang", "llama", at(100), at(120), pods)
    assert not evidence.is_ongoing("hang", "llama", at(10), at(20), pods)
    assert not evidence.has_ended("hang", "llama", at(100), at(120), pods)


def test_is_reportable_needs_the_minimum_cost(evidence: Evidence) -> None:
    assert not evidence.is_reportable("train", 1)
