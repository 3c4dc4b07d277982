"""`stranded`: free GPUs next to pods that wait for them, and never more than they request."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Event, Node, Pod, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import at, cluster, explain, interval, minutes, pod

MINUTE = clusters.MINUTE
FREE_GPUS = Settings(finding_min_usd_micro=0)


def workload(name="llama", **more):
    return Workload(clusters.START_MS, "test", name, "PyTorchJob", "ml", name, team="nlp", queue="research", **more)


def waits(name, owner="llama", *, gpus=2, from_min=10.0, to_min=None, node=None, share=None, **more):
    """A pod that was pending from one time to another; then it holds a node's first GPUs, or is still waiting."""
    request = {
        "workload_uid": owner,
        "created_ms": at(from_min),
        "gpu_share": share or round(gpus * SHARE_WHOLE),
    } | more
    records = [Pod(at(from_min), "test", name, "ml", name, "Pending", **request)]
    if to_min is not None:
        (placed, *holds) = pod(name, owner, node, gpus=int(gpus), from_min=to_min)
        records += [placed._replace(**request), *holds]
    return records


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "stranded"
    return finding


def full(node="n0", gpus=2, **more):
    """Something that holds a node."""
    return [workload(f"on-{node}"), *pod(f"on-{node}", f"on-{node}", node, gpus=gpus, **more)]


def test_pod_that_waits_next_to_free_gpus_is_stranded(tmp_path):
    records = [*cluster(), *full(), workload(), *waits("llama-0", from_min=10.5, to_min=70.25, node="n1")]
    finding = only(explain(tmp_path, records))
    assert finding["workload"]["uid"] == "llama"
    assert finding["team"] == "nlp"
    assert finding["culprit"] == {"queue": "research"}
    assert interval(finding) == minutes(10.5, 70.25)
    assert finding["gpu_ms"] == 2 * 59.75 * MINUTE
    assert finding["usd_micro"] == round(2 * 59.75 * 60_000)
    assert finding["title"].startswith("llama waited for 2 GPUs for 1 h")
    assert finding["evidence"] == ["1 pod waited up to 1 h for 2 GPUs", "at least 2 GPUs were free at the time"]
    assert finding["confidence"] == 0.7


def test_pod_that_still_waits_at_the_end_is_stranded(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *full(), workload(), *waits("llama-0")]))
    assert interval(finding) == minutes(10, 120)
    assert finding["gpu_ms"] == 2 * 110 * MINUTE


def test_free_gpus_without_a_waiting_pod_are_not_stranded(tmp_path):
    assert explain(tmp_path, [*cluster(), *full()])["findings"] == []


def test_pod_that_waits_without_free_gpus_is_not_stranded(tmp_path):
    assert explain(tmp_path, [*cluster(), *full(), *full("n1"), workload(), *waits("llama-0")])["findings"] == []


def test_too_few_free_gpus_are_not_stranded(tmp_path):
    records = [*cluster(), *full(), *full("n1", gpus=1), workload(), *waits("llama-0", gpus=2)]
    assert explain(tmp_path, records)["findings"] == []


@pytest.mark.parametrize(("to_min", "found"), [(14.5, False), (15.5, True)])
def test_ordinary_scheduling_delay_is_not_stranded(tmp_path, to_min, found):
    records = [*cluster(), *full(), workload(), *waits("llama-0", to_min=to_min, node="n1")]
    assert bool(explain(tmp_path, records, settings=FREE_GPUS)["findings"]) == found


@pytest.mark.parametrize(("placed_min", "found"), [(63, False), (66, True)])
def test_recently_freed_gpus_are_not_stranded(tmp_path, placed_min, found):
    records = [*cluster(), *full(), *full("n1", to_min=60), workload(), *waits("llama-0", to_min=placed_min, node="n1")]
    findings = explain(tmp_path, records, settings=FREE_GPUS)["findings"]
    assert [interval(finding) for finding in findings] == ([minutes(60, placed_min)] if found else [])


def test_gpus_of_unhealthy_nodes_are_not_stranded(tmp_path):
    cordoned = [
        Node(at(m), "test", "n1", "node-1", 2, "Test GPU", pool="pool", schedulable=False) for m in (0.01, 119.99)
    ]
    records = [r for r in cluster() if not (isinstance(r, Node) and r.node_uid == "n1")]
    findings = explain(tmp_path, [*records, *cordoned, *full(), workload(), *waits("llama-0")])["findings"]
    assert "stranded" not in {finding["cause"] for finding in findings}


def test_free_gpus_on_several_nodes_are_fragments(tmp_path):
    records = [*cluster(), *full(gpus=1), *full("n1", gpus=1), workload(), *waits("llama-0", gpus=2)]
    finding = only(explain(tmp_path, records))
    assert "no node had more than 1 free, and a pod needs 2" in finding["evidence"]
    assert "bin packing" in finding["suggestion"]
    assert finding["gpu_ms"] == 2 * 110 * MINUTE
    assert finding["confidence"] == 0.9


