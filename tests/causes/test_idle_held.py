"""`idle_held` on a small cluster: pods that hold GPUs without using them."""

from __future__ import annotations

from pyrometer.model.records import Workload
from tests.support import clusters
from tests.support.clusters import (
    all_ranks,
    at,
    cluster,
    explain,
    interval,
    job,
    minutes,
    pod,
    run,
    samples,
    sole_finding,
)

IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}
BUSY = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}


class TestIdleHeld:
    def test_idle_held_names_the_user_of_a_forgotten_notebook(self, tmp_path):
        notebook = [
            Workload(clusters.START_MS, "test", "nb", "Notebook", "ml", "nb", team="vision"),
            *pod("nb-0", "nb", "n0", gpus=1, user="ada"),
        ]
        telemetry = samples("n0", 0, 0, 30, **BUSY) + samples("n0", 0, 30, 120, **IDLE)
        finding = sole_finding(explain(tmp_path, [*cluster(), *notebook, *telemetry]))
        assert finding["cause"] == "idle_held"
        assert finding["culprit"] == {"pod": "nb-0", "user": "ada"}
        assert interval(finding) == minutes(30, 120)
        assert finding["team"] == "vision"
        assert finding["what_if"]["detected"] == minutes(47, 0)[0]  # when it had cost a dollar, after the idle gap

    def test_short_pause_is_not_idle_held(self, tmp_path):
        telemetry = samples("n0", 0, 0, 30, **BUSY) + samples("n0", 0, 30, 44, **IDLE)
        telemetry += samples("n0", 0, 44, 120, **BUSY)
        answer = explain(tmp_path, [*cluster(), *job(pods=1, gpus=1), *telemetry])
        assert answer["findings"] == []
        assert "starved" in {row["state"] for row in answer["states"]}

    def test_pod_after_the_end_of_its_run_is_idle_held(self, tmp_path):
        ended = run(ended_ms=at(60), outcome="succeeded")
        finding = sole_finding(explain(tmp_path, [*cluster(), *job(), *ended, *all_ranks(0, 60)]))
        assert (finding["cause"], finding["gpu_ms"]) == ("idle_held", 4 * clusters.HOUR)
        assert "its training ended at" in finding["evidence"][1]
