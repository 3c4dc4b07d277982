"""The draft of a night: jobs and machines are taken once, and times fit the night."""

from __future__ import annotations

from random import Random

import pytest

from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.simulate import ordinary_jobs
from pyrometer.simulate.draft import Draft, NoRoomError
from pyrometer.simulate.hardware import H100, Pool, machines_of
from pyrometer.simulate.jobs import Night, PodPlacement


@pytest.fixture
def draft() -> Draft:
    machines = machines_of((Pool("a", H100, 2, "x"), Pool("b", H100, 3, "y")))
    night = Night("test", 1, 0, 8 * MS_PER_HOUR, machines)
    return Draft(night, Random(1), spare=list(machines))


def test_machines_come_from_one_pool_and_are_taken_once(draft):
    assert {machine.pool.name for machine in draft.machines(3)} == {"b"}
    assert draft.machine().pool.name == "a"
    with pytest.raises(NoRoomError):
        draft.machines(2)
    assert draft.machine().pool.name == "a"
    with pytest.raises(NoRoomError):
        draft.machine()


def test_machine_must_fit(draft):
    assert draft.machine(lambda machine: machine.pool.name == "b").pool.name == "b"
    with pytest.raises(NoRoomError):
        draft.machine(lambda machine: machine.pool.name == "c")


def test_victim_is_taken_once_and_never_a_job_of_a_fault(draft):
    job = draft.new_job("train", pods=1, gpus=8, at_ms=0)
    with pytest.raises(NoRoomError):
        draft.victim(lambda job: True)
    draft.troubled.clear()
    ordinary_jobs.begin(draft.chance, job, [PodPlacement(draft.machine(), tuple(range(8)))], 0)
    assert draft.victim(lambda job: job.pods == 1) is job
    with pytest.raises(NoRoomError):
        draft.victim(lambda job: True)


def test_moment_is_never_a_round_time_and_leaves_room(draft):
    for _ in range(200):
        at_ms = draft.moment(room_ms=MS_PER_HOUR)
        assert 10 * MS_PER_MINUTE <= at_ms <= 7 * MS_PER_HOUR
        assert at_ms % MS_PER_HOUR != 0
    with pytest.raises(NoRoomError):
        draft.moment(room_ms=9 * MS_PER_HOUR)


def test_length_is_limited_by_the_night(draft):
    assert all(7 * MS_PER_MINUTE <= draft.length((7, 16)) <= 16 * MS_PER_MINUTE for _ in range(50))
    assert draft.length((10_000, 20_000)) == round(8 * MS_PER_HOUR * 0.45)


def test_new_jobs_have_unique_names_and_given_properties(draft):
    names = [draft.new_job("train", pods=1, gpus=8, at_ms=0, kind="Job").name for _ in range(3)]
    assert names == ["train", "train-2", "train-3"]
    assert {job.kind for job in draft.night.jobs} == {"Job"}


def test_planted_findings_are_clipped_to_the_night(draft):
    draft.plant("hang", None, -5, 10 * MS_PER_HOUR)
    (planted,) = draft.night.planted
    assert (planted.from_ms, planted.to_ms) == (0, 8 * MS_PER_HOUR)
