"""The records of GPU pods as they come, change and go."""

from __future__ import annotations

from typing import Any

import pytest

from pyrometer.model.records import Allocation, Event, Node, Pod, Workload
from pyrometer.model.units import SHARE_WHOLE
from tests.support.watched_cluster import T0, WatchedCluster, iso, node, pod

PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


class TestPods:
    def test_pod_records_its_times_and_holds(self) -> None:
        watched = WatchedCluster(node(), pod())
        watched.see(pod(phase="Succeeded", end_ms=T0 + 60_000), after_s=70)
        (record,) = watched.newest(Pod)
        assert (record.scheduled_ms, record.started_ms, record.ended_ms) == (T0, T0, T0 + 60_000)
        assert record.gpu_share == 2 * SHARE_WHOLE
        assert watched.holds() == {("p0-uid", 0): (T0, T0 + 60_000), ("p0-uid", 1): (T0, T0 + 60_000)}
        assert watched.see(pod(phase="Succeeded", end_ms=T0 + 60_000), gone=True) == []  # nothing that was not known

    def test_pod_deleted_while_running_ends_then(self) -> None:
        watched = WatchedCluster(node(), pod())
        watched.see(pod(), gone=True, after_s=30)
        (record,) = watched.newest(Pod)
        assert (record.ended_ms, record.reason) == (watched.now_ms, "Deleted")

    def test_pod_seen_before_its_node_gets_its_slots_later(self) -> None:
        watched = WatchedCluster(pod())
        assert watched.holds() == {}
        watched.see(node())
        assert set(watched.holds()) == {("p0-uid", 0), ("p0-uid", 1)}
        assert watched.newest(Pod)[0].node_uid == "n0-uid"

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"code": 137, "reason": "OOMKilled"}, "OOMKilled"),
            ({"code": 1}, "Error"),
            ({"code": 143, "conditions": [PREEMPTED]}, "PreemptionByScheduler"),
        ],
    )
    def test_pod_records_the_reason_of_its_end(self, more: dict[str, Any], reason: str) -> None:
        watched = WatchedCluster(node(), pod(phase="Failed", end_ms=T0 + 5_000, **more))
        assert watched.newest(Pod)[0].reason == reason

    def test_container_restart_is_an_event(self) -> None:
        last = {"terminated": {"finishedAt": iso(T0 + 9_000), "exitCode": 137, "reason": "OOMKilled"}}
        watched = WatchedCluster(node(), pod())

        def happened(**more: Any) -> list[tuple[str, int, str | None]]:
            records = watched.see(pod(last=last, **more))
            return [(e.kind, e.time_ms, e.reason) for e in records if isinstance(e, Event)]

        waits = {"waiting": {"reason": "CrashLoopBackOff"}}
        assert happened(state=waits) == [("container_restarted", T0 + 9_000, "OOMKilled")]
        again = {"running": {"startedAt": iso(T0 + 50_000)}}
        assert happened(restarts=1, state=again) == [("container_started", T0 + 50_000, None)]
        assert happened(restarts=1, state=again) == []

    def test_sidecar_restart_is_ignored(self) -> None:
        last = {"terminated": {"finishedAt": iso(T0 + 9_000), "exitCode": 1}}
        watched = WatchedCluster(node(), pod())
        seen = pod(restarts=1, last=last)
        seen.status.container_statuses[0].name = "log-shipper"
        assert [r for r in watched.see(seen) if isinstance(r, Event)] == []

    def test_pod_without_a_gpu_request_is_ignored(self) -> None:
        assert WatchedCluster(node()).see(pod(gpus=0)) == []

    def test_resumed_cluster_records_nothing_again(self) -> None:
        before = WatchedCluster(node(), pod())
        holds = [r for r in before.records if isinstance(r, Allocation)]
        after = WatchedCluster()
        after.cluster.resume(before.newest(Node), before.newest(Pod), holds, before.newest(Workload), [])
        after.see(node())
        after.see(pod())
        assert [record for record in after.records if not isinstance(record, Workload)] == []
