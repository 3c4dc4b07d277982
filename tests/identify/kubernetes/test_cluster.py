"""What is written down of a cluster as its objects come, change and go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import Allocation, Event, Metric, Node, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE

T0 = 1_790_000_000_000
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str = "n0", gpus: int = 8, uid: str = "", **more: Any) -> objects.NodeObject:
    ready = {"type": "Ready", "status": more.get("ready", "True"), "lastTransitionTime": iso(more.get("at_ms", T0))}
    count = {"nvidia.com/gpu": str(gpus)}
    thing = {
        "metadata": {"name": name, "uid": uid or f"{name}-uid", "creationTimestamp": iso(more.get("created_ms", T0))},
        "spec": {"unschedulable": more.get("cordoned", False), "taints": more.get("taints")},
        "status": {"capacity": count, "allocatable": count, "conditions": [ready]},
    }
    return msgspec.convert(thing, objects.NodeObject)


def pod(name: str = "p0", gpus: int = 2, node_name: str = "n0", **more: Any) -> objects.PodObject:
    start_ms = more.get("start_ms", T0)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(start_ms)}
    status: dict[str, Any] = {
        "phase": more.get("phase", "Running"),
        "conditions": [condition, *more.get("conditions", [])],
    }
    state: dict[str, Any] = {"running": {"startedAt": iso(start_ms)}}
    if "state" in more:
        state = more["state"]
    elif "end_ms" in more:
        state = {
            "terminated": {
                "startedAt": iso(start_ms),
                "finishedAt": iso(more["end_ms"]),
                "exitCode": more.get("code", 0),
                "reason": more.get("reason", ""),
            }
        }
    status["containerStatuses"] = [
        {"name": "main", "state": state, "restartCount": more.get("restarts", 0), "lastState": more.get("last", {})}
    ]
    thing = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"{name}-uid", "creationTimestamp": iso(start_ms)},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}],
        },
        "status": status,
    }
    return msgspec.convert(thing, objects.PodObject)


class Watched:
    """A cluster, and everything that was written down of it."""

    def __init__(self, *things: Any) -> None:
        self.cluster = Cluster("test", Settings())
        self.now_ms = T0
        self.records: list[Any] = []
        for thing in things:
            self.see(thing)

    def see(self, thing: Any, *, after_s: int = 1, **more: Any) -> list[Any]:
        self.now_ms += after_s * 1_000
        found = self.cluster.take(ObservedObject(thing, self.now_ms, **more))
        self.records += found
        return found

    def newest(self, kind: type) -> list[Any]:
        key = {Pod: "pod_uid", Node: "node_uid", Workload: "workload_uid"}[kind]
        found = {getattr(record, key): record for record in self.records if isinstance(record, kind)}
        return list(found.values())

    def holds(self) -> dict[tuple[str, int], tuple[int, int | None]]:
        found = {}
        for a in self.records:
            if isinstance(a, Allocation):
                found[a.pod_uid, a.slot_index] = (a.from_ms, a.to_ms)
        return found


class TestNodes:
    def test_what_looks_as_before_is_no_news(self) -> None:
        watched = Watched(node())
        assert watched.see(node()) == []

    def test_a_node_without_gpus_is_none_of_ours(self) -> None:
        assert Watched(node(gpus=0)).records == []

    def test_a_node_that_is_not_ready_says_since_when(self) -> None:
        watched = Watched(node())
        (record,) = watched.see(node(ready="False", at_ms=T0 + 500_000), after_s=600)
        assert (record.ready, record.time_ms) == (False, T0 + 500_000)

    def test_a_cordon_says_since_when(self) -> None:
        watched = Watched(node())
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": iso(T0 + 30_000)}
        (record,) = watched.see(node(cordoned=True, taints=[taint]), after_s=60)
        assert (record.schedulable, record.time_ms) == (False, T0 + 30_000)

    def test_a_node_that_is_gone(self) -> None:
        watched = Watched(node())
        (record,) = watched.see(node(), gone=True)
        assert (record.present, record.time_ms) == (False, watched.now_ms)

    def test_a_new_machine_under_an_old_name(self) -> None:
        watched = Watched(node(uid="first"))
        gone, fresh = watched.see(node(uid="second"))
        assert (gone.node_uid, gone.present) == ("first", False)
        assert (fresh.node_uid, fresh.present) == ("second", True)

    def test_one_that_is_older_than_the_watch_begins_when_it_is_first_seen(self) -> None:
        cluster = Cluster("test", Settings(), since_ms=T0)
        (old,) = cluster.take(ObservedObject(node("old", created_ms=T0 - 10**9), T0 + 5_000))
        (new,) = cluster.take(ObservedObject(node("new", created_ms=T0 + 2_000), T0 + 5_000))
        assert (old.time_ms, new.time_ms) == (T0 + 5_000, T0 + 2_000)


class TestPods:
    def test_a_life(self) -> None:
        watched = Watched(node(), pod())
        watched.see(pod(phase="Succeeded", end_ms=T0 + 60_000), after_s=70)
        (record,) = watched.newest(Pod)
        assert (record.scheduled_ms, record.started_ms, record.ended_ms) == (T0, T0, T0 + 60_000)
        assert record.gpu_share == 2 * SHARE_WHOLE
        assert watched.holds() == {("p0-uid", 0): (T0, T0 + 60_000), ("p0-uid", 1): (T0, T0 + 60_000)}
        assert watched.see(pod(phase="Succeeded", end_ms=T0 + 60_000), gone=True) == []  # nothing that was not known

    def test_one_that_is_deleted_while_it_runs_ends_then(self) -> None:
        watched = Watched(node(), pod())
        watched.see(pod(), gone=True, after_s=30)
        (record,) = watched.newest(Pod)
        assert (record.ended_ms, record.reason) == (watched.now_ms, "Deleted")

    def test_one_that_comes_before_its_node(self) -> None:
        watched = Watched(pod())
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
    def test_why_it_ended(self, more: dict[str, Any], reason: str) -> None:
        watched = Watched(node(), pod(phase="Failed", end_ms=T0 + 5_000, **more))
        assert watched.newest(Pod)[0].reason == reason

    def test_a_container_that_was_started_again(self) -> None:
        last = {"terminated": {"finishedAt": iso(T0 + 9_000), "exitCode": 137, "reason": "OOMKilled"}}
        watched = Watched(node(), pod())

        def happened(**more: Any) -> list[tuple[str, int, str | None]]:
            records = watched.see(pod(last=last, **more))
            return [(e.kind, e.time_ms, e.reason) for e in records if isinstance(e, Event)]

        waits = {"waiting": {"reason": "CrashLoopBackOff"}}
        assert happened(state=waits) == [("container_restarted", T0 + 9_000, "OOMKilled")]
        again = {"running": {"startedAt": iso(T0 + 50_000)}}
        assert happened(restarts=1, state=again) == [("container_started", T0 + 50_000, None)]
        assert happened(restarts=1, state=again) == []

    def test_a_sidecar_that_is_started_again_says_nothing_about_gpus(self) -> None:
        last = {"terminated": {"finishedAt": iso(T0 + 9_000), "exitCode": 1}}
        watched = Watched(node(), pod())
        seen = pod(restarts=1, last=last)
        seen.status.container_statuses[0].name = "log-shipper"
        assert [r for r in watched.see(seen) if isinstance(r, Event)] == []

    def test_a_pod_that_asks_for_no_gpu_is_none_of_ours(self) -> None:
        assert Watched(node()).see(pod(gpus=0)) == []

    def test_after_a_restart_nothing_is_written_again(self) -> None:
        before = Watched(node(), pod())
        holds = [r for r in before.records if isinstance(r, Allocation)]
        after = Watched()
        after.cluster.resume(before.newest(Node), before.newest(Pod), holds, before.newest(Workload), [])
        after.see(node())
        after.see(pod())
        assert [record for record in after.records if not isinstance(record, Workload)] == []


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
        watched = Watched(node(), pod())
        text = 'Successfully pulled image "registry/train:1" in 1m3.25s (1m4s including waiting). Image size: 9 bytes.'
        (found,) = watched.see(self.event("Pulled", text))
        assert (found.kind, found.duration_ms, found.time_ms, found.node_uid) == (
            "image_pulled",
            63_250,
            T0 + 20_000,
            "n0-uid",
        )

    def test_an_image_that_was_there_is_no_news(self) -> None:
        watched = Watched(node(), pod())
        assert watched.see(self.event("Pulled", 'Container image "x" already present on machine')) == []

    def test_a_scheduler_that_says_the_same_again_is_no_news(self) -> None:
        watched = Watched(node(), pod())
        assert len(watched.see(self.event("FailedScheduling", "0/40 nodes are available"))) == 1
        assert watched.see(self.event("FailedScheduling", "0/40 nodes are available")) == []
        assert len(watched.see(self.event("FailedScheduling", "0/41 nodes are available"))) == 1

    def test_one_that_comes_before_its_pod(self) -> None:
        watched = Watched(node())
        assert watched.see(self.event("Preempted", "by another")) == []
        assert [r.kind for r in watched.see(pod()) if isinstance(r, Event)] == ["preempted"]

    def test_others_are_none_of_ours(self) -> None:
        assert Watched(node(), pod()).see(self.event("Scheduled", "to n0")) == []


def owner(kind: str, uid: str, group: str = "batch", **more: Any) -> objects.OwnerObject:
    meta = {"name": uid, "uid": uid, "namespace": "ns", "creationTimestamp": iso(T0)}
    return msgspec.convert({"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, **more}, objects.OwnerObject)


def test_what_kubeflow_trainer_says_about_a_run() -> None:
    told = {
        "progressPercentage": 42,
        "estimatedRemainingSeconds": 7200,
        "lastUpdatedTime": iso(T0 + 60_000),
        "metrics": [{"name": "loss", "value": "1.25"}],
    }
    train = owner("TrainJob", "t", "trainer.kubeflow.org", status={"trainerStatus": told})
    watched = Watched(node())
    watched.see(pod(), chain=(train,))
    metrics = [r for r in watched.see(train) if isinstance(r, Metric)]
    assert [(m.run, m.name, m.value, m.time_ms) for m in metrics] == [
        ("t", "progress", 42.0, T0 + 60_000),
        ("t", "remaining_seconds", 7200.0, T0 + 60_000),
        ("t", "loss", 1.25, T0 + 60_000),
    ]


class TestQueues:
    """Kueue: a job that waits has no pods yet."""

    def queued(self, *conditions: tuple[str, str, int]) -> objects.QueuedWorkload:
        spec = {"containers": [{"name": "m", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
        thing = {
            "metadata": {"name": "w", "uid": "w", "namespace": "ns", "creationTimestamp": iso(T0)},
            "spec": {"queueName": "research", "podSets": [{"name": "main", "count": 2, "template": {"spec": spec}}]},
            "status": {
                "conditions": [
                    {"type": kind, "status": status, "lastTransitionTime": iso(at_ms), "reason": kind}
                    for kind, status, at_ms in conditions
                ]
            },
        }
        return msgspec.convert(thing, objects.QueuedWorkload)

    def test_its_demand_waits_until_it_is_admitted(self) -> None:
        chain = (owner("Job", "j"),)
        watched = Watched()
        waiting = [r for r in watched.see(self.queued(), chain=chain) if isinstance(r, Pod)]
        assert [(p.phase, p.created_ms, p.gpu_share, p.queue, p.workload_uid) for p in waiting] == [
            ("Pending", T0, 8 * SHARE_WHOLE, "research", "j")
        ] * 2
        at_ms = T0 + 90_000
        admitted = self.queued(("QuotaReserved", "True", at_ms), ("Admitted", "True", at_ms))
        found = watched.see(admitted, chain=chain)
        assert [(e.kind, e.duration_ms) for e in found if isinstance(e, Event)] == [("admitted", 90_000)]
        assert {p.ended_ms for p in found if isinstance(p, Pod)} == {at_ms}
        assert watched.see(admitted, chain=chain) == []

    def test_one_that_is_sent_back_waits_again(self) -> None:
        chain = (owner("Job", "j"),)
        watched = Watched()
        watched.see(self.queued(), chain=chain)
        watched.see(self.queued(("QuotaReserved", "True", T0 + 1_000), ("Admitted", "True", T0 + 1_000)), chain=chain)
        back = self.queued(("QuotaReserved", "False", T0 + 50_000), ("Evicted", "True", T0 + 50_000))
        found = watched.see(back, chain=chain)
        assert [(e.kind, e.reason) for e in found if isinstance(e, Event)] == [("evicted", "Evicted")]
        assert {(p.phase, p.created_ms, p.ended_ms) for p in watched.newest(Pod)} == {("Pending", T0 + 50_000, None)}

    def test_its_workload_is_known_before_any_pod(self) -> None:
        watched = Watched()
        watched.see(self.queued(), chain=(owner("Job", "j"),))
        (workload,) = watched.newest(Workload)
        assert (workload.kind, workload.queue, workload.team, workload.team_rule) == (
            "Job",
            "research",
            "research",
            "queue",
        )


class TestClaims:
    """DRA: the scheduler itself says which devices a pod has."""

    def claim(self, *devices: str) -> objects.ResourceClaim:
        results = [{"driver": "gpu.nvidia.com", "pool": "n0", "device": device} for device in devices]
        thing = {
            "metadata": {"name": "c", "uid": "c", "namespace": "ns"},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [{"uid": "p0-uid"}]},
        }
        return msgspec.convert(thing, objects.ResourceClaim)

    def claiming(self) -> objects.PodObject:
        thing = pod(gpus=0)
        thing.spec.resource_claims = [objects.PodClaim("gpus", resource_claim_name="c")]
        return thing

    def test_a_pod_has_the_devices_of_its_claim(self) -> None:
        watched = Watched(node(), self.claim("gpu-5", "gpu-6"), self.claiming())
        assert set(watched.holds()) == {("p0-uid", 5), ("p0-uid", 6)}
        assert {a.source for a in watched.records if isinstance(a, Allocation)} == {"dra"}

    def test_others_make_room(self) -> None:
        watched = Watched(node(), pod("other", 2), self.claim("gpu-0"), self.claiming())
        still = {
            slot for (uid, slot), (from_ms, to_ms) in watched.holds().items() if uid == "other-uid" and to_ms != from_ms
        }
        assert len(still) == 2
        assert 0 not in still


def test_one_that_was_admitted_while_nobody_watched_waits_no_more() -> None:
    queues = TestQueues()
    chain = (owner("Job", "j"),)
    before = Watched()
    before.see(queues.queued(), chain=chain)
    after = Watched()
    after.cluster.resume([], before.newest(Pod), [], before.newest(Workload), [])
    assert list(after.cluster.known()["kueue.x-k8s.io", "Workload"]) == ["w"]
    after.see(queues.queued(("QuotaReserved", "True", T0 + 5_000)), chain=chain)
    assert {pod.ended_ms for pod in after.newest(Pod)} == {T0 + 5_000}


def test_one_that_vanished_waits_no_more() -> None:
    watched = Watched()
    watched.see(TestQueues().queued(), chain=(owner("Job", "j"),))
    watched.see(objects.QueuedWorkload(objects.Meta(uid="w")), gone=True, vanished=True)
    assert {pod.ended_ms for pod in watched.newest(Pod)} == {watched.now_ms}


class TestForgetting:
    """What is over does not stay in memory, and does not come back as something new."""

    def over(self, **more: Any) -> objects.PodObject:
        return pod(phase="Succeeded", end_ms=T0 + 60_000, **more)

    def test_a_pod_that_is_still_listed_long_after_its_end_is_no_news(self) -> None:
        watched = Watched(node(), pod(), self.over())
        watched.cluster.tick(T0 + 10 * 3_600_000)
        assert watched.see(self.over(), after_s=36_000) == []
        assert watched.see(self.over(), gone=True) == []

    def test_a_job_that_goes_on_the_next_day_is_in_its_next_attempt(self) -> None:
        cron = owner("CronJob", "c")
        watched = Watched(node())
        for day in range(3):
            start_ms = T0 + day * 86_400_000
            for more in ({}, {"phase": "Succeeded", "end_ms": start_ms + 60_000}):
                watched.see(pod(f"p{day}", start_ms=start_ms, **more), chain=(cron,))
            watched.see(pod(f"p{day}", start_ms=start_ms, phase="Succeeded", end_ms=start_ms + 60_000), gone=True)
            watched.cluster.tick(start_ms + 80_000_000)
        assert [record.attempt for record in watched.newest(Pod)] == [1, 2, 3]

    def test_what_ended_before_anybody_watched_is_none_of_ours(self) -> None:
        cluster = Cluster("test", Settings(), since_ms=T0 + 100_000, settled_ms=T0 + 100_000)
        assert cluster.take(ObservedObject(self.over(), T0 + 200_000)) == []
        assert cluster.take(ObservedObject(pod("p1"), T0 + 200_000)) != []

    def test_after_a_restart_a_new_pod_gets_no_slot_that_is_held(self) -> None:
        before = Watched(node(), pod("a", 3), pod("b", 3))
        holds = [r for r in before.records if isinstance(r, Allocation)]
        after = Watched()
        after.cluster.resume(before.newest(Node), before.newest(Pod), holds, before.newest(Workload), [])
        after.see(node())
        after.see(TestClaims().claim("gpu-7"))
        after.see(TestClaims().claiming())
        after.see(pod("c", 1))
        assert set(after.holds()) == {("p0-uid", 7), ("c-uid", 6)}


def test_a_queued_job_is_of_its_cluster() -> None:
    watched = Watched()
    watched.see(TestQueues().queued(), chain=(owner("Job", "j"),))
    assert {pod.cluster for pod in watched.newest(Pod)} == {"test"}
