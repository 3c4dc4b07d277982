"""Each cause on a small cluster: the right culprit, interval and dollars; and nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from pyrometer.account.query.answer_json import iso
from pyrometer.causes.registry import DETECTORS, detectors_of
from pyrometer.model.records import Batch, Pod, Workload
from pyrometer.model.states import CAUSES, CRITICAL_CAUSES, IMMEDIATE_CAUSES
from tests.support import clusters
from tests.support.clusters import (
    NORMAL_STEP_MS,
    all_ranks,
    at,
    cluster,
    event,
    explain,
    interval,
    job,
    pod,
    run,
    samples,
    steps,
)


def only(answer):
    (finding,) = answer["findings"]
    return finding


def minutes(from_min, to_min):
    from datetime import UTC

    return iso(at(from_min), UTC), iso(at(to_min), UTC)


def test_every_cause_needs_a_detector():
    by_cause = dict(zip(CAUSES, DETECTORS, strict=True))
    assert len(detectors_of(by_cause)) == len(CAUSES)
    with pytest.raises(ValueError, match="missing for: hang"):
        detectors_of({cause: detect for cause, detect in by_cause.items() if cause != "hang"})
    with pytest.raises(ValueError, match="missing for: sabotage"):
        detectors_of(by_cause | {"sabotage": DETECTORS[0]})


def test_causes_that_are_reported_at_once_are_critical():
    assert set(IMMEDIATE_CAUSES) <= set(CRITICAL_CAUSES) <= set(CAUSES)


def test_a_healthy_night_has_no_finding(tmp_path):
    answer = explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120)])
    assert answer["findings"] == []
    assert {row["state"] for row in answer["states"]} == {"train", "data_stall", "comm_stall"}


class TestHang:
    def records(self, reports):
        before = all_ranks(0, 40)
        return [*cluster(), *job(), *run(), *before, *reports]

    def test_the_rank_with_the_lowest_step_is_the_culprit(self, tmp_path):
        reports = [event("stuck", 40, rank, step=3999 - (rank == 2), reason="backward") for rank in range(4)]
        finding = only(explain(tmp_path, self.records(reports)))
        assert finding["cause"] == "hang"
        assert finding["culprit"] == {"rank": 2, "node": "node-1", "gpu": 0, "phase": "backward"}
        assert interval(finding) == minutes(40, 120)
        assert finding["gpu_ms"] == 4 * 80 * clusters.MINUTE
        assert finding["usd_micro"] == 4 * 80 * 60_000  # 4 GPUs for 80 minutes at 0.06 dollars a minute
        assert "after step 3,998 in backward" in finding["evidence"][0]
        assert finding["what_if"] == {
            "detected": minutes(41, 0)[0],
            "detect_s": 60.0,  # the hang's limit: it is told however little it costs
            "saved_gpu_ms": 4 * 79 * clusters.MINUTE,
            "saved_usd_micro": 4 * 79 * 60_000,
            "saved_usd": 18.96,
            "sentence": "Caught at 20:41, it would have cost $0.24 instead of $19.",
        }

    def test_a_rank_that_says_nothing_while_the_others_wait_is_the_culprit(self, tmp_path):
        reports = [event("stuck", 40, rank, step=3999) for rank in (0, 1, 2)]
        finding = only(explain(tmp_path, self.records(reports)))
        assert finding["culprit"]["rank"] == 3
        assert "rank 3 stopped reporting" in finding["evidence"][0]

    def test_it_ends_where_progress_goes_on(self, tmp_path):
        reports = [event("stuck", 40, r, step=3999) for r in range(4)] + [event("unstuck", 55.5, r) for r in range(4)]
        again = all_ranks(56, 120)
        finding = only(explain(tmp_path, [*self.records(reports), *again]))
        assert interval(finding) == minutes(40, 55.5)
        assert finding["gpu_ms"] == 4 * 15.5 * clusters.MINUTE

    def test_a_spinning_kernel_is_seen_without_the_sdk(self, tmp_path):
        busy = {"gpu_util_permille": 930, "sm_active_permille": 820, "power_w": 674}
        spins = {"gpu_util_permille": 1000, "sm_active_permille": 8, "tensor_active_permille": 0, "power_w": 125}
        telemetry = [
            sample
            for number in range(4)
            for sample in samples(f"n{number // 2}", number % 2, 0, 50, **busy)
            + samples(f"n{number // 2}", number % 2, 50, 120, **spins)
        ]
        finding = only(explain(tmp_path, [*cluster(), *job(), *telemetry]))
        assert (finding["cause"], interval(finding)) == ("hang", minutes(50, 120))
        assert finding["what_if"]["saved_gpu_ms"] == 4 * 69 * clusters.MINUTE
        assert "a spinning kernel" in finding["evidence"][0]


IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}
BUSY = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}


class TestIdleHeld:
    def test_a_forgotten_notebook(self, tmp_path):
        notebook = [
            Workload(clusters.START_MS, "test", "nb", "Notebook", "ml", "nb", team="vision"),
            *pod("nb-0", "nb", "n0", gpus=1, user="ada"),
        ]
        telemetry = samples("n0", 0, 0, 30, **BUSY) + samples("n0", 0, 30, 120, **IDLE)
        finding = only(explain(tmp_path, [*cluster(), *notebook, *telemetry]))
        assert finding["cause"] == "idle_held"
        assert finding["culprit"] == {"pod": "nb-0", "user": "ada"}
        assert interval(finding) == minutes(30, 120)
        assert finding["team"] == "vision"
        assert finding["what_if"]["detected"] == minutes(47, 0)[0]  # when it had cost a dollar, after the idle gap

    def test_a_short_pause_is_not_one(self, tmp_path):
        telemetry = samples("n0", 0, 0, 30, **BUSY) + samples("n0", 0, 30, 44, **IDLE)
        telemetry += samples("n0", 0, 44, 120, **BUSY)
        answer = explain(tmp_path, [*cluster(), *job(pods=1, gpus=1), *telemetry])
        assert answer["findings"] == []
        assert "starved" in {row["state"] for row in answer["states"]}

    def test_a_job_that_is_over_and_keeps_its_pod(self, tmp_path):
        ended = run(ended_ms=at(60), outcome="succeeded")
        finding = only(explain(tmp_path, [*cluster(), *job(), *ended, *all_ranks(0, 60)]))
        assert (finding["cause"], finding["gpu_ms"]) == ("idle_held", 4 * clusters.HOUR)
        assert "its training ended at" in finding["evidence"][1]


def test_gang_wait_names_the_missing_pods(tmp_path):
    records = [
        *cluster(),
        Workload(clusters.START_MS, "test", "llama", "PyTorchJob", "ml", "llama", team="nlp", gang_pods=2),
        *pod("llama-0", "llama", "n0"),
        *pod("llama-1", "llama", "n1", from_min=30),
        *run(started_min=30),
        *all_ranks(30, 120),
    ]
    finding = only(explain(tmp_path, records))
    assert finding["cause"] == "gang_wait"
    assert finding["culprit"] == {"pods": ["llama-1"]}
    assert interval(finding) == minutes(0, 30)
    assert finding["gpu_ms"] == 2 * 30 * clusters.MINUTE


def test_a_gang_that_waits_is_never_said_to_be_complete(tmp_path):
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
    finding = only(explain(tmp_path, records))
    assert finding["cause"] == "gang_wait"
    assert finding["evidence"][0] == "1 of 2 pods were scheduled"


class TestDataStall:
    def test_on_every_node(self, tmp_path):
        records = [
            *cluster(),
            *job(),
            *run(),
            *all_ranks(0, 30),
            *all_ranks(30, 60, data_ms=24_000),
            *all_ranks(60, 120),
        ]
        finding = only(explain(tmp_path, records))
        assert (finding["cause"], interval(finding)) == ("data_stall", minutes(30, 60))
        assert finding["culprit"] is None
        assert finding["gpu_ms"] == 4 * 30 * 24_000
        assert finding["evidence"][0].startswith("40%")

    def test_on_one_node(self, tmp_path):
        slow = [w for rank in (2, 3) for w in steps(rank, 30, 60, **(NORMAL_STEP_MS | {"data_ms": 24_000}))]
        fine = [w for rank in (0, 1) for w in steps(rank, 30, 60, **NORMAL_STEP_MS)]
        records = [*cluster(), *job(), *run(), *all_ranks(0, 30), *slow, *fine, *all_ranks(60, 120)]
        finding = only(explain(tmp_path, records))
        assert finding["culprit"] == {"node": "node-1"}
        assert finding["gpu_ms"] == 2 * 30 * 24_000

    @pytest.mark.parametrize(("from_min", "to_min"), [(0, 6), (50, 52)], ids=["a cold loader", "a new epoch"])
    def test_a_few_late_batches_are_none(self, tmp_path, from_min, to_min):
        late = all_ranks(from_min, to_min, data_ms=24_000)
        records = [*run(), *all_ranks(0, from_min), *late, *all_ranks(to_min, 120)]
        assert explain(tmp_path, [*cluster(), *job(), *records])["findings"] == []

    def test_a_stall_from_the_first_step_on_that_lasts(self, tmp_path):
        records = [*run(), *all_ranks(0, 25, data_ms=24_000), *all_ranks(25, 120)]
        finding = only(explain(tmp_path, [*cluster(), *job(), *records]))
        assert (finding["cause"], interval(finding)) == ("data_stall", minutes(0, 25))

    def test_a_little_waiting_is_normal(self, tmp_path):
        assert explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120, data_ms=3_000)])["findings"] == []


class TestStraggler:
    @pytest.mark.parametrize("phase", ["forward", "backward", "copy", "garbage", "data"])
    def test_the_slow_rank_and_its_phase(self, tmp_path, phase):
        slow = NORMAL_STEP_MS | {f"{phase}_ms": NORMAL_STEP_MS.get(f"{phase}_ms", 0) + 5_000, "comm_ms": 1_500}
        waiting = NORMAL_STEP_MS | {"comm_ms": 6_500}
        windows = [w for rank in range(4) for w in steps(rank, 20, 100, **(slow if rank == 3 else waiting))]
        records = [*cluster(), *job(), *run(), *all_ranks(0, 20), *windows, *all_ranks(100, 120)]
        found = {finding["cause"]: finding for finding in explain(tmp_path, records)["findings"]}
        assert set(found) == {"straggler"}
        culprit = found["straggler"]["culprit"]
        assert culprit == {"rank": 3, "node": "node-1", "gpu": 1, "phase": phase}
        assert interval(found["straggler"]) == minutes(20, 100)
        assert found["straggler"]["gpu_ms"] == 3 * 80 * 5_000

    def test_equal_waiting_is_communication_not_a_straggler(self, tmp_path):
        answer = explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120, comm_ms=9_000)])
        assert answer["findings"] == []
        states = {row["state"]: row["gpu_ms"] for row in answer["states"]}
        assert states["comm_stall"] == 4 * 120 * 9_000
        assert "straggler_wait" not in states


def test_lost_work_counts_the_steps_that_were_done_again(tmp_path):
    first = [w for rank in range(4) for w in steps(rank, 0, 50, **NORMAL_STEP_MS)]
    second = [w for rank in range(4) for w in steps(rank, 60, 120, attempt=2, first_step=3000, **NORMAL_STEP_MS)]
    attempts = [*run(ended_ms=at(50), outcome="failed"), *run(attempt=2, started_min=60, resumed_step=3000)]
    answer = explain(tmp_path, [*cluster(), *job(), *attempts, *first, *second])
    finding = next(f for f in answer["findings"] if f["cause"] == "lost_work")
    assert interval(finding) == minutes(30, 50)
    assert finding["gpu_ms"] == 4 * 20 * clusters.MINUTE
    assert "lost 2,000 steps" in finding["title"]
    assert [f["cause"] for f in answer["findings"]] == ["lost_work", "idle_held"]  # ten minutes between the attempts


def test_training_on_after_the_loss_is_no_number(tmp_path):
    reports = [event("nonfinite_loss", 70, rank, step=7_000 + (rank != 3)) for rank in (0, 3)]
    drawn = [
        Batch(
            at(69), "run", 1, rank, 0, 0, step, step=step, dataset="pile", samples=tuple(f"{step}{n}" for n in range(8))
        )
        for rank in (0, 3)
        for step in (6_999, 7_000)
    ]
    finding = only(explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120), *reports, *drawn]))
    assert (finding["cause"], interval(finding)) == ("diverged", minutes(70, 120))
    assert finding["gpu_ms"] == 4 * 50 * clusters.MINUTE  # one rank speaks for all
    assert "at step 7,000" in finding["evidence"][0]
    assert finding["evidence"][1:] == ["step 7,000: samples 70000, 70001, 70002, 70003, 70004, … of pile on rank 3"]


def test_findings_below_the_limits_are_not_told(tmp_path):
    reports = [event("stuck", 40, rank, step=3999) for rank in range(4)]
    reports += [event("unstuck", 41.1, rank) for rank in range(4)]
    records = [*cluster(), *job(), *run(), *all_ranks(0, 40), *reports, *all_ranks(42, 120)]
    assert explain(tmp_path, records)["findings"] == []  # 26 cents


def test_detectors_stand_in_the_order_in_which_causes_claim():
    names = [detector.__module__.rsplit(".", 1)[1] for detector in DETECTORS]
    assert names == [cause for cause in CAUSES if cause in names]
