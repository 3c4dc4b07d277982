"""`lost_work` on a small cluster: steps that a later attempt repeated."""

from __future__ import annotations

from tests.support import clusters
from tests.support.clusters import NORMAL_STEP_MS, at, cluster, explain, interval, job, minutes, run, steps


def test_lost_work_counts_the_repeated_steps(tmp_path):
    first = [w for rank in range(4) for w in steps(rank, 0, 50, **NORMAL_STEP_MS)]
    second = [w for rank in range(4) for w in steps(rank, 60, 120, attempt=2, first_step=3000, **NORMAL_STEP_MS)]
    attempts = [*run(ended_ms=at(50), outcome="failed"), *run(attempt=2, started_min=60, resumed_step=3000)]
    answer = explain(tmp_path, [*cluster(), *job(), *attempts, *first, *second])
    finding = next(f for f in answer["findings"] if f["cause"] == "lost_work")
    assert interval(finding) == minutes(30, 50)
    assert finding["gpu_ms"] == 4 * 20 * clusters.MINUTE
    assert "lost 2,000 steps" in finding["title"]
    assert [f["cause"] for f in answer["findings"]] == ["lost_work", "idle_held"]  # ten minutes between the attempts