@pytest.mark.parametrize(
    ("message", "suggestion"),
    [
        ("0/2 nodes are available: 2 node(s) had untolerated taint {team: vision}.", "taint"),
        ("couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor h100", "quota of queue res"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "node selector"),
    ],
)
def test_stranded_reports_the_message_of_the_scheduler(tmp_path, message, suggestion):
    unscheduled = Event(at(12), "failed_scheduling", pod_uid="llama-0", workload_uid="llama", message=message)
    finding = only(explain(tmp_path, [*cluster(), *full(), workload(), *waits("llama-0"), unscheduled]))
    assert finding["evidence"][-1] == f"the scheduler reported: {message.rstrip('.')}"
    assert suggestion in finding["suggestion"]


class TestGangs:
    def test_gang_that_fits_is_stranded(self, tmp_path):
        records = [*cluster(nodes=3), *full(), workload(gang_pods=2), *waits("a"), *waits("b", from_min=20)]
        finding = only(explain(tmp_path, records))
        assert interval(finding) == minutes(10, 120)
        assert finding["gpu_ms"] == (2 * 10 + 4 * 100) * MINUTE
        assert "backfill" in finding["suggestion"]

    def test_gang_that_fits_in_part_is_not_stranded(self, tmp_path):
        records = [*cluster(nodes=3), *full(), *full("n1"), workload(gang_pods=2), *waits("a"), *waits("b")]
        assert explain(tmp_path, records)["findings"] == []

    def test_pods_without_a_gang_are_stranded_one_by_one(self, tmp_path):
        records = [*cluster(nodes=3), *full(), *full("n1"), workload(), *waits("a"), *waits("b")]
        assert only(explain(tmp_path, records))["gpu_ms"] == 2 * 110 * MINUTE


def test_waiting_workloads_share_the_free_gpus(tmp_path):
    records = [
        *cluster(nodes=3),
        *full(gpus=1),
        workload("one"),
        *waits("one-0", "one", gpus=3),
        workload("two"),
        *waits("two-0", "two", gpus=2, from_min=30),
    ]
    found = {finding["workload"]["uid"]: finding for finding in explain(tmp_path, records)["findings"]}
    assert found["one"]["gpu_ms"] == 3 * 110 * MINUTE
    assert found["two"]["gpu_ms"] == 2 * 90 * MINUTE
    assert interval(found["two"]) == minutes(30, 120)


def test_free_time_is_claimed_once(tmp_path):
    records = [*cluster(), *full(), workload("one"), *waits("one-0", "one"), workload("two"), *waits("two-0", "two")]
    finding = only(explain(tmp_path, records))
    assert finding["workload"]["uid"] == "one"
    assert finding["gpu_ms"] == 2 * 110 * MINUTE


def test_short_break_does_not_split_a_stranded_finding(tmp_path):
    between = [workload("short"), *pod("short", "short", "n1", gpus=1, from_min=40, to_min=43)]
    finding = only(explain(tmp_path, [*cluster(), *full(), *between, workload(), *waits("llama-0")]))
    assert interval(finding) == minutes(10, 120)
    assert finding["gpu_ms"] == 2 * 107 * MINUTE


def test_request_for_part_of_a_gpu_strands_no_whole_gpu(tmp_path):
    records = [*cluster(), *full(), workload(), *waits("llama-0", share=SHARE_WHOLE // 2)]
    assert explain(tmp_path, records)["findings"] == []


def test_pod_without_a_gpu_request_is_not_stranded(tmp_path):
    records = [*cluster(), *full(), workload(), *waits("llama-0")]
    records = [r._replace(gpu_share=None) if isinstance(r, Pod) and r.name == "llama-0" else r for r in records]
    assert explain(tmp_path, records)["findings"] == []


def test_stranded_pod_without_a_workload_is_found(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *full(), *waits("alone", None)]))
    assert (finding["workload"], finding["culprit"], finding["team"]) == (None, None, "ml")
    assert finding["title"].startswith("alone waited for 2 GPUs")


def test_stranded_without_prices_is_found(tmp_path):
    records = [r for r in cluster() if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *full(), workload(), *waits("llama-0")]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 2 * 110 * MINUTE)


@pytest.mark.parametrize(("from_min", "to_min"), [(0, 60), (30, 60), (60, 120)])
def test_stranded_is_cut_at_the_time_range(tmp_path, from_min, to_min):
    explain(tmp_path, [*cluster(), *full(), workload(), *waits("llama-0", to_min=70, node="n1")])
    with Store(tmp_path) as store:
        finding = only(why(store, TimeRange(at(from_min), at(to_min)), Settings(), zone=UTC))
    assert interval(finding) == minutes(max(from_min, 10), min(to_min, 70))
    assert finding["gpu_ms"] == 2 * (min(to_min, 70) - max(from_min, 10)) * MINUTE
