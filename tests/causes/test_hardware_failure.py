"""`hardware_failure` on a small cluster: which device, its start, and its cost per workload."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Event, Node, Price, Slot
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import (
    MINUTE,
    NORMAL_STEP_MS,
    all_ranks,
    at,
    cluster,
    event,
    explain,
    interval,
    job,
    minutes,
    pod,
    run,
    samples,
    steps,
)

BUSY = {"gpu_util_permille": 930, "sm_active_permille": 820, "power_w": 674}


def broken(minute, node=1, slot=1, reason="XID 79"):
    return Slot(at(minute), f"n{node}", slot, healthy=False, reason=reason)


def repaired(minute, node=1, slot=1):
    return Slot(at(minute), f"n{node}", slot, healthy=True)


def seen(minute, node=1, gpus=2, **more):
    return Node(at(minute), "test", f"n{node}", f"node-{node}", gpus, "Test GPU", pool="pool", **more)


def failures(answer):
    return [finding for finding in answer["findings"] if finding["cause"] == "hardware_failure"]


def only(answer):
    (finding,) = failures(answer)
    return finding


class TestOfAGpu:
    def hit(self, *more):
        """Rank 3 loses its GPU at minute 40; the job hangs, is restarted elsewhere, and does 1,000 steps again."""
        hung = [event("stuck", 40, rank, step=3999) for rank in range(3)]
        records = [
            *cluster(nodes=3),
            *job(to_min=60),
            *pod("again-0", "llama", "n0", from_min=62, attempt=2),
            *pod("again-1", "llama", "n2", from_min=62, attempt=2),
            *run(ended_ms=at(60), outcome="failed"),
            *all_ranks(0, 40),
            *hung,
            broken(40),
            *more,
        ]
        for rank in range(4):
            where = {"node_uid": f"n{rank // 2 * 2}", "slot_index": rank % 2, "pod_uid": f"again-{rank // 2}"}
            (fresh,) = run(attempt=2, started_min=62, resumed_step=3000)[rank : rank + 1]
            records.append(fresh._replace(**where))
            records += [w._replace(**where) for w in steps(rank, 62, 120, attempt=2, first_step=3000, **NORMAL_STEP_MS)]
        return records

    def test_gpu_failure_claims_its_hang_and_lost_work(self, tmp_path):
        finding = only(explain(tmp_path, self.hit()))
        assert finding["workload"]["name"] == "llama"
        assert finding["culprit"] == {"node": "node-1", "gpu": 1}
        assert interval(finding) == minutes(40, 120)
        # the device for 80 minutes, three ranks hung for 20, four lost 10 minutes of steps
        assert finding["gpu_ms"] == (80 + 3 * 20 + 4 * 10) * MINUTE
        assert finding["usd_micro"] == 180 * 60_000
        assert finding["title"].startswith("llama lost GPU 1 of node-1 at")
        assert finding["title"].endswith("(XID 79)")
        assert finding["evidence"] == [
            "XID 79: the GPU fell off the bus",
            "it was still out of service after 1 h 20 min",
            "the workload hung for 20 min",
            "10 min of its steps were lost",
        ]
        assert "power-cycle" in finding["suggestion"]

    def test_gpu_failure_ends_when_the_device_recovers(self, tmp_path):
        finding = only(explain(tmp_path, self.hit(repaired(100))))
        assert interval(finding) == minutes(40, 100)
        assert finding["gpu_ms"] == (60 + 3 * 20 + 4 * 10) * MINUTE
        assert "it was back in service after 1 h" in finding["evidence"]

    def test_failure_of_an_unallocated_gpu_is_of_the_platform(self, tmp_path):
        finding = only(explain(tmp_path, [*cluster(), broken(30, reason="lost"), repaired(90)]))
        assert finding["workload"] is None
        assert finding["team"] == "platform"
        assert finding["gpu_ms"] == 60 * MINUTE
        assert finding["title"].startswith("node-1 lost GPU 1 at")
        assert finding["evidence"][0] == "it was reported: lost"

    def test_gpu_failure_does_not_claim_the_hang_of_another_run(self, tmp_path):
        hung = [event("stuck", 40, rank, step=3999) for rank in range(4)]
        records = [*cluster(nodes=3), *job(), *run(), *all_ranks(0, 40), *hung, broken(40, node=2)]
        found = {f["cause"]: f for f in explain(tmp_path, records)["findings"]}
        assert found["hardware_failure"]["gpu_ms"] == 80 * MINUTE
        assert found["hang"]["gpu_ms"] == 4 * 80 * MINUTE

    def test_gpu_failure_does_not_claim_a_much_earlier_hang(self, tmp_path):
        hung = [event("stuck", 20, rank, step=1999) for rank in range(4)]
        records = [*cluster(), *job(), *run(), *all_ranks(0, 20), *hung, broken(60)]
        found = {f["cause"]: f for f in explain(tmp_path, records)["findings"]}
        assert found["hardware_failure"]["gpu_ms"] == 60 * MINUTE
        assert found["hang"]["gpu_ms"] == (3 * 100 + 40) * MINUTE

    def test_two_gpus_of_a_node_that_fail_together_are_one_failure(self, tmp_path):
        records = [*cluster(nodes=2, gpus=4), broken(30, slot=1), broken(31, slot=3), repaired(90, slot=1)]
        finding = only(explain(tmp_path, records))
        assert finding["culprit"] == {"node": "node-1", "gpus": [1, 3]}
        assert finding["gpu_ms"] == (60 + 89) * MINUTE
        assert "lost 2 GPUs" in finding["title"]

    def test_two_gpus_of_a_node_that_fail_an_hour_apart_are_two_failures(self, tmp_path):
        records = [*cluster(nodes=2, gpus=4), broken(20, slot=1), broken(80, slot=3)]
        found = failures(explain(tmp_path, records))
        assert [(f["culprit"]["gpu"], f["gpu_ms"]) for f in found] == [(1, 100 * MINUTE), (3, 40 * MINUTE)]

    def test_gpus_of_two_nodes_are_two_failures(self, tmp_path):
        found = failures(explain(tmp_path, [*cluster(), broken(30, node=0), broken(30, node=1)]))
        assert {f["culprit"]["node"] for f in found} == {"node-0", "node-1"}
        assert len({f["id"] for f in found}) == 2

    def test_repeated_report_is_not_a_second_failure(self, tmp_path):
        records = [*cluster(), broken(30), broken(50, reason="XID 154"), repaired(70)]
        finding = only(explain(tmp_path, records))
        assert interval(finding) == minutes(30, 70)
        assert finding["evidence"][0] == "XID 79: the GPU fell off the bus"

    def test_gpu_failure_with_a_cordon_covers_the_whole_node(self, tmp_path):
        finding = only(explain(tmp_path, [*cluster(), broken(30), seen(60, schedulable=False), seen(90), repaired(90)]))
        assert finding["gpu_ms"] == (60 + 30) * MINUTE
        assert finding["culprit"] == {"node": "node-1", "gpu": 1}

    def test_program_fault_is_not_a_hardware_failure(self, tmp_path):
        assert failures(explain(tmp_path, [*cluster(), broken(30, reason="XID 31")])) == []

    def test_hardware_failure_is_cut_at_the_time_range(self, tmp_path):
        with Store(tmp_path, create=True) as store:
            store.append([*cluster(), broken(30), repaired(90)])
            build(store, Settings(), now_ms=at(120))
            finding = only(why(store, TimeRange(at(60), at(80)), Settings(), zone=UTC))
        assert interval(finding) == minutes(60, 80)
        assert finding["gpu_ms"] == 20 * MINUTE

    def test_hardware_failure_without_prices_has_no_cost(self, tmp_path):
        records = [r for r in cluster() if not isinstance(r, Price)]
        finding = only(explain(tmp_path, [*records, broken(30)]))
        assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 90 * MINUTE)


class TestOfANode:
    def test_node_that_is_not_ready_is_a_hardware_failure(self, tmp_path):
        finding = only(explain(tmp_path, [*cluster(), seen(30, ready=False), seen(75)]))
        assert finding["culprit"] == {"node": "node-1"}
        assert interval(finding) == minutes(30, 75)
        assert finding["gpu_ms"] == 2 * 45 * MINUTE
        assert finding["title"].startswith("node-1 failed at")

    def test_failure_of_all_gpus_is_a_failure_of_the_node(self, tmp_path):
        finding = only(explain(tmp_path, [*cluster(), broken(30, slot=0), broken(30, slot=1)]))
        assert finding["culprit"] == {"node": "node-1"}
        assert finding["gpu_ms"] == 2 * 90 * MINUTE

    def test_reboot_after_a_gpu_failure_belongs_to_the_failure(self, tmp_path):
        records = [*cluster(), broken(30), seen(60, ready=False), seen(70), repaired(80)]
        finding = only(explain(tmp_path, records))
        assert finding["culprit"] == {"node": "node-1", "gpu": 1}
        assert interval(finding) == minutes(30, 80)
        assert finding["gpu_ms"] == (50 + 10) * MINUTE

    def test_cordon_for_maintenance_is_not_a_hardware_failure(self, tmp_path):
        records = [*cluster(), seen(20, schedulable=False), seen(40, schedulable=False, ready=False), seen(80)]
        answer = explain(tmp_path, records)
        assert failures(answer) == []
        assert "unhealthy" in {row["state"] for row in answer["states"]}

    def test_node_failure_includes_its_cordon(self, tmp_path):
        records = [*cluster(), seen(20, ready=False), seen(30, ready=False, schedulable=False), seen(80)]
        assert only(explain(tmp_path, records))["gpu_ms"] == 2 * 60 * MINUTE

    def test_new_node_is_not_a_hardware_failure(self, tmp_path):
        records = [*cluster(nodes=1), seen(10, ready=False), seen(20)]
        assert failures(explain(tmp_path, records)) == []

    def test_node_with_missing_devices_is_a_hardware_failure(self, tmp_path):
        telemetry = samples("n1", 1, 0, 120, **BUSY) + samples("n1", 0, 0, 40, **BUSY)
        finding = only(explain(tmp_path, [*cluster(), *telemetry, seen(40, gpus=1)]))
        assert finding["culprit"] == {"node": "node-1", "gpu": 0}  # the one that fell silent
        assert finding["gpu_ms"] == 80 * MINUTE - 1  # then it is seen with both
        assert finding["evidence"][0] == "the node reported 1 of 2 GPUs"

    def test_node_that_vanishes_under_a_job_is_a_hardware_failure(self, tmp_path):
        again = [
            *pod("again-0", "llama", "n0", from_min=62, attempt=2),
            *run(ranks=2, attempt=2, started_min=62, resumed_step=3000),
        ]
        again = [r._replace(pod_uid="again-0") if hasattr(r, "resumed_step") else r for r in again]
        records = [
            *cluster(nodes=1),
            seen(0),
            *job(to_min=60),
            *run(ended_ms=at(60), outcome="failed"),
            *all_ranks(0, 40),
            *again,
            *[
                w._replace(pod_uid="again-0")
                for r in (0, 1)
                for w in steps(r, 62, 120, attempt=2, first_step=3000, **NORMAL_STEP_MS)
            ],
            seen(41, present=False),
        ]
        finding = only(explain(tmp_path, records))
        assert finding["culprit"] == {"node": "node-1"}
        assert finding["gpu_ms"] == 4 * 10 * MINUTE
        assert finding["workload"]["name"] == "llama"

    @pytest.mark.parametrize("how", ["nobody", "spot", "told"])
    def test_node_that_is_removed_in_order_is_not_a_hardware_failure(self, tmp_path, how):
        purchase = "spot" if how == "spot" else None
        records = [*cluster(nodes=1), seen(0, purchase=purchase), seen(41, present=False, purchase=purchase)]
        if how != "nobody":
            records += [*job(to_min=60), *run(), *all_ranks(0, 40)]
        if how == "told":
            records.append(Event(at(40), "preempted", pod_uid="llama-1", node_uid="n1"))
        assert failures(explain(tmp_path, records)) == []


class TestByItsCodeAlone:
    def records(self, before, after, hangs=True):
        telemetry = [
            s
            for n in range(4)
            for s in samples(f"n{n // 2}", n % 2, 0, 40, xid=before, **BUSY)
            + samples(f"n{n // 2}", n % 2, 40, 120, xid=after if n == 3 else before)
        ]
        reports = [event("stuck", 40, rank, step=3999) for rank in range(4)] if hangs else []
        rest = [] if hangs else all_ranks(40, 120)
        return [*cluster(), *job(), *run(), *all_ranks(0, 40), *rest, *reports, *telemetry]

    def test_error_code_claims_the_hang_that_begins_with_it(self, tmp_path):
        (finding,) = explain(tmp_path, self.records(0, 119))["findings"]
        assert finding["cause"] == "hardware_failure"
        assert finding["culprit"] == {"node": "node-1", "gpu": 1}
        assert interval(finding) == minutes(40, 120)
        assert finding["gpu_ms"] == 4 * 80 * MINUTE
        assert finding["evidence"] == [
            "XID 119: its system processor (GSP) did not answer",
            "the workload hung for 1 h 20 min",
        ]

    @pytest.mark.parametrize("code", [13, 31, 43, 45, 63])
    def test_other_error_codes_are_not_a_hardware_failure(self, tmp_path, code):
        assert [f["cause"] for f in explain(tmp_path, self.records(0, code))["findings"]] == ["hang"]

    def test_old_error_code_is_not_a_hardware_failure(self, tmp_path):
        assert [f["cause"] for f in explain(tmp_path, self.records(79, 79))["findings"]] == ["hang"]

    def test_error_code_without_harm_is_not_reported(self, tmp_path):
        assert explain(tmp_path, self.records(0, 94, hangs=False))["findings"] == []


def test_healthy_night_has_no_hardware_failure(tmp_path):
    well = [repaired(m, node=n, slot=s) for m in (0, 60) for n in (0, 1) for s in (0, 1)]
    assert explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120), *well])["findings"] == []
