"""`gang_wait` on a small cluster: pods that wait for the rest of their gang."""

from __future__ import annotations

from pyrometer.model.records import Pod, Workload
from tests.support import clusters
from tests.support.clusters import all_ranks, at, cluster, explain, interval, minutes, pod, run, sole_finding


def test_gang_wait_names_the_missing_pods(tmp_path):
    records = [
        *cluster(),
        Workload(clusters.START_MS, "test", "llama", "PyTorchJob", "ml", "llama", team="nlp", gang_pods=2),
        *pod("llama-0", "llama", "n0"),
        *pod("llama-1", "llama", "n1", from_min=30),
        *run(started_min=30),
        *all_ranks(30, 120),
    ]
    finding = sole_finding(explain(tmp_path, records))
    assert finding["cause"] == "gang_wait"
    assert finding["culprit"] == {"pods": ["llama-1"]}
    assert interval(finding) == minutes(0, 30)
    assert finding["gpu_ms"] == 2 * 30 * clusters.MINUTE


def test_gang_wait_never_reports_a_complete_gang(tmp_path):
    """A member fails and is replaced, then the other one fails: two pods waited, one at a time. Later it needs more."""
    records = [
        *cluster(),
        Workload(clusters.START_MS, "test", "llama", "PyTorchJob", "ml", "llama", team="nlp", gang_pods=2),
        *pod("llama-0", "llama", "n0", to_min=36),
        *pod("llama-1", "llama", "n1", to_min=30),
        *pod("llama-2", "llama", "n1", from_min=33, to_min=90),
        Workload(at(100), "test", "llama", "PyTorchJob", "ml", "llama", team="nlp", gang_pods=3),
    ]
    records = [r._replace(phase="Failed") if isinstance(r, Pod) and r.ended_ms else r for r in records]
    finding = sole_finding(explain(tmp_path, records))
    assert finding["cause"] == "gang_wait"
    assert finding["evidence"][0] == "1 of 2 pods were scheduled"
