"""Findings claim wasted milliseconds: each only once, in the order of their causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.findings.claims import find
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Detector, Proposal, Scope
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, MINUTE, START_MS, all_ranks, at, cluster, job, run


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """Two hours in which a job of two pods with two GPUs each trains."""
    with Store(tmp_path_factory.mktemp("night"), create=True) as store:
        store.append([*cluster(), *job(), *run(), *all_ranks(0, 120)])
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        settings = Settings(finding_min_usd_micro=0, finding_min_ms=1)
        yield Evidence(store, TimeRange(START_MS, START_MS + 2 * HOUR), settings, UTC)


def claims(cause: str, from_min: float, to_min: float, *, permille: int = 1000) -> Detector:
    """A detector that claims all training of one pod in some minutes."""
    scope = Scope("llama-0", at(from_min), at(to_min), permille=permille)
    proposal = Proposal(cause, "llama", at(from_min), at(to_min), ("train",), (scope,), "was slow", (), "Check it.")
    return lambda evidence: [proposal]


def train_ms(evidence: Evidence, from_min: float, to_min: float) -> int:
    """The training of that pod in some minutes, according to the ledger."""
    ((ms,),) = evidence.ask(
        "SELECT sum(ms) FROM ledger_row WHERE pod_uid = 'llama-0' AND state = 'train' "
        "AND minute_ms >= $1 AND minute_ms < $2",
        at(from_min),
        at(to_min),
    )
    return int(ms)


def test_find_without_proposals_claims_nothing(evidence: Evidence) -> None:
    assert find(evidence, [lambda evidence: []]) == []
    assert evidence.ask("SELECT count(*) FROM claim") == [(0,)]


def test_find_claims_the_time_of_the_scope(evidence: Evidence) -> None:
    (finding,) = find(evidence, [claims("straggler", 10, 20)])
    assert finding.gpu_ms == train_ms(evidence, 10, 20) > 0
    assert finding.id


def test_find_gives_overlapping_time_to_the_first_cause(evidence: Evidence) -> None:
    found = {one.proposal.cause: one for one in find(evidence, [claims("hang", 10, 20), claims("straggler", 15, 30)])}
    assert found["hang"].gpu_ms == train_ms(evidence, 10, 20)
    assert found["straggler"].gpu_ms == train_ms(evidence, 20, 30)


def test_find_claims_a_share_of_the_time(evidence: Evidence) -> None:
    (finding,) = find(evidence, [claims("straggler", 10, 20, permille=250)])
    assert finding.gpu_ms == pytest.approx(train_ms(evidence, 10, 20) / 4, abs=40)


def test_find_drops_findings_below_the_limit(evidence: Evidence) -> None:
    strict = Evidence(evidence.store, evidence.window, Settings(finding_min_ms=HOUR), UTC)
    assert find(strict, [claims("straggler", 10, 20)]) == []
    assert strict.ask("SELECT count(*) FROM claim") == [(0,)]


def test_find_lists_the_most_expensive_finding_first(evidence: Evidence) -> None:
    found = find(evidence, [claims("hang", 0, 5), claims("straggler", 10, 60)])
    assert [one.proposal.cause for one in found] == ["straggler", "hang"]
    assert found[0].ms_price >= found[1].ms_price
    assert found[1].gpu_ms <= 2 * 5 * MINUTE
