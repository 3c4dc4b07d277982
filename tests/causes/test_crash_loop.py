"""`crash_loop` on a small cluster: attempts in a row that fail and leave nothing behind."""

from __future__ import annotations

from datetime import UTC
from functools import partial

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Event, Pod, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import MINUTE, all_ranks, at, cluster, event, explain, interval, job, minutes, pod, run

found = partial(clusters.findings_of, "crash_loop")
only = partial(clusters.only_finding, "crash_loop")


class TestWithTheSdk:
    def loop(self, times, *, progress=0, steps_min=0, error="ValueError"):
        """Attempts of ten minutes in the job's pods: each fails, the last one is well."""
        records = [*cluster(), *job()]
        for number in range(times + 1):
            start, last = 10 * number, number == times
            ended = {} if last else {"ended_ms": at(start + 10), "outcome": "failed"}
            resumed = 1000 + progress * number
            first = start if last else start + 10 - steps_min if steps_min else None
            for r in run(attempt=number + 1, started_min=start, resumed_step=resumed, **ended):
                records.append(r._replace(first_step_ms=None if first is None else at(first)))
            if last or steps_min:
                until = 120 if last else start + 10
                records += all_ranks(first, until, attempt=number + 1, first_step=resumed)
            if not last and error:
                records.append(
                    event("exception", start + 10, 1, attempt=number + 1, reason=error, message="no such file")
                )
        return records

    def test_three_attempts_without_a_step_are_a_crash_loop(self, tmp_path):
        (finding,) = explain(tmp_path, self.loop(3))["findings"]
        assert finding["cause"] == "crash_loop"
        assert interval(finding) == minutes(0, 30)
        assert finding["gpu_ms"] == 4 * 30 * MINUTE
        assert finding["usd_micro"] == 4 * 30 * 60_000
        assert finding["culprit"] is None
        assert finding["title"].startswith("llama crashed 3 times in a row")
        assert finding["evidence"] == [
            "each attempt lasted about 10 min, and none completed a step",
            "all ended with ValueError: no such file",
        ]
        assert finding["what_if"]["saved_gpu_ms"] == 0  # with the third it is one, and there was no fourth

    def test_repeated_attempts_that_lose_their_steps_are_a_crash_loop(self, tmp_path):
        (finding,) = explain(tmp_path, self.loop(4, steps_min=4))["findings"]
        assert interval(finding) == minutes(0, 40)
        assert finding["gpu_ms"] == 4 * 40 * MINUTE  # startup and lost work
        assert finding["evidence"][0].startswith("no attempt got past the step it started from")
        assert finding["what_if"]["saved_gpu_ms"] == 4 * 10 * MINUTE  # all of the fourth

    def test_two_failures_are_not_a_crash_loop(self, tmp_path):
        assert found(explain(tmp_path, self.loop(2))) == []

    def test_failures_with_progress_are_not_a_crash_loop(self, tmp_path):
        assert found(explain(tmp_path, self.loop(4, steps_min=4, progress=200))) == []

    def test_repeated_out_of_memory_is_reported_as_out_of_memory(self, tmp_path):
        findings = explain(tmp_path, self.loop(3, error="OutOfMemoryError"))["findings"]
        assert [f["cause"] for f in findings] == ["out_of_memory"]

    def test_repeated_preemption_is_not_a_crash_loop(self, tmp_path):
        evictions = [Event(at(10 * n), "preempted", pod_uid="llama-0") for n in (1, 2, 3)]
        assert found(explain(tmp_path, [*self.loop(3), *evictions])) == []

    def test_crash_loop_is_cut_at_the_time_range_and_counts_earlier_attempts(self, tmp_path):
        with Store(tmp_path, create=True) as store:
            store.append(self.loop(3))
            build(store, Settings(), now_ms=at(120))
            finding = only(why(store, TimeRange(at(15), at(60)), Settings(), zone=UTC))
            assert interval(finding) == minutes(15, 30)
            assert finding["gpu_ms"] == 4 * 15 * MINUTE
            assert "3 times" in finding["title"]
            assert found(why(store, TimeRange(at(40), at(60)), Settings(), zone=UTC)) == []

    def test_crash_loop_without_prices_has_no_cost(self, tmp_path):
        finding = only(explain(tmp_path, [r for r in self.loop(3) if not isinstance(r, Price)]))
        assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 4 * 30 * MINUTE)


