"""`diverged` on a small cluster: training after a loss that is not finite."""

from __future__ import annotations

from pyrometer.model.records import Batch
from tests.support import clusters
from tests.support.clusters import all_ranks, at, cluster, event, explain, interval, job, minutes, run, sole_finding


def test_training_after_a_nonfinite_loss_is_diverged(tmp_path):
    reports = [event("nonfinite_loss", 70, rank, step=7_000 + (rank != 3)) for rank in (0, 3)]
    drawn = [
        Batch(
            at(69), "run", 1, rank, 0, 0, step, step=step, dataset="pile", samples=tuple(f"{step}{n}" for n in range(8))
        )
        for rank in (0, 3)
        for step in (6_999, 7_000)
    ]
    finding = sole_finding(explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120), *reports, *drawn]))
    assert (finding["cause"], interval(finding)) == ("diverged", minutes(70, 120))
    assert finding["gpu_ms"] == 4 * 50 * clusters.MINUTE  # one rank speaks for all
    assert "at step 7,000" in finding["evidence"][0]
    assert finding["evidence"][1:] == ["step 7,000: samples 70000, 70001, 70002, 70003, 70004, … of pile on rank 3"]
