"""Objects of a simulated night: workloads of many kinds with their owner chains."""

from __future__ import annotations

from pyrometer.simulate.api_objects import objects
from pyrometer.simulate.scenarios import SCENARIOS


def test_night_has_gangs_of_many_sizes_and_kinds() -> None:
    night = SCENARIOS["overnight"].make(1)
    assert {job.kind for job in night.jobs} >= {"PyTorchJob", "TrainJob", "RayJob", "Job", "Notebook", "Deployment"}
    assert {1, 8, 16, 24, 48, 64} <= {job.ranks for job in night.jobs}
    chain = {row.kind: row for row in objects(night, {}) if type(row).__name__ == "Owner" and "moe" in row.name}
    assert list(chain) == ["Job", "JobSet", "TrainJob"]
    assert chain["Job"].controller_uid == chain["JobSet"].object_uid
    assert chain["TrainJob"].controller_uid is None