class TestWithKubernetesAlone:
    def pods(self, lives, *, workload="llama", node="n0", phase="Failed", numbered=True):
        """Pods one after the other, each with these minutes of image pull and one of a running container."""
        records = [Workload(at(0), "test", workload, "Job", "ml", workload, team="nlp")]
        start = 0
        for number, life in enumerate(lives, 1):
            attempt = number if numbered else 1
            for r in pod(
                f"{workload}-{number}",
                workload,
                node,
                from_min=start,
                to_min=start + life,
                attempt=attempt,
                reason="Error",
            ):
                records.append(r._replace(phase=phase, started_ms=at(start + life - 1)) if isinstance(r, Pod) else r)
            start += life + 2
        return records

    @pytest.mark.parametrize("numbered", [True, False])
    def test_pods_with_short_lives_are_a_crash_loop(self, tmp_path, numbered):
        finding = only(explain(tmp_path, [*cluster(), *self.pods([8, 9, 10], numbered=numbered)]))
        assert interval(finding) == minutes(0, 31)
        assert finding["gpu_ms"] == 2 * (8 + 9 + 10) * MINUTE  # what ran unseen as well: it came to nothing
        assert finding["evidence"][0] == "each attempt lasted about 9 min, the longest 10 min"
        assert finding["evidence"][1] == "its pods ended with Error"
        assert finding["confidence"] < 0.9

    def test_long_life_between_failures_ends_the_crash_loop(self, tmp_path):
        assert found(explain(tmp_path, [*cluster(), *self.pods([8, 9, 45, 10, 9])])) == []

    def test_successive_successful_pods_are_not_a_crash_loop(self, tmp_path):
        assert found(explain(tmp_path, [*cluster(), *self.pods([8, 9, 10], phase="Succeeded")])) == []

    def parts(self, *parts, **of_workload):
        """Pods that fail one after the other; each works on an index of its job, or on a step of its pipeline."""
        records = [r._replace(**of_workload) if isinstance(r, Workload) else r for r in self.pods([5] * len(parts))]
        of = {f"llama-{number}": part for number, part in enumerate(parts, 1)}
        field = {int: "rank", str: "pipeline_step"}
        return [r._replace(**{field[type(of[r.pod_uid])]: of[r.pod_uid]}) if isinstance(r, Pod) else r for r in records]

    @pytest.mark.parametrize("parts", [(0, 1, 2, 3), ("load", "train", "test"), (0, 0, 1, 1)])
    def test_independent_failures_of_parts_are_not_a_crash_loop(self, tmp_path, parts):
        assert found(explain(tmp_path, [*cluster(), *self.parts(*parts)])) == []

    @pytest.mark.parametrize("parts", [(2, 2, 2), ("train", "train", "train")])
    def test_repeated_failures_of_one_part_are_a_crash_loop(self, tmp_path, parts):
        assert only(explain(tmp_path, [*cluster(), *self.parts(*parts)]))["gpu_ms"] == 2 * 3 * 5 * MINUTE

    def test_repeated_failures_of_several_parts_are_a_crash_loop(self, tmp_path):
        both = found(explain(tmp_path, [*cluster(), *self.parts(0, 1, 0, 1, 0, 1)]))
        assert [one["gpu_ms"] for one in both] == [2 * 3 * 5 * MINUTE] * 2

    def test_gang_failure_is_counted_once_for_any_recorded_pod(self, tmp_path):
        """While the collector was down, the others of each attempt were deleted, and were not seen."""
        unseen = Event(at(0) - MINUTE, "watch_gap", 60 * MINUTE, "test")
        records = [*cluster(), *self.parts(0, 3, 1, gang_pods=4), unseen]
        assert only(explain(tmp_path, records))["gpu_ms"] == 2 * 3 * 5 * MINUTE

    def test_concurrent_pod_failures_are_one_attempt(self, tmp_path):
        records = [Workload(at(0), "test", "llama", "Job", "ml", "llama", team="nlp")]
        for number in range(4):
            for r in pod(f"llama-{number}", "llama", f"n{number}", to_min=20):
                records.append(r._replace(phase="Failed", started_ms=at(19)) if isinstance(r, Pod) else r)
        assert found(explain(tmp_path, [*cluster(nodes=4), *records])) == []

    def restarts(self, *lives, reason="Error", waits=5):
        """A pod that restarts its containers: each lives for some minutes, and is waited for for some more."""
        records, start = [], 0
        for life in lives:
            for kind, minute in (("container_restarted", start + life), ("container_started", start + life + waits)):
                records.append(Event(at(minute), kind, cluster="test", pod_uid="llama-0", reason=reason))
            start += life + waits
        return [*cluster(), *job(pods=1), *records]

    def test_container_restarts_are_a_crash_loop(self, tmp_path):
        finding = only(explain(tmp_path, self.restarts(2, 3, 2, 3)))
        assert interval(finding) == minutes(0, 25)  # the life after the last restart continues
        assert finding["gpu_ms"] == 2 * 25 * MINUTE  # what ran unseen, and what was waited for the next container
        assert finding["evidence"][1] == "its pods ended with Error"

    def test_long_lived_or_successful_containers_are_not_a_crash_loop(self, tmp_path):
        assert found(explain(tmp_path / "long", self.restarts(32, 33))) == []
        assert found(explain(tmp_path / "well", self.restarts(2, 3, 2, 3, reason="Completed"))) == []

    def test_oom_killed_containers_are_reported_as_out_of_memory(self, tmp_path):
        answer = explain(tmp_path, self.restarts(2, 3, 2, 3, reason="OOMKilled"))
        assert found(answer) == []
        assert [f["cause"] for f in answer["findings"]] == ["out_of_memory"]

    def test_concurrent_crash_loops_of_two_workloads_are_two_findings(self, tmp_path):
        records = [*self.pods([8, 9, 10]), *self.pods([5, 5, 5, 5, 20], workload="bert", node="n1")]
        findings = found(explain(tmp_path, [*cluster(), *records]))
        assert {f["workload"]["name"]: f["gpu_ms"] for f in findings} == {
            "llama": 2 * 27 * MINUTE,
            "bert": 2 * (4 * 5 + 20) * MINUTE,
        }


def test_healthy_night_has_no_crash_loop(tmp_path):
    assert explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120)])["findings"] == []
