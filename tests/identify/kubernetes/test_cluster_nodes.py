"""The records of GPU nodes as they come, change and go."""

from __future__ import annotations

from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.settings import Settings
from tests.support.watched_cluster import T0, WatchedCluster, iso, node


class TestNodes:
    def test_unchanged_node_is_not_recorded_again(self) -> None:
        watched = WatchedCluster(node())
        assert watched.see(node()) == []

    def test_node_without_gpus_is_ignored(self) -> None:
        assert WatchedCluster(node(gpus=0)).records == []

    def test_unready_node_has_the_time_of_its_condition(self) -> None:
        watched = WatchedCluster(node())
        (record,) = watched.see(node(ready="False", at_ms=T0 + 500_000), after_s=600)
        assert (record.ready, record.time_ms) == (False, T0 + 500_000)

    def test_cordon_has_the_time_of_its_taint(self) -> None:
        watched = WatchedCluster(node())
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": iso(T0 + 30_000)}
        (record,) = watched.see(node(cordoned=True, taints=[taint]), after_s=60)
        assert (record.schedulable, record.time_ms) == (False, T0 + 30_000)

    def test_removed_node_is_not_present(self) -> None:
        watched = WatchedCluster(node())
        (record,) = watched.see(node(), gone=True)
        assert (record.present, record.time_ms) == (False, watched.now_ms)

    def test_new_machine_with_an_old_name_is_a_new_node(self) -> None:
        watched = WatchedCluster(node(uid="first"))
        gone, fresh = watched.see(node(uid="second"))
        assert (gone.node_uid, gone.present) == ("first", False)
        assert (fresh.node_uid, fresh.present) == ("second", True)

    def test_node_older_than_the_watch_begins_when_first_seen(self) -> None:
        cluster = Cluster("test", Settings(), since_ms=T0)
        (old,) = cluster.take(ObservedObject(node("old", created_ms=T0 - 10**9), T0 + 5_000))
        (new,) = cluster.take(ObservedObject(node("new", created_ms=T0 + 2_000), T0 + 5_000))
        assert (old.time_ms, new.time_ms) == (T0 + 5_000, T0 + 2_000)
