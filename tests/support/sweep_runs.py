"""Runs of an experiment that report their loss, each on its own GPU of the cluster in `clusters`."""

from __future__ import annotations

from typing import Any

from pyrometer.model.records import Allocation, Metric, Pod, Run, StepWindow, Workload
from pyrometer.model.units import SHARE_WHOLE
from tests.support.clusters import at


def run_records(
    name: str,
    slot: int,
    minutes: int,
    losses: list[float],
    *,
    experiment: str | None = "sweep",
    team: str = "nlp",
    metric: str = "val/loss",
    goal: str | None = "min",
    rank: int = 0,
    from_min: int = 0,
) -> list[Any]:
    """A run of one rank on its own GPU, with a metric value at the end of each equal part of its time."""
    place = {"node_uid": f"n{slot // 2}", "slot_index": slot % 2, "pod_uid": f"pod-{name}"}
    begin, end = at(from_min), at(from_min + minutes)
    records: list[Any] = [
        Workload(begin, "test", f"job-{name}", "Job", "ml", name, team=team, experiment=experiment),
        Pod(
            end,
            "test",
            f"pod-{name}",
            "ml",
            name,
            "Succeeded",
            workload_uid=f"job-{name}",
            node_uid=place["node_uid"],
            scheduled_ms=begin,
            started_ms=begin,
            ended_ms=end,
        ),
        Allocation(end, f"pod-{name}", place["node_uid"], place["slot_index"], begin, end, SHARE_WHOLE),
        Run(
            end,
            name,
            1,
            rank,
            begin,
            workload_uid=f"job-{name}",
            first_step_ms=begin,
            ended_ms=end,
            outcome="succeeded",
            experiment=experiment,
            **place,
        ),
    ]
    records += [
        StepWindow(at(from_min + m), at(from_min + m + 1), name, 1, rank, first_step=100 * m, steps=100, **place)
        for m in range(minutes)
    ]
    length = minutes / max(1, len(losses))
    records += [
        Metric(at(from_min + (i + 1) * length) - 1, name, 1, rank, metric, value, round(100 * (i + 1) * length), goal)
        for i, value in enumerate(losses)
    ]
    return records
