"""Attempts of workloads: their pods, times and progress."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.workload_attempts import LATE_MS, WorkloadAttempt, attempts, made_progress
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, MINUTE, START_MS, all_ranks, at, cluster, job, run

ATTEMPT = WorkloadAttempt("llama", 1, None, 1_000, 61_000, ("p0", "p1"), failed=True, next_ms=90_000)


def test_scope_covers_each_pod_and_is_empty_without_time() -> None:
    assert [(scope.pod_uid, scope.from_ms, scope.to_ms) for scope in ATTEMPT.scope(5_000, 9_000)] == [
        ("p0", 5_000, 9_000),
        ("p1", 5_000, 9_000),
    ]
    assert ATTEMPT.scope(9_000, 9_000) == []


def test_had_accepts_late_events_of_own_pods_until_the_next_attempt() -> None:
    assert ATTEMPT.had("p0", 61_000 + 20_000)
    assert not ATTEMPT.had("p0", 90_001)
    assert not ATTEMPT.had("p9", 5_000)
    assert not ATTEMPT.had("p0", 1_000)
    last = ATTEMPT._replace(next_ms=None)
    assert last.had("p0", 61_000 + LATE_MS)
    assert not last.had("p0", 61_001 + LATE_MS)


def test_attempts_of_a_run_are_numbered_with_their_ends(tmp_path: Path) -> None:
    first = [*run(ended_ms=at(50), outcome="failed"), *all_ranks(0, 50)]
    second = [*run(attempt=2, started_min=60, resumed_step=3000), *all_ranks(60, 120)]
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job(), *first, *second])
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        evidence = Evidence(store, TimeRange(START_MS, START_MS + 2 * HOUR), Settings(), UTC)
        found = attempts(evidence, ["llama"])["llama"]
        assert [(one.number, one.failed, one.to_ms, one.resumed_step) for one in found] == [
            (1, True, at(50), None),
            (2, False, None, 3000),
        ]
        assert found[0].next_ms == found[1].from_ms == START_MS + 60 * MINUTE
        assert made_progress(evidence, found[0], found[1:])
        assert attempts(evidence, []) == {}
