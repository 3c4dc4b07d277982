"""Events of Kubernetes and the progress of Kubeflow Trainer as records."""

from __future__ import annotations

from pyrometer.model.records import Metric
from tests.support.watched_cluster import T0, WatchedCluster, iso, node, owner, pod


def test_progress_of_reads_the_trainer_status() -> None:
    status = {
        "progressPercentage": 42,
        "estimatedRemainingSeconds": 7200,
        "lastUpdatedTime": iso(T0 + 60_000),
        "metrics": [{"name": "loss", "value": "1.25"}],
    }
    train = owner("TrainJob", "t", "trainer.kubeflow.org", status={"trainerStatus": status})
    watched = WatchedCluster(node())
    watched.see(pod(), chain=(train,))
    metrics = [r for r in watched.see(train) if isinstance(r, Metric)]
    assert [(m.run, m.name, m.value, m.time_ms) for m in metrics] == [
        ("t", "progress", 42.0, T0 + 60_000),
        ("t", "remaining_seconds", 7200.0, T0 + 60_000),
        ("t", "loss", 1.25, T0 + 60_000),
    ]
