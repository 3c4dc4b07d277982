"""The node, the GPU and the pod of a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pyrometer.collect.otlp.messages import RankIdentity, RankStatus, WindowMessage
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import RunRegistry
from pyrometer.model.records import Allocation, Pod, Run, Slot, StepWindow

T0 = 1_790_000_000_000


def rank(launch: str = "l1", number: int = 0, **more: Any) -> RankIdentity:
    known = {"host": "h", "started_ms": T0, "device": "cuda", "gpu_uuid": f"GPU-{number}", "gpu_index": number}
    return RankIdentity(launch, number, **(known | more))


STEP = WindowMessage(T0 + 1_000, T0 + 11_000, 0, 10)


def the(kind: type, records: Iterable[Any]) -> list[Any]:
    return [record for record in records if type(record) is kind]


def pod(uid: str = "p1", workload: str | None = "w1", **more: Any) -> Pod:
    return Pod(T0, "prod", uid, "ml", f"name-{uid}", "Running", workload, node_uid="n1", **more)


def where(who: RankIdentity, known: RunContext, **more: Any) -> tuple[Any, ...]:
    (run,) = the(Run, RunRegistry().take([(who, [STEP])], known, **more).records)
    return run.node_uid, run.slot_index, run.pod_uid, run.workload_uid


HOLDS = [
    Allocation(T0, "p1", "n1", 2, T0 - 1000, None, 1),
    Allocation(T0, "p1", "n1", 5, T0 - 1000, None, 1),
    Allocation(T0, "p2", "n2", 0, T0 - 1000, None, 1),
]


@pytest.mark.parametrize(
    ("who", "place"),
    [
        # by UUID, whatever else is reported
        (rank(pod_uid="p1", gpu_uuid="GPU-x", local_rank=0), ("n9", 7, "p1", "w1")),
        # the k-th device of the pod is that of local rank k
        (rank(pod_uid="p1", gpu_uuid=None, gpu_index=None, local_rank=1), ("n1", 5, "p1", "w1")),
        (rank(pod_uid="p1", number=0), ("n1", 2, "p1", "w1")),
        # without a pod, whose is the device
        (rank(gpu_uuid="GPU-2"), ("n2", 0, "p2", "w2")),
        # outside of Kubernetes
        (rank(number=3, gpu_uuid="GPU-new"), ("host/h", 3, "run:l1:3", "l1")),
    ],
)
def test_rank_location_by_device_pod_or_host(who: RankIdentity, place: tuple[Any, ...]) -> None:
    slots = [Slot(T0, "n9", 7, "GPU-x"), Slot(T0, "n2", 0, "GPU-2")]
    assert where(who, RunContext(pods=[pod(), pod("p2", "w2")], slots=slots, holds=HOLDS)) == place


def test_rank_without_a_gpu_has_a_device_in_a_local_folder_only() -> None:
    who = rank(device="cpu", gpu_uuid=None, gpu_index=None)
    assert where(who, RunContext(), local=True) == ("cpu:h:l1:0", 0, "run:l1:0", "l1")
    assert where(who, RunContext()) == ("cpu:h:l1:0", None, None, None)
    assert where(who._replace(pod_uid="p1"), RunContext(pods=[pod()], holds=HOLDS)) == ("cpu:h:l1:0", None, "p1", "w1")
    assert [type(record) for record in RunRegistry().take([(who, [STEP])], RunContext()).records] == [StepWindow, Run]


def test_rank_may_report_its_device_later() -> None:
    runs = RunRegistry()
    early = rank(device=None, gpu_uuid=None, gpu_index=None)
    first = runs.take([(early, [RankStatus(T0 + 10)])], RunContext()).records
    assert [(type(one), one.slot_index) for one in first] == [(Run, None)]
    records = runs.take([(rank(), [STEP])], RunContext()).records
    (run,) = the(Run, records)
    assert (run.node_uid, run.slot_index, run.pod_uid) == ("host/h", 0, "run:l1:0")
    assert [(w.node_uid, w.slot_index) for w in the(StepWindow, records)] == [("host/h", 0)]


def test_messages_of_an_unknown_pod_wait() -> None:
    runs, who = RunRegistry(), rank(pod_uid="p1", local_rank=1, gpu_uuid="GPU-y")
    taken = runs.take([(who, [STEP]), (rank("other", gpu_uuid="GPU-z"), [STEP])], RunContext(), patient=True)
    assert taken.waiting == [(who, [STEP])]
    assert {run.launch for run in the(Run, taken.records)} == {"other"}
    without_device = runs.take(taken.waiting, RunContext(pods=[pod()]), patient=True)
    assert without_device.records == []
    placed = runs.take(taken.waiting, RunContext(pods=[pod()], holds=HOLDS), patient=True)
    assert (placed.waiting, the(Run, placed.records)[0].slot_index) == ([], 5)
    # in the end it is taken as it is, and holds its device itself
    (run,) = the(Run, RunRegistry().take(taken.waiting, RunContext()).records)
    assert (run.node_uid, run.pod_uid) == ("host/h", "run:l1:0")
