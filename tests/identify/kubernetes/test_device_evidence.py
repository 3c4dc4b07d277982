"""The devices of pods, from claims of the scheduler and labels of exporters."""

from __future__ import annotations

from pyrometer.model.records import Allocation
from tests.support.watched_cluster import WatchedCluster, claiming_pod, node, pod, resource_claim


class TestClaims:
    """DRA: the scheduler itself says which devices a pod has."""

    def test_pod_has_the_devices_of_its_claim(self) -> None:
        watched = WatchedCluster(node(), resource_claim("gpu-5", "gpu-6"), claiming_pod())
        assert set(watched.holds()) == {("p0-uid", 5), ("p0-uid", 6)}
        assert {a.source for a in watched.records if isinstance(a, Allocation)} == {"dra"}

    def test_pods_with_guessed_slots_make_room_for_a_claim(self) -> None:
        watched = WatchedCluster(node(), pod("other", 2), resource_claim("gpu-0"), claiming_pod())
        still = {
            slot for (uid, slot), (from_ms, to_ms) in watched.holds().items() if uid == "other-uid" and to_ms != from_ms
        }
        assert len(still) == 2
        assert 0 not in still
