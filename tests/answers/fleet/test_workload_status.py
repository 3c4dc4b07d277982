"""The current state of workloads: phases, times and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.answers.fleet.workload_status import WorkloadStatus, WorkloadStatuses
from pyrometer.model.records import Event, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store
from tests.support.clusters import START_MS, at, cluster, job


def statuses_of(folder: Path, records: list[object], minute: float = 60) -> list[WorkloadStatus]:
    """The workloads according to a store with these records."""
    statuses = WorkloadStatuses()
    with Store(folder, create=True) as store:
        store.append([*cluster(), *records])
        build(store, Settings(), now_ms=at(minute))
        statuses.read(store, at(minute))
    return statuses.workloads


def test_running_workload_has_its_pods_and_times(tmp_path: Path) -> None:
    records = [one._replace(gpu_share=2 * SHARE_WHOLE) if isinstance(one, Pod) else one for one in job()]
    (status,) = statuses_of(tmp_path, records)
    assert (status.kind, status.workload, status.team, status.phase) == ("PyTorchJob", "ml/llama", "nlp", "running")
    assert (status.pods, status.share, status.attempt, status.ended_ms) == (2, 4 * SHARE_WHOLE, 1, None)


@pytest.mark.parametrize(("phase", "outcome"), [("Succeeded", "succeeded"), ("Failed", "failed")])
def test_ended_workload_has_the_phase_of_its_pods(tmp_path: Path, phase: str, outcome: str) -> None:
    records = [one._replace(phase=phase) if isinstance(one, Pod) else one for one in job(to_min=50)]
    (status,) = statuses_of(tmp_path, records)
    assert (status.phase, status.ended_ms) == (outcome, at(50))


def test_workload_that_ended_long_ago_is_not_listed(tmp_path: Path) -> None:
    assert statuses_of(tmp_path, job(to_min=10), minute=120) == []


def test_pod_without_a_node_is_pending(tmp_path: Path) -> None:
    workload = Workload(START_MS, "test", "w", "Job", "ml", "waits", team="nlp")
    pod = Pod(at(10), "test", "p", "ml", "p", "Pending", "w", created_ms=at(10), gpu_share=2_000)
    (status,) = statuses_of(tmp_path, [workload, pod])
    assert (status.phase, status.scheduled_ms, status.started_ms) == ("pending", None, None)


def test_events_count_restarts_and_time_in_queues(tmp_path: Path) -> None:
    happened = [
        Event(at(20), "container_restarted", pod_uid="llama-0", workload_uid="llama"),
        Event(at(5), "admitted", duration_ms=90_000, workload_uid="llama"),
    ]
    (status,) = statuses_of(tmp_path, [*job(), *happened])
    assert (status.restarts, status.queued_ms) == (1, 90_000)
