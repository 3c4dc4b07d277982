"""What is written down of a cluster as its objects come, change and go."""

from __future__ import annotations

from typing import Any

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import Allocation, Node, Pod, Workload
from pyrometer.model.settings import Settings
from tests.support.watched_cluster import T0, WatchedCluster, claiming_pod, node, owner, pod, queued_job, resource_claim


def test_job_admitted_unseen_stops_waiting() -> None:
    chain = (owner("Job", "j"),)
    before = WatchedCluster()
    before.see(queued_job(), chain=chain)
    after = WatchedCluster()
    after.cluster.resume([], before.newest(Pod), [], before.newest(Workload), [])
    assert list(after.cluster.known()["kueue.x-k8s.io", "Workload"]) == ["w"]
    after.see(queued_job(("QuotaReserved", "True", T0 + 5_000)), chain=chain)
    assert {pod.ended_ms for pod in after.newest(Pod)} == {T0 + 5_000}


def test_vanished_queued_job_stops_waiting() -> None:
    watched = WatchedCluster()
    watched.see(queued_job(), chain=(owner("Job", "j"),))
    watched.see(objects.QueuedWorkload(objects.Meta(uid="w")), gone=True, vanished=True)
    assert {pod.ended_ms for pod in watched.newest(Pod)} == {watched.now_ms}


class TestForgetting:
    """Ended objects leave memory, and do not come back as new ones."""

    def over(self, **more: Any) -> objects.PodObject:
        return pod(phase="Succeeded", end_ms=T0 + 60_000, **more)

    def test_ended_pod_that_is_still_listed_is_not_recorded_again(self) -> None:
        watched = WatchedCluster(node(), pod(), self.over())
        watched.cluster.tick(T0 + 10 * 3_600_000)
        assert watched.see(self.over(), after_s=36_000) == []
        assert watched.see(self.over(), gone=True) == []

    def test_job_of_the_next_day_is_the_next_attempt(self) -> None:
        cron = owner("CronJob", "c")
        watched = WatchedCluster(node())
        for day in range(3):
            start_ms = T0 + day * 86_400_000
            for more in ({}, {"phase": "Succeeded", "end_ms": start_ms + 60_000}):
                watched.see(pod(f"p{day}", start_ms=start_ms, **more), chain=(cron,))
            watched.see(pod(f"p{day}", start_ms=start_ms, phase="Succeeded", end_ms=start_ms + 60_000), gone=True)
            watched.cluster.tick(start_ms + 80_000_000)
        assert [record.attempt for record in watched.newest(Pod)] == [1, 2, 3]

    def test_pod_that_ended_before_the_watch_is_ignored(self) -> None:
        cluster = Cluster("test", Settings(), since_ms=T0 + 100_000, settled_ms=T0 + 100_000)
        assert cluster.take(ObservedObject(self.over(), T0 + 200_000)) == []
        assert cluster.take(ObservedObject(pod("p1"), T0 + 200_000)) != []

    def test_new_pod_after_a_restart_gets_a_free_slot(self) -> None:
        before = WatchedCluster(node(), pod("a", 3), pod("b", 3))
        holds = [r for r in before.records if isinstance(r, Allocation)]
        after = WatchedCluster()
        after.cluster.resume(before.newest(Node), before.newest(Pod), holds, before.newest(Workload), [])
        after.see(node())
        after.see(resource_claim("gpu-7"))
        after.see(claiming_pod())
        after.see(pod("c", 1))
        assert set(after.holds()) == {("p0-uid", 7), ("c-uid", 6)}


def test_queued_job_belongs_to_its_cluster() -> None:
    watched = WatchedCluster()
    watched.see(queued_job(), chain=(owner("Job", "j"),))
    assert {pod.cluster for pod in watched.newest(Pod)} == {"test"}
