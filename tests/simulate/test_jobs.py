"""Jobs of a simulated night: names, ranks, devices and checkpoints."""

from __future__ import annotations

import pytest

from pyrometer.simulate.hardware import H100, Pool, machines_of
from pyrometer.simulate.jobs import Activity, Job, JobAttempt, Outage, PodPlacement, slots_of

MACHINES = machines_of((Pool("a", H100, 2, "x"),))


def job(kind: str = "PyTorchJob") -> Job:
    return Job("llama", kind, "team-a", "a", "sft", "ada", "a-queue", pods=2, gpus=4, created_ms=0)


def attempt(*activities: Activity) -> JobAttempt:
    places = [PodPlacement(MACHINES[0], (0, 1, 2, 3)), PodPlacement(MACHINES[1], (4, 5, 6, 7))]
    return JobAttempt(1, places, [100, 300], [200, 400], list(activities))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("PyTorchJob", ["llama-master-0", "llama-worker-0"]),
        ("Notebook", ["llama-0", "llama-0"]),
        ("Job", ["llama-1-0", "llama-1-1"]),
    ],
)
def test_pod_names_follow_the_style_of_their_kind(kind, names):
    assert [job(kind).pod_name(attempt(), pod) for pod in range(2)] == names


def test_each_gpu_is_a_rank_with_its_device():
    assert job().ranks == 8
    assert job().device_of(attempt(), 3) == (MACHINES[0], 3)
    assert job().device_of(attempt(), 4) == (MACHINES[1], 4)


def test_attempt_times():
    steps = [Activity("startup", 0, 10), Activity("steps", 10, 20), Activity("checkpoint", 20, 25)]
    assert attempt().complete_ms == 300
    assert attempt().first_step_ms is None
    assert attempt(*steps).first_step_ms == 10
    assert attempt(*steps).last_checkpoint_ms(26) == 25
    assert attempt(*steps).last_checkpoint_ms(25) is None


def test_slots_of_an_outage_are_one_device_or_the_machine():
    assert slots_of(Outage("device", MACHINES[1], 0, 1, gpu=2)) == [10]
    assert slots_of(Outage("cordon", MACHINES[1], 0, 1)) == list(range(8, 16))
