"""Who waited for GPUs, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyrometer.model.records import Event, Metric, Pod, Workload
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.render.why_html import render_html
from pyrometer.render.why_text import render_text
from tests.support.clusters import MINUTE, at, cluster, explain, job


def waiting(name: str, since_min: float, *, queue: str | None = "train", gpus: int = 8) -> list[Any]:
    created_ms = at(since_min)
    return [
        Workload(created_ms, "test", name, "Job", "ml", name, queue=queue),
        Pod(
            created_ms,
            "test",
            f"queued/{name}/0",
            "ml",
            name,
            "Pending",
            name,
            queue=queue,
            created_ms=created_ms,
            gpu_share=gpus * SHARE_WHOLE,
        ),
    ]


def queued(name: str, from_min: float, waited_min: float, **more: Any) -> list[Any]:
    """A job that was created some minutes before it was scheduled."""
    records = job(name, pods=1, from_min=from_min, **more)
    return [r._replace(created_ms=at(from_min - waited_min)) if isinstance(r, Pod) else r for r in records]


def test_started_job_waited_until_its_first_pod_was_scheduled(tmp_path: Path) -> None:
    answer = explain(tmp_path, [*cluster(), *queued("llama", 40, 30, queue="train")])
    (row,) = answer["queues"]
    assert row == {
        "queue": "train",
        "started": 1,
        "waited_median_ms": 30 * MINUTE,
        "waited_longest_ms": 30 * MINUTE,
        "waiting": 0,
        "waiting_gpus": 0,
        "waiting_longest_ms": None,
    }
    (workload,) = [row for row in answer["workloads"] if row["workload"]["name"] == "llama"]
    assert workload["waited_ms"] == 30 * MINUTE
    assert "Queue train: 1 started after a median wait of 30 min." in render_text(answer)
    assert "waited 30\u00a0min" in render_html(answer) or "waited 30 min" in render_html(answer)


def test_queue_wait_uses_the_admission_time_of_kueue(tmp_path: Path) -> None:
    admitted = Event(at(39), "admitted", 90 * MINUTE, "test", workload_uid="llama")
    answer = explain(tmp_path, [*cluster(), *queued("llama", 40, 1, queue="train"), admitted])
    assert answer["queues"][0]["waited_median_ms"] == 90 * MINUTE


def test_job_that_still_waits_is_listed_with_its_request(tmp_path: Path) -> None:
    answer = explain(
        tmp_path, [*cluster(), *waiting("a", 20), *waiting("b", 90, gpus=4), *waiting("c", 100, queue=None)]
    )
    assert [(q["queue"], q["waiting"], q["waiting_gpus"], q["waiting_longest_ms"]) for q in answer["queues"]] == [
        ("train", 2, 12.0, 100 * MINUTE),
        ("ml", 1, 8.0, 20 * MINUTE),
    ]
    assert "Queue train: 2 jobs waiting for 12 GPUs, the longest for 1 h 40 min." in render_text(answer)
    assert "<h2>Queues" in render_html(answer)


def test_queue_waits_are_absent_without_waiting_jobs(tmp_path: Path) -> None:
    answer = explain(tmp_path, [*cluster(), *queued("llama", 40, 1)])
    assert "Queue" not in render_text(answer)
    assert "<h2>Queues" not in render_html(answer)


def test_progress_of_a_job_comes_from_its_controller(tmp_path: Path) -> None:
    progress = [Metric(at(minute), "llama", 1, 0, "progress", percent) for minute, percent in ((30, 20.0), (60, 45.0))]
    answer = explain(tmp_path, [*cluster(), *job(pods=1), *progress])
    assert answer["workloads"][0]["progress"] == 0.45
    assert "45% done" in render_html(answer)
