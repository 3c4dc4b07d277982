"""`slow_start`: starts that take much longer than the others, and where the time went."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Allocation, Event, GpuSample, Pod, Price, Run, StepWindow, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store
from tests.support.clusters import MINUTE, START_MS, at, cluster, event, explain, interval, job, minutes, run

NODES = 12
WINDOW = TimeRange(START_MS, START_MS + 120 * MINUTE)


def started(name, *, nodes, from_min=0.0, container_min=0.5, first_step_min=2.0, to_min=110, sdk=True, **more):
    """A workload with a pod of two GPUs on each of some nodes; times are minutes after it was scheduled."""
    records = [Workload(START_MS, "test", name, more.pop("kind", "PyTorchJob"), "ml", name, team="nlp", **more)]
    for rank, node in enumerate(nodes):
        pod, uid = f"{name}-{rank}", f"n{node}"
        stepped_ms = None if first_step_min is None else at(from_min + first_step_min)
        records.append(
            Pod(
                at(to_min),
                "test",
                pod,
                "ml",
                pod,
                "Running",
                workload_uid=name,
                node_uid=uid,
                scheduled_ms=at(from_min),
                started_ms=at(from_min + container_min),
            )
        )
        for gpu in range(2):
            place = {"node_uid": uid, "slot_index": gpu, "pod_uid": pod}
            records.append(Allocation(at(to_min), pod, uid, gpu, at(from_min), at(to_min), SHARE_WHOLE))
            if sdk:
                records.append(
                    Run(
                        at(from_min + container_min),
                        name,
                        1,
                        2 * rank + gpu,
                        at(from_min + container_min),
                        ranks=2 * len(nodes),
                        workload_uid=name,
                        first_step_ms=stepped_ms,
                        ended_ms=at(to_min),
                        **place,
                    )
                )
                if stepped_ms is not None:
                    records.append(
                        StepWindow(stepped_ms, at(to_min), name, 1, 2 * rank + gpu, first_step=1, steps=100, **place)
                    )
    return records


def fleet(number=6, first_node=4, **more):
    """Starts as they usually are: two minutes."""
    return [
        record
        for i in range(number)
        for record in started(f"job-{i}", nodes=[first_node + i], from_min=i, **({"first_step_min": 2.0} | more))
    ]


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "slow_start"
    return finding


def of_rank(kind, minute, rank, took_min, run="llama"):
    return Event(at(minute), kind, duration_ms=round(took_min * MINUTE), run=run, attempt=1, rank=rank)


def pulled(pod, node, minute, took_min):
    return Event(at(minute), "image_pulled", duration_ms=round(took_min * MINUTE), pod_uid=pod, node_uid=node)


def test_slow_start_claims_the_excess_over_the_usual(tmp_path):
    slow = started("llama", nodes=[0, 1], from_min=10.25, first_step_min=20.5)
    finding = only(explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *slow]))
    assert interval(finding) == minutes(10.25, 30.75)
    assert finding["gpu_ms"] == round(4 * 18.5 * MINUTE)
    assert finding["usd_micro"] == finding["gpu_ms"]  # a dollar for a thousand GPU-seconds
    assert finding["culprit"] is None
    assert finding["title"] == "llama took 20 min to start, from 20:10"
    assert finding["evidence"][0].endswith("to first step; 6 other starts usually took 2 min")


def test_equal_starts_are_not_slow(tmp_path):
    records = [*cluster(nodes=NODES), *fleet(first_step_min=14.0), *started("llama", nodes=[0, 1], first_step_min=17.0)]
    assert explain(tmp_path, records)["findings"] == []


def test_start_a_few_minutes_longer_is_not_slow(tmp_path):
    records = [*cluster(nodes=NODES), *fleet(), *started("llama", nodes=[0, 1], first_step_min=4.9)]
    assert explain(tmp_path, records)["findings"] == []


@pytest.mark.parametrize(("took_min", "found"), [(9.0, False), (14.0, True)])
def test_several_minutes_are_usual_with_few_starts(tmp_path, took_min, found):
    answer = explain(tmp_path, [*cluster(nodes=2), *started("llama", nodes=[0, 1], first_step_min=took_min)])
    assert [f["cause"] for f in answer["findings"]] == ["slow_start"] * found
    if found:
        assert answer["findings"][0]["gpu_ms"] == 4 * 9 * MINUTE
        assert answer["findings"][0]["confidence"] < 0.9


class TestWhereTheTimeWent:
    def explained(self, tmp_path, events, **more):
        slow = started("llama", nodes=[0, 1, 2], from_min=10, **({"first_step_min": 20.0} | more))
        return only(explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *slow, *events]))

    def test_slow_image_pull_names_its_node(self, tmp_path):
        pulls = [pulled(f"llama-{i}", f"n{i}", 26 if i == 1 else 11, 16 if i == 1 else 1) for i in range(3)]
        late = [of_rank("rendezvous", 28, rank, 16.5 if rank not in (2, 3) else 0.1) for rank in range(6)]
        finding = self.explained(tmp_path, [*pulls, *late])
        assert finding["culprit"] == {"node": "node-1"}
        assert finding["evidence"][1] == "pulling the image took 16 min on node-1, elsewhere 1 min"
        assert "node-1" in finding["suggestion"]
        assert finding["gpu_ms"] == 6 * 18 * MINUTE  # the others waited with it

    def test_slow_image_pull_on_all_nodes_names_the_phase(self, tmp_path):
        finding = self.explained(tmp_path, [pulled(f"llama-{i}", f"n{i}", 26, 15 + i / 2) for i in range(3)])
        assert finding["culprit"] is None
        assert "pulling the image took 16 min" in finding["evidence"][1]

    @pytest.mark.parametrize(
        ("kind", "words"),
        [("compiled", "compiling the model"), ("restored", "loading the checkpoint"), ("rendezvous", "rendezvous")],
    )
    def test_slow_start_names_the_phase_of_the_program(self, tmp_path, kind, words):
        finding = self.explained(tmp_path, [of_rank(kind, 29, rank, 15) for rank in range(6)])
        assert finding["evidence"][1] == f"{words} took 15 min"
        assert finding["culprit"] is None

    def test_slow_restore_names_its_node(self, tmp_path):
        finding = self.explained(tmp_path, [of_rank("restored", 29, rank, 15 if rank > 3 else 2) for rank in range(6)])
        assert finding["culprit"] == {"node": "node-2"}

    def test_late_program_start_names_its_node(self, tmp_path):
        slow = started("llama", nodes=[0, 1, 2], from_min=10, first_step_min=20.0)
        late = [r._replace(started_ms=at(28)) if isinstance(r, Run) and r.node_uid == "n2" else r for r in slow]
        finding = only(explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *late]))
        assert finding["culprit"] == {"node": "node-2"}
        assert finding["evidence"][1] == "starting the program took 18 min longer on node-2"

    def test_phase_that_explains_little_is_not_named(self, tmp_path):
        finding = self.explained(tmp_path, [of_rank("compiled", 29, rank, 2) for rank in range(6)])
        assert len(finding["evidence"]) == 1

    def test_compile_time_in_windows_explains_a_slow_start(self, tmp_path):
        place = {"node_uid": "n0", "slot_index": 0, "pod_uid": "llama-0"}
        first = StepWindow(at(11), at(30), "llama", 1, 0, first_step=0, steps=1, compile_ms=17 * MINUTE, **place)
        assert "compiling the model took 17 min" in self.explained(tmp_path, [first])["evidence"][1]


def test_slow_start_of_a_single_pod_is_compared_with_the_fleet(tmp_path):
    pulls = [pulled(f"job-{i}-0", f"n{4 + i}", i + 1, 1) for i in range(6)]
    slow = started("llama", nodes=[0], from_min=10, container_min=29, first_step_min=30)
    finding = only(explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *pulls, *slow, pulled("llama-0", "n0", 39, 28)]))
    assert finding["culprit"] == {"node": "node-0"}


def test_ongoing_start_at_the_end_of_the_time_range_is_slow(tmp_path):
    slow = started("llama", nodes=[0, 1], from_min=90, first_step_min=None, to_min=120)
    finding = only(explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *slow]))
    assert interval(finding) == minutes(90, 120)
    assert "has been starting for 30 min" in finding["title"]
    assert finding["gpu_ms"] == 4 * 28 * MINUTE


def test_attempt_that_never_started_is_not_a_slow_start(tmp_path):
    never = started("llama", nodes=[0, 1], from_min=20, first_step_min=None, to_min=60)
    causes = [f["cause"] for f in explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *never])["findings"]]
    assert "slow_start" not in causes


def test_slow_start_before_the_time_range_keeps_its_whole_length(tmp_path):
    slow = started("llama", nodes=[0, 1], from_min=10, first_step_min=24.0)
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(nodes=NODES), *fleet(first_step_min=2.0), *slow])
        build(store, Settings(), now_ms=WINDOW.to_ms)
        finding = only(why(store, TimeRange(at(25), WINDOW.to_ms), Settings(), zone=UTC))
    assert interval(finding) == minutes(25, 34)
    assert "took 24 min to start" in finding["title"]
    assert finding["gpu_ms"] == 4 * 9 * MINUTE


def test_gang_wait_is_not_a_slow_start(tmp_path):
    records = [*cluster(nodes=NODES), *fleet()]
    records += started("llama", nodes=[0, 1], first_step_min=32, gang_pods=2, container_min=30.5)
    late = [r._replace(scheduled_ms=at(30)) if isinstance(r, Pod) and r.name == "llama-1" else r for r in records]
    late = [r._replace(from_ms=at(30)) if isinstance(r, Allocation) and r.pod_uid == "llama-1" else r for r in late]
    assert [f["cause"] for f in explain(tmp_path, late)["findings"]] == ["gang_wait"]


def test_concurrent_slow_starts_are_two_findings(tmp_path):
    slow = started("llama", nodes=[0], first_step_min=30) + started("qwen", nodes=[1], first_step_min=40)
    found = explain(tmp_path, [*cluster(nodes=NODES), *fleet(), *slow])["findings"]
    assert [(f["workload"]["name"], f["gpu_ms"]) for f in found] == [
        ("qwen", 2 * 38 * MINUTE),
        ("llama", 2 * 28 * MINUTE),
    ]


def test_slow_start_without_prices_has_no_cost(tmp_path):
    records = [r for r in [*cluster(nodes=NODES), *fleet()] if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *started("llama", nodes=[0, 1], first_step_min=20)]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 4 * 18 * MINUTE)


BUSY = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}
IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}


class TestWithoutTheSdk:
    def watched(self, node, from_min, busy_min, to_min=110):
        return [
            GpuSample(at(minute), f"n{node}", gpu, **(BUSY if minute >= busy_min else IDLE))
            for gpu in range(2)
            for minute in range(from_min, to_min)
        ]

    def fleet(self):
        return [*fleet(sdk=False), *(sample for i in range(6) for sample in self.watched(4 + i, i, i + 3))]

    def test_slow_start_without_the_sdk_ends_with_the_first_activity(self, tmp_path):
        slow = [*started("llama", nodes=[0], from_min=10, sdk=False), *self.watched(0, 10, 30)]
        finding = only(explain(tmp_path, [*cluster(nodes=NODES), *self.fleet(), *slow]))
        assert interval(finding) == minutes(10, 30)
        assert finding["gpu_ms"] == 2 * 17 * MINUTE
        assert "to first GPU activity" in finding["evidence"][0]

    def test_notebook_has_no_slow_start(self, tmp_path):
        waits = [*started("nb", nodes=[0], from_min=10, sdk=False, kind="Notebook"), *self.watched(0, 10, 30)]
        assert explain(tmp_path, [*cluster(nodes=NODES), *self.fleet(), *waits])["findings"] == []

    def test_slow_start_with_kubernetes_alone_ends_when_containers_run(self, tmp_path):
        slow = started("llama", nodes=[0], from_min=10, container_min=25, sdk=False)
        found = explain(tmp_path, [*cluster(nodes=NODES), *fleet(sdk=False), *slow])["findings"]
        (finding,) = [f for f in found if f["cause"] == "slow_start"]
        assert interval(finding) == minutes(10, 35)
        assert finding["gpu_ms"] == 2 * 24 * MINUTE


def test_slow_start_names_the_missing_rank(tmp_path):
    three = [rank._replace(first_step_ms=None) for rank in run()[:3]]
    stuck = [event("stuck", 1, rank, step=0, reason="startup") for rank in range(3)]
    answer = explain(tmp_path, [*cluster(), *job(), *three, *stuck])
    (finding,) = answer["findings"]
    assert (finding["cause"], finding["culprit"]) == ("slow_start", {"rank": 3})
    assert finding["evidence"][1] == "rank 3 of 4 never joined, and the others are waiting"
    assert finding["suggestion"].startswith("Check the process of rank 3")
