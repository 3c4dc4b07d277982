"""The lifecycle of workloads as metrics: phases and durations, with a limited number of series."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.fleet.workload_status import PHASES
from pyrometer.answers.runs.overview import runs
from pyrometer.answers.runs.progress import Progress
from pyrometer.export.metrics_text import render_metrics
from pyrometer.export.workload_metrics import WorkloadCollector
from pyrometer.model.records import Event, Metric, Pod, Restatement, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, all_ranks, at, cluster, job, pod, run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, create=True) as store:
        store.append(cluster(hours=4))
        yield store


class Shown:
    """The values that a scraper sees as time passes."""

    def __init__(self, store: Store, **more: int) -> None:
        self.store, self.workloads, self.progress = store, WorkloadCollector(**more), Progress()

    def at(self, minute: float) -> None:
        build(self.store, Settings(), now_ms=at(minute))
        self.progress.read(self.store, at(minute), at(minute - 10))
        self.workloads.count(self.store, at(minute), self.progress.runs.values())

    @property
    def text(self) -> str:
        return render_metrics([self.workloads], "")[0].decode()

    def of(self, workload: str) -> dict[str, float]:
        """The figures of a workload, and of its phases the one that is so."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                if sample.labels.get("workload") == workload:
                    name = sample.name.removeprefix("pyrometer_workload_")
                    phase = sample.labels.get("phase")
                    if phase is None or sample.value:
                        found[phase or name] = sample.value
        return found

    def ended(self) -> dict[tuple[str, str, str], float]:
        families = {family.name: family for family in text_string_to_metric_families(self.text)}
        samples = families["pyrometer_workloads_ended"].samples
        return {(one.labels["kind"], one.labels["team"], one.labels["outcome"]): one.value for one in samples}


def waiting(name: str, minute: float, workload: str = "llama", **more: Any) -> Pod:
    return Pod(
        at(minute), "test", name, "ml", name, "Pending", workload, created_ms=at(minute), gpu_share=SHARE_WHOLE, **more
    )


def test_workload_metrics_cover_the_lifecycle_from_queue_to_end(store: Store) -> None:
    shown = Shown(store)
    owner = Workload(at(0), "test", "llama", "PyTorchJob", "ml", "llama", team="nlp", gang_pods=2, created_ms=at(0))
    store.append([owner])
    store.append([waiting("queued/q/main/0", 0)])
    shown.at(3)
    assert shown.of("ml/llama") == {
        "queued": 1,
        "pods": 0,
        "attempts": 0,
        "container_restarts": 0,
        "lost_work_gpu_seconds": 0,
        "created_timestamp_seconds": START_MS / 1000,
    }
    over = waiting("queued/q/main/0", 0)._replace(time_ms=at(5), ended_ms=at(5), phase="Succeeded")
    store.append([over, Event(at(5), "admitted", 300_000, workload_uid="llama"), waiting("a", 5), waiting("b", 5)])
    store.append([waiting("a", 5)._replace(time_ms=at(6), scheduled_ms=at(6), node_uid="n0")])
    shown.at(7)
    values = shown.of("ml/llama")
    assert (values["pending"], values["pods"], values["queued_seconds"]) == (1, 2, 300)
    assert "scheduled_seconds" not in values  # a pod has no node yet
    placed = {"scheduled_ms": at(8), "node_uid": "n1"}
    store.append([waiting("b", 5)._replace(time_ms=at(8), **placed)])
    shown.at(9)
    assert (shown.of("ml/llama")["starting"], shown.of("ml/llama")["scheduled_seconds"]) == (1, 480)
    started = [
        waiting("a", 5)._replace(time_ms=at(9), scheduled_ms=at(6), node_uid="n0", started_ms=at(9), phase="Running"),
        waiting("b", 5)._replace(time_ms=at(10), started_ms=at(10), phase="Running", **placed),
    ]
    store.append([*started, Event(at(11), "container_restarted", pod_uid="b", workload_uid="llama", reason="Error")])
    shown.at(12)
    values = shown.of("ml/llama")
    assert (values["running"], values["all_running_seconds"], values["container_restarts"]) == (1, 600, 1)
    assert "ended_timestamp_seconds" not in values
    store.append([one._replace(time_ms=at(20), ended_ms=at(20), phase="Succeeded") for one in started])
    shown.at(21)
    values = shown.of("ml/llama")
    assert (values["succeeded"], values["ended_timestamp_seconds"]) == (1, at(20) / 1000)
    assert (values["queued_seconds"], values["container_restarts"]) == (
        300,
        1,
    )  # what happened is remembered, and counts once
    assert shown.ended()["PyTorchJob", "nlp", "succeeded"] == 1
    shown.at(22)
    assert shown.ended()["PyTorchJob", "nlp", "succeeded"] == 1
    shown.at(85)
    assert shown.of("ml/llama") == {}  # an hour after its end
    assert shown.ended()["PyTorchJob", "nlp", "succeeded"] == 1


