"""`out_of_memory` on a small cluster: the rank that ran out, the work that it lost, and its start."""

from __future__ import annotations

from datetime import UTC
from functools import partial

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import (
    MINUTE,
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
)

found = partial(clusters.findings_of, "out_of_memory")
only = partial(clusters.only_finding, "out_of_memory")


def oom(minute, rank, *, attempt=1, **more):
    return event(
        "exception", minute, rank, attempt=attempt, reason="OutOfMemoryError", message="CUDA out of memory", **more
    )


def attempt_of(number, started_min, ended_min=None, *, first_step_min=None, **more):
    """The ranks of an attempt in the job's two pods; without a first step it only starts up."""
    ended = {"ended_ms": at(ended_min), "outcome": "failed"} if ended_min is not None else {}
    ranks = run(attempt=number, started_min=started_min, **ended, **more)
    first = None if first_step_min is None else at(first_step_min)
    return [r._replace(first_step_ms=first, time_ms=at(ended_min or started_min)) for r in ranks]


class TestOfTheGpu:
    def one(self, **more):
        """Rank 2 runs out at minute 50; the next attempt continues from step 3,000, of minute 30."""
        return [
            *cluster(),
            *job(),
            *attempt_of(1, 0, 50, first_step_min=0),
            *all_ranks(0, 50, **more),
            oom(50, 2),
            *attempt_of(2, 50, first_step_min=50, resumed_step=3000),
            *all_ranks(50, 120, attempt=2, first_step=3000),
        ]

    def test_out_of_memory_claims_the_lost_steps(self, tmp_path):
        (finding,) = explain(tmp_path, self.one())["findings"]
        assert finding["cause"] == "out_of_memory"
        assert finding["culprit"] == {"rank": 2, "node": "node-1"}
        assert interval(finding) == minutes(30, 50)
        assert finding["gpu_ms"] == 4 * 20 * MINUTE
        assert finding["usd_micro"] == 4 * 20 * 60_000
        assert finding["title"].startswith("llama ran out of GPU memory at")
        assert finding["evidence"] == [
            "rank 2 on node-1 ended with an out-of-memory error",
            "20 min of its steps had to be repeated",
        ]

    def test_out_of_memory_reports_the_growth_of_memory(self, tmp_path):
        records = [
            r._replace(memory_peak_mib=60_000 + 20 * ((r.time_ms - at(0)) // MINUTE) ** 2)
            if hasattr(r, "copy_ms")
            else r
            for r in self.one()
        ]
        finding = only(explain(tmp_path, records))
        assert finding["evidence"][1] == "its memory grew from 59 to 105 GiB in 50 min"

    def test_out_of_memory_reports_memory_use_from_telemetry(self, tmp_path):
        full = samples("n1", 0, 0, 50, gpu_util_permille=900, sm_active_permille=800, memory_used_mib=140_000)
        finding = only(explain(tmp_path, [*self.one(), *full]))
        assert finding["evidence"][1] == "it used 137 GiB before"

    def test_out_of_memory_without_a_later_attempt_claims_no_lost_steps(self, tmp_path):
        records = [*cluster(), *job(to_min=50), *attempt_of(1, 0, 50, first_step_min=0), *all_ranks(0, 50), oom(50, 2)]
        assert found(explain(tmp_path, records)) == []

    def test_out_of_memory_before_the_first_step_claims_the_whole_attempt(self, tmp_path):
        records = [
            *cluster(),
            *job(),
            *attempt_of(1, 0, 12),
            oom(12, 0),
            oom(12, 1),
            *attempt_of(2, 12, first_step_min=20),
            *all_ranks(20, 120, attempt=2),
        ]
        finding = only(explain(tmp_path, records))
        assert interval(finding) == minutes(0, 12)
        assert finding["gpu_ms"] == 4 * 12 * MINUTE
        assert finding["culprit"] == {"rank": 0, "node": "node-0"}

    def again(self, ends):
        """Attempts of ten minutes, one after the other: five of startup, five of steps that are lost each time."""
        records = [*cluster(), *job()]
        for number, ended_by in enumerate(ends):
            start = 10 * number
            records += attempt_of(number + 1, start, start + 10, first_step_min=start + 5, resumed_step=1000)
            records += all_ranks(start + 5, start + 10, attempt=number + 1, first_step=1000)
            if ended_by == "oom":
                records.append(oom(start + 10, 3, attempt=number + 1))
        last = 10 * len(ends)
        records += attempt_of(len(ends) + 1, last, first_step_min=last, resumed_step=1000)
        return records + all_ranks(last, 120, attempt=len(ends) + 1, first_step=1000)

    def test_successive_out_of_memory_failures_are_one_finding(self, tmp_path):
        (finding,) = explain(tmp_path, self.again(["oom"] * 3))["findings"]
        assert interval(finding) == minutes(0, 30)
        assert finding["gpu_ms"] == 4 * 30 * MINUTE
        assert "3 times" in finding["title"]
        assert "3 of 3 attempts made no progress" in finding["evidence"]

    def test_out_of_memory_failures_around_another_failure_are_two_findings(self, tmp_path):
        findings = found(explain(tmp_path, self.again(["oom", "other", "oom"])))
        assert sorted(interval(f) for f in findings) == [minutes(0, 10), minutes(20, 30)]

    def test_out_of_memory_of_two_workloads_is_two_findings(self, tmp_path):
        other = [Workload(at(0), "test", "bert", "PyTorchJob", "ml", "bert", team="nlp")]
        killed = pod("bert-0", "bert", "n2", to_min=20, reason="OOMKilled", rank=0)
        killed = [r._replace(phase="Failed", started_ms=at(18)) if hasattr(r, "phase") else r for r in killed]
        records = [*self.one(), *other, *killed]
        records += [r._replace(node_uid="n2", name="node-2") for r in cluster(nodes=1) if hasattr(r, "gpu_count")]
        findings = found(explain(tmp_path, records))
        assert {(f["workload"]["name"], f["culprit"]["node"]) for f in findings} == {
            ("llama", "node-1"),
            ("bert", "node-2"),
        }

    def test_out_of_memory_is_cut_at_the_time_range(self, tmp_path):
        with Store(tmp_path, create=True) as store:
            store.append(self.one())
            build(store, Settings(), now_ms=at(120))
            finding = only(why(store, TimeRange(at(40), at(100)), Settings(), zone=UTC))
            assert interval(finding) == minutes(40, 50)
            assert finding["gpu_ms"] == 4 * 10 * MINUTE
            assert found(why(store, TimeRange(at(60), at(100)), Settings(), zone=UTC)) == []

    def test_out_of_memory_without_prices_has_no_cost(self, tmp_path):
        finding = only(explain(tmp_path, [r for r in self.one() if not isinstance(r, Price)]))
        assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 4 * 20 * MINUTE)

    @pytest.mark.parametrize("reason", ["RuntimeError", "ValueError", None])
    def test_another_exception_is_not_out_of_memory(self, tmp_path, reason):
        records = [r for r in self.one() if getattr(r, "kind", None) != "exception"]
        records.append(event("exception", 50, 2, reason=reason, message="shapes differ"))
        assert [f["cause"] for f in explain(tmp_path, records)["findings"]] == ["lost_work"]


class TestOfTheHost:
    def killed(self, life_min, **more):
        """Kubernetes alone: a pod whose containers ran from the second minute before its end on."""
        records = pod("llama-0", "llama", "n0", to_min=life_min, reason="OOMKilled", rank=0, **more)
        return [r._replace(phase="Failed", started_ms=at(life_min - 2)) if hasattr(r, "phase") else r for r in records]

    def test_host_out_of_memory_is_found_with_kubernetes_alone(self, tmp_path):
        finding = only(explain(tmp_path, [*cluster(), *job(pods=0), *self.killed(20)]))
        assert finding["culprit"] == {"rank": 0, "node": "node-0"}
        assert interval(finding) == minutes(0, 20)
        assert finding["gpu_ms"] == 2 * 20 * MINUTE  # its start, and what ran unseen
        assert "host memory" in finding["title"]
        assert finding["evidence"] == ["rank 0 on node-0 was OOM-killed"]

    def test_host_out_of_memory_claims_only_the_start_of_a_long_life(self, tmp_path):
        records, start = [], 0
        for number, life in enumerate((20, 60, 20)):
            there = pod(
                f"llama-{number}",
                "llama",
                "n0",
                from_min=start,
                to_min=start + life,
                attempt=number + 1,
                reason="OOMKilled",
                rank=0,
            )
            runs_ms = at(start + life - 2)
            records += [r._replace(phase="Failed", started_ms=runs_ms) if hasattr(r, "phase") else r for r in there]
            start += life + 2
        finding = only(explain(tmp_path, [*cluster(), *job(pods=0), *records]))
        assert interval(finding) == minutes(0, 104)
        assert finding["gpu_ms"] == 2 * (20 + 58 + 20) * MINUTE
        assert finding["evidence"][1] == "2 of 3 attempts made no progress"

    def test_host_out_of_memory_does_not_claim_a_long_life(self, tmp_path):
        assert found(explain(tmp_path, [*cluster(), *job(pods=0), *self.killed(60)])) == []

    def test_host_out_of_memory_names_the_killed_rank(self, tmp_path):
        ranks = attempt_of(1, 0, 50, first_step_min=0)
        ranks = [r._replace(outcome="killed" if r.rank == 3 else "failed") for r in ranks]
        pods = [
            r._replace(phase="Failed", reason="OOMKilled") if getattr(r, "name", "") == "llama-1" else r
            for r in job(to_min=50)
        ]
        later = [
            *pod("again-0", "llama", "n0", from_min=50, attempt=2),
            *pod("again-1", "llama", "n1", from_min=50, attempt=2),
        ]
        second = attempt_of(2, 50, first_step_min=50, resumed_step=3000)
        windows = all_ranks(50, 120, attempt=2, first_step=3000)
        moved = [r._replace(pod_uid=f"again-{r.rank // 2}") for r in (*second, *windows)]
        finding = only(explain(tmp_path, [*cluster(), *pods, *ranks, *all_ranks(0, 50), *later, *moved]))
        assert finding["culprit"] == {"rank": 3, "node": "node-1"}
        assert finding["gpu_ms"] == 4 * 20 * MINUTE

    def test_pod_with_another_end_is_not_out_of_memory(self, tmp_path):
        ended = [r._replace(reason="Error") if hasattr(r, "phase") else r for r in self.killed(20)]
        assert found(explain(tmp_path, [*cluster(), *job(pods=0), *ended])) == []
