"""Events of Kubernetes about GPU pods."""

from __future__ import annotations

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.model.records import Event
from tests.support.watched_cluster import T0, WatchedCluster, iso, node, pod


class TestEvents:
    def event(self, reason: str, message: str, uid: str = "p0-uid") -> objects.EventObject:
        thing = {
            "metadata": {"name": "e", "uid": "e"},
            "involvedObject": {"kind": "Pod", "uid": uid},
            "reason": reason,
            "message": message,
            "lastTimestamp": iso(T0 + 20_000),
        }
        return msgspec.convert(thing, objects.EventObject)

    def test_an_image_that_was_pulled(self) -> None:
        watched = WatchedCluster(node(), pod())
        text = 'Successfully pulled image "registry/train:1" in 1m3.25s (1m4s including waiting). Image size: 9 bytes.'
        (found,) = watched.see(self.event("Pulled", text))
        assert (found.kind, found.duration_ms, found.time_ms, found.node_uid) == (
            "image_pulled",
            63_250,
            T0 + 20_000,
            "n0-uid",
        )

    def test_an_image_that_was_there_is_no_news(self) -> None:
        watched = WatchedCluster(node(), pod())
        assert watched.see(self.event("Pulled", 'Container image "x" already present on machine')) == []

    def test_a_scheduler_that_says_the_same_again_is_no_news(self) -> None:
        watched = WatchedCluster(node(), pod())
        assert len(watched.see(self.event("FailedScheduling", "0/40 nodes are available"))) == 1
        assert watched.see(self.event("FailedScheduling", "0/40 nodes are available")) == []
        assert len(watched.see(self.event("FailedScheduling", "0/41 nodes are available"))) == 1

    def test_one_that_comes_before_its_pod(self) -> None:
        watched = WatchedCluster(node())
        assert watched.see(self.event("Preempted", "by another")) == []
        assert [r.kind for r in watched.see(pod()) if isinstance(r, Event)] == ["preempted"]

    def test_others_are_none_of_ours(self) -> None:
        assert WatchedCluster(node(), pod()).see(self.event("Scheduled", "to n0")) == []
