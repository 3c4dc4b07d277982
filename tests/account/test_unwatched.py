"""While nobody watches a cluster, nothing of it is surely free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nights import HOUR, MINUTE, START_MS, at, cluster, pod
from pyrometer.account.ledger import build
from pyrometer.model.records import Event
from pyrometer.model.settings import Settings
from pyrometer.store import Store


def states(folder: Path, *records: object, hours: int = 2) -> Counter[tuple[str | None, str]]:
    """Minutes by holder and state of two nodes of two GPUs, of which a pod has one node."""
    found: Counter[tuple[str | None, str]] = Counter()
    with Store(folder, create=True) as store:
        store.append([*cluster(hours=hours), *pod("p", "w", "n0"), *records])
        build(store, Settings(), now_ms=START_MS + hours * HOUR)
        store.expose_all(["ledger_row"])
        for holder, state, ms in store.connection.execute(
            "SELECT pod_uid, state, sum(ms) FROM ledger_row GROUP BY ALL"
        ).fetchall():
            found[holder, state] += ms / MINUTE
    return found


def gap(from_min: float, minutes: float, cluster_name: str = "test") -> Event:
    return Event(at(from_min), "watch_gap", round(minutes * MINUTE), cluster_name)


def test_what_nobody_is_known_to_hold_is_unobserved(tmp_path: Path) -> None:
    found = states(tmp_path, gap(30, 45.5))
    assert found[None, "unobserved"] == 2 * 45.5
    assert found[None, "free"] == 2 * (120 - 45.5)
    assert found["p", "unobserved"] == 2 * 120  # its own time stays its own


def test_gaps_that_overlap_count_once(tmp_path: Path) -> None:
    assert states(tmp_path, gap(30, 20), gap(40, 30))[None, "unobserved"] == 2 * 40


def test_another_cluster_s_gap_is_none(tmp_path: Path) -> None:
    assert states(tmp_path, gap(30, 20, "other"))[None, "unobserved"] == 0


def test_a_gap_that_becomes_known_later_builds_its_hours_again(tmp_path: Path) -> None:
    assert states(tmp_path)[None, "unobserved"] == 0
    with Store(tmp_path) as store:
        store.append([gap(30, 10)])
        covered = build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        assert covered is not None
        assert covered.chunks_built == 1
        store.expose_all(["ledger_row"])
        row = store.connection.execute(
            "SELECT sum(ms) FROM ledger_row WHERE pod_uid IS NULL AND state = 'unobserved'"
        ).fetchone()
        assert row == (2 * 10 * MINUTE,)
