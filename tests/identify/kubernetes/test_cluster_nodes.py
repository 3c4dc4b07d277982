"""The records of GPU nodes as they come, change and go."""

from __future__ import annotations

from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.settings import Settings
from tests.support.watched_cluster import T0, WatchedCluster, iso, node


class TestNodes:
    def test_what_looks_as_before_is_no_news(self) -> None:
        watched = WatchedCluster(node())
        assert watched.see(node()) == []

    def test_a_node_without_gpus_is_none_of_ours(self) -> None:
        assert WatchedCluster(node(gpus=0)).records == []

    def test_a_node_that_is_not_ready_says_since_when(self) -> None:
        watched = WatchedCluster(node())
        (record,) = watched.see(node(ready="False", at_ms=T0 + 500_000), after_s=600)
        assert (record.ready, record.time_ms) == (False, T0 + 500_000)

    def test_a_cordon_says_since_when(self) -> None:
        watched = WatchedCluster(node())
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": iso(T0 + 30_000)}
        (record,) = watched.see(node(cordoned=True, taints=[taint]), after_s=60)
        assert (record.schedulable, record.time_ms) == (False, T0 + 30_000)

    def test_a_node_that_is_gone(self) -> None:
        watched = WatchedCluster(node())
        (record,) = watched.see(node(), gone=True)
        assert (record.present, record.time_ms) == (False, watched.now_ms)

    def test_a_new_machine_under_an_old_name(self) -> None:
        watched = WatchedCluster(node(uid="first"))
        gone, fresh = watched.see(node(uid="second"))
        assert (gone.node_uid, gone.present) == ("first", False)
        assert (fresh.node_uid, fresh.present) == ("second", True)

    def test_one_that_is_older_than_the_watch_begins_when_it_is_first_seen(self) -> None:
        cluster = Cluster("test", Settings(), since_ms=T0)
        (old,) = cluster.take(ObservedObject(node("old", created_ms=T0 - 10**9), T0 + 5_000))
        (new,) = cluster.take(ObservedObject(node("new", created_ms=T0 + 2_000), T0 + 5_000))
        assert (old.time_ms, new.time_ms) == (T0 + 5_000, T0 + 2_000)
