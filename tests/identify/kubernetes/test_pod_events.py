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

    def test_image_pull_has_its_duration(self) -> None:
        watched = WatchedCluster(node(), pod())
        text = 'Successfully pulled image "registry/train:1" in 1m3.25s (1m4s including waiting). Image size: 9 bytes.'
        (found,) = watched.see(self.event("Pulled", text))
        assert (found.kind, found.duration_ms, found.time_ms, found.node_uid) == (
            "image_pulled",
            63_250,
            T0 + 20_000,
            "n0-uid",
        )

    def test_image_that_was_present_is_ignored(self) -> None:
        watched = WatchedCluster(node(), pod())
        assert watched.see(self.event("Pulled", 'Container image "x" already present on machine')) == []

    def test_repeated_scheduler_message_is_recorded_once(self) -> None:
        watched = WatchedCluster(node(), pod())
        assert len(watched.see(self.event("FailedScheduling", "0/40 nodes are available"))) == 1
        assert watched.see(self.event("FailedScheduling", "0/40 nodes are available")) == []
        assert len(watched.see(self.event("FailedScheduling", "0/41 nodes are available"))) == 1

    def test_event_before_its_pod_waits_for_it(self) -> None:
        watched = WatchedCluster(node())
        assert watched.see(self.event("Preempted", "by another")) == []
        assert [r.kind for r in watched.see(pod()) if isinstance(r, Event)] == ["preempted"]

    def test_other_events_are_ignored(self) -> None:
        assert WatchedCluster(node(), pod()).see(self.event("Scheduled", "to n0")) == []
