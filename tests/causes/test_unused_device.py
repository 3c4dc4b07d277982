"""`unused_device`: devices that a workload holds and never uses."""

from __future__ import annotations

from datetime import UTC

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import MINUTE, START_MS, at, cluster, explain, job, minutes, pod, samples

IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}
BUSY = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}


def watched(idle, *, nodes=(0,), gpus=4, from_min=0, to_min=120):
    """Samples of all GPUs of some nodes, of which some do nothing."""
    return [
        sample
        for node in nodes
        for gpu in range(gpus)
        for sample in samples(f"n{node}", gpu, from_min, to_min, **(IDLE if (node, gpu) in idle else BUSY))
    ]


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "unused_device"
    return finding


def test_unused_device_names_the_gpu(tmp_path):
    records = [*cluster(nodes=1, gpus=4), *job(pods=1, gpus=4, to_min=119), *watched({(0, 3)}, to_min=119)]
    finding = only(explain(tmp_path, records))
    assert finding["culprit"] == {"node": "node-0", "gpu": 3}
    assert (finding["from"], finding["to"]) == minutes(0, 119)
    assert finding["gpu_ms"] == 119 * MINUTE
    assert finding["usd_micro"] == 119 * MINUTE
    assert "never used 1 of its 4 GPUs" in finding["title"]
    assert finding["evidence"] == [
        "1 GPU of llama-0 showed no activity",
        "the other GPUs of these pods were 90% utilized",
    ]


def test_devices_at_work_are_not_unused(tmp_path):
    assert explain(tmp_path, [*cluster(nodes=1, gpus=4), *job(pods=1, gpus=4), *watched(set())])["findings"] == []


def test_several_unused_devices_of_a_node_are_one_finding(tmp_path):
    records = [*cluster(nodes=1, gpus=4), *job(pods=1, gpus=4), *watched({(0, 1), (0, 3)})]
    finding = only(explain(tmp_path, records))
    assert finding["culprit"] == {"node": "node-0", "gpus": [1, 3]}
    assert finding["gpu_ms"] == 2 * 120 * MINUTE


def test_unused_devices_of_several_nodes_are_one_finding_that_names_the_pods(tmp_path):
    records = [*cluster(gpus=4), *job(gpus=4), *watched({(0, 1), (1, 3)}, nodes=(0, 1))]
    finding = only(explain(tmp_path, records))
    assert finding["culprit"] == {"pods": ["llama-0", "llama-1"]}
    assert finding["gpu_ms"] == 2 * 120 * MINUTE


def test_unused_devices_of_two_workloads_are_two_findings(tmp_path):
    other = [
        Workload(START_MS, "test", "qwen", "PyTorchJob", "ml", "qwen", team="nlp"),
        *pod("qwen-0", "qwen", "n1", gpus=4),
    ]
    records = [*cluster(gpus=4), *job(pods=1, gpus=4), *other, *watched({(0, 1), (1, 3)}, nodes=(0, 1))]
    found = explain(tmp_path, records)["findings"]
    assert {(f["workload"]["name"], f["culprit"]["gpu"]) for f in found} == {("llama", 1), ("qwen", 3)}


def test_device_that_is_used_later_is_unused_until_then(tmp_path):
    late = watched({(0, 1)}, gpus=2, to_min=60) + watched(set(), gpus=2, from_min=60)
    finding = only(explain(tmp_path, [*cluster(nodes=1), *job(pods=1), *late]))
    assert (finding["from"], finding["to"]) == minutes(0, 60)


def test_unused_device_needs_telemetry(tmp_path):
    causes = {f["cause"] for f in explain(tmp_path, [*cluster(nodes=1, gpus=4), *job(pods=1, gpus=4)])["findings"]}
    assert "unused_device" not in causes


def test_unused_device_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(nodes=1, gpus=4), *job(pods=1, gpus=4), *watched({(0, 3)})])
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(70), at(110)), Settings(), zone=UTC))
    assert (finding["from"], finding["to"]) == minutes(70, 110)
    assert finding["gpu_ms"] == 40 * MINUTE


def test_unused_device_without_prices_has_no_cost(tmp_path):
    records = [r for r in cluster(nodes=1, gpus=4) if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *job(pods=1, gpus=4), *watched({(0, 3)})]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 120 * MINUTE)
