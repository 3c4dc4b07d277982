"""The records of ranks and of the devices that they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyrometer.collect.otlp.messages import BatchMessage, MetricMessage, RankIdentity, RankStatus, WindowMessage
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import RunRegistry
from pyrometer.model.records import Allocation, Batch, Metric, Pod, Slot, StepWindow, Workload

T0 = 1_790_000_000_000


def rank(launch: str = "l1", number: int = 0, **more: Any) -> RankIdentity:
    known = {"host": "h", "started_ms": T0, "device": "cuda", "gpu_uuid": f"GPU-{number}", "gpu_index": number}
    return RankIdentity(launch, number, **(known | more))


STEP = WindowMessage(T0 + 1_000, T0 + 11_000, 0, 10)


def the(kind: type, records: Iterable[Any]) -> list[Any]:
    return [record for record in records if type(record) is kind]


def test_holder_exists_until_its_run_ends() -> None:
    runs, who = RunRegistry(), rank(experiment="e")
    begun = runs.take([(who, [STEP])], RunContext()).records
    assert [(a.from_ms, a.to_ms, a.source) for a in the(Allocation, begun)] == [(T0, None, "sdk")]
    assert [(w.kind, w.experiment, w.team) for w in the(Workload, begun)] == [("Run", "e", "local")]
    assert [(s.node_uid, s.uuid, s.from_ms) for s in the(Slot, begun)] == [("host/h", "GPU-0", None)]
    ended = runs.take(
        [(who, [RankStatus(T0 + 60_000, ended_ms=T0 + 60_000, outcome="succeeded")])], RunContext()
    ).records
    assert [(a.from_ms, a.to_ms) for a in the(Allocation, ended)] == [(T0, T0 + 60_000)]
    assert [(p.phase, p.ended_ms) for p in the(Pod, ended)] == [("Succeeded", T0 + 60_000)]


def test_metrics_keep_their_rank() -> None:
    metrics = [
        MetricMessage(T0, "loss", 0.5, 7, "min"),
        MetricMessage(T0, "f1", 0.5, 40, "max", "transformers", 30, 39),
    ]
    assert the(Metric, RunRegistry().take([(rank(number=3), metrics)], RunContext()).records) == [
        Metric(T0, "l1", 1, 3, "loss", 0.5, 7, "min"),
        Metric(T0, "l1", 1, 3, "f1", 0.5, 40, "max", "transformers", 30, 39),
    ]


def test_messages_have_the_fields_of_their_records_in_order():
    """Records are made of messages by position where that is faster."""
    identity = {"run", "attempt", "rank", "node_uid", "slot_index", "pod_uid"}
    for message, kind in ((WindowMessage, StepWindow), (BatchMessage, Batch), (MetricMessage, Metric)):
        assert list(message._fields) == [name for name in kind._fields if name not in identity]
    assert StepWindow._fields[:8] == ("time_ms", "to_ms", "run", "attempt", "rank", "node_uid", "slot_index", "pod_uid")
    for kind in (Batch, Metric):
        assert kind._fields[:4] == ("time_ms", "run", "attempt", "rank")
