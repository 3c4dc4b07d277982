"""While a cluster is not observed, none of its GPUs is known to be free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyrometer.account.build.ledger import build
from pyrometer.model.records import Event, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, MINUTE, START_MS, at, cluster, pod


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


def test_time_without_observations_or_holder_is_unobserved(tmp_path: Path) -> None:
    found = states(tmp_path, gap(30, 45.5))
    assert found[None, "unobserved"] == 2 * 45.5
    assert found[None, "free"] == 2 * (120 - 45.5)
    assert found["p", "unobserved"] == 2 * 120  # its own time stays its own


def test_gaps_that_overlap_count_once(tmp_path: Path) -> None:
    assert states(tmp_path, gap(30, 20), gap(40, 30))[None, "unobserved"] == 2 * 40


def test_gaps_of_other_clusters_are_ignored(tmp_path: Path) -> None:
    assert states(tmp_path, gap(30, 20, "other"))[None, "unobserved"] == 0


def gang_wait(folder: Path, *records: object) -> float:
    """The minutes that a pod waited for the other one of its gang, without observations from minute 30 to 60."""
    gang = Workload(START_MS, "test", "job", "PyTorchJob", "ml", "job", gang_pods=2)
    return states(folder, gap(30, 30), gang, *records)["a", "gang_wait"] / 2


def test_a_gang_does_not_wait_for_possibly_unobserved_pods(tmp_path: Path) -> None:
    """Of a gang that came and went meanwhile, the pod that failed is listed afterwards; the others were deleted."""
    came, *holds = pod("a", "job", "n1", from_min=35, to_min=50)
    assert gang_wait(tmp_path, came._replace(phase="Failed"), *holds) == 0


def test_a_pod_created_in_a_gap_waits_from_the_end_of_the_gap(tmp_path: Path) -> None:
    assert gang_wait(tmp_path, *pod("a", "job", "n1", from_min=35)) == 60


def test_a_pod_waiting_before_and_after_a_gap_waited_in_it(tmp_path: Path) -> None:
    assert gang_wait(tmp_path, *pod("a", "job", "n1")) == 120


def test_a_pod_waits_for_a_vanished_gang_from_the_end_of_the_gap(tmp_path: Path) -> None:
    """The other one was last seen when the gap began: it may have been there until it ended."""
    other, *holds = pod("b", "job", "n2", to_min=30)
    cluster_of_three = [record for record in cluster(nodes=3) if getattr(record, "node_uid", "") == "n2"]
    waited = gang_wait(
        tmp_path, *cluster_of_three, *pod("a", "job", "n1"), other._replace(phase="Running", reason="Vanished"), *holds
    )
    assert waited == 60


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