def test_workload_metrics_include_sdk_and_controller_reports(store: Store) -> None:
    lost = [
        Restatement(at(50), "run", 1, f"n{n}", 0, at(20), at(30), "lost_work", pod_uid=f"llama-{n}") for n in range(2)
    ]
    values = [
        Metric(at(58), "llama", 1, 0, "progress", 62.0),
        Metric(at(58), "llama", 1, 0, "remaining_seconds", 600.0),
    ]
    store.append([*job(created_ms=at(-2)), *run(), *all_ranks(0, 55), *lost, *values])
    shown = Shown(store)
    shown.at(60)
    figures = shown.of("ml/llama")
    assert figures["first_step_seconds"] == 120
    assert figures["lost_work_gpu_seconds"] == 1200
    assert figures["last_progress_timestamp_seconds"] == at(58) / 1000  # the later of both
    assert (figures["progress_ratio"], figures["remaining_seconds"]) == (0.62, pytest.approx(480, abs=1))


def test_metric_of_the_program_is_not_taken_for_a_controller_report(store: Store) -> None:
    own = [
        Metric(at(50), "llama", 1, 0, name, value, step=7)
        for name, value in (("progress", 0.5), ("remaining_seconds", 1e307))
    ]
    store.append([*job(), *(one._replace(run="llama") for one in run()), *own])
    shown = Shown(store)
    shown.at(60)
    assert not {"progress_ratio", "remaining_seconds"} & set(shown.of("ml/llama"))
    window = TimeRange(at(0), at(60))
    assert [row["progress"] for row in runs(store, window, zone=UTC)["rows"]] == [None]
    store.append([Metric(at(61), "llama", 1, 0, name, 1e307) for name in ("progress", "remaining_seconds")])
    shown.at(62)
    assert shown.of("ml/llama")["progress_ratio"] == 1
    assert "remaining_seconds" not in shown.of("ml/llama")  # no end in sight


def test_queued_time_is_kept_until_the_pods_exist(store: Store) -> None:
    shown = Shown(store)
    queued = waiting("queued/q/main/0", 0)
    store.append([Workload(at(0), "test", "llama", "PyTorchJob", "ml", "llama", team="nlp", created_ms=at(0)), queued])
    shown.at(3)
    admitted = Event(at(4.5), "admitted", 270_000, "test", workload_uid="llama")
    store.append([admitted, queued._replace(time_ms=at(4.5), ended_ms=at(4.5), phase="Succeeded")])
    shown.at(5)
    assert shown.of("ml/llama") == {}  # admitted, and no pod was made yet
    store.append([waiting("llama-0", 6)])
    shown.at(7)
    assert (shown.of("ml/llama")["pending"], shown.of("ml/llama")["queued_seconds"]) == (1, 270)


def test_new_attempt_has_the_phase_of_its_pods(store: Store) -> None:
    store.append([*job(to_min=20), *pod("again", "llama", "n0", from_min=25, attempt=2)])
    shown = Shown(store)
    shown.at(30)
    assert (shown.of("ml/llama")["running"], shown.of("ml/llama")["attempts"]) == (1, 2)
    assert shown.of("ml/llama")["pods"] == 1


def test_failed_workload_is_counted_once_and_earlier_ends_are_not(store: Store) -> None:
    failed = [row._replace(phase="Failed") if isinstance(row, Pod) else row for row in job(to_min=20)]
    store.append(failed)
    shown = Shown(store)
    shown.at(30)
    assert shown.of("ml/llama")["failed"] == 1
    assert shown.ended() == {("PyTorchJob", "nlp", "succeeded"): 0, ("PyTorchJob", "nlp", "failed"): 0}


def test_workloads_with_equal_labels_share_a_series_within_the_limit(store: Store) -> None:
    twins = [
        Workload(at(0), "test", uid, "Job", "ml", "twin", team="nlp", created_ms=at(n)) for n, uid in enumerate("ab")
    ]
    store.append(
        [
            *twins,
            *pod("pa", "a", "n0", to_min=20),
            *pod("pb", "b", "n1", from_min=21),
            *job("llama", pods=1, from_min=25),
        ]
    )
    shown = Shown(store, max_workloads=1)
    shown.at(30)
    samples = [line for line in shown.text.splitlines() if line.startswith("pyrometer_workload_pods{")]
    assert len(samples) == 1
    assert "pyrometer_workload_lives_left_out 1.0" in shown.text
    everything = Shown(store)
    everything.at(30)
    assert everything.of("ml/twin")["running"] == 1
    assert everything.text.count("pyrometer_workload_pods{") == 2
    assert everything.text.count("pyrometer_workload_phase{") == 2 * len(PHASES)


def test_workload_metrics_pass_promtool(store: Store) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    store.append([*job(), *run(), *all_ranks(0, 30)])
    shown = Shown(store)
    shown.at(HOUR / 60_000)
    result = subprocess.run([promtool, "check", "metrics"], input=shown.text, capture_output=True, text=True)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
