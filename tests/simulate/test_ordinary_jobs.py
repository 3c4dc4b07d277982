"""Healthy jobs: attempts without gaps, checkpoints, ends, and restarts from the last checkpoint."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.hardware import H100, Pool, machines_of
from pyrometer.simulate.jobs import Job, JobAttempt, PodPlacement
from pyrometer.simulate.ordinary_jobs import begin, cut, end, finish, resume, tinker, work_on

MACHINES = machines_of((Pool("a", H100, 2, "x"),))
PLACES = [PodPlacement(machine, tuple(range(8))) for machine in MACHINES]


@pytest.fixture
def chance() -> Random:
    return Random(1)


def job(**more) -> Job:
    return Job("llama", "PyTorchJob", "a", "a", "sft", "ada", "q", 2, 8, 0, until_ms=6 * MS_PER_HOUR, **more)


def without_gaps(attempt: JobAttempt) -> bool:
    return all(before.to_ms == after.from_ms for before, after in pairwise(attempt.activities))


def test_attempt_starts_with_pulls_rendezvous_and_compilation(chance):
    attempt = begin(chance, job(), PLACES, 1_000, pulls_ms=[5_000, 9_000])
    kinds = [event["kind"] for event in attempt.events]
    assert [kinds.count(kind) for kind in ("image_pulled", "rendezvous", "compiled", "restored")] == [2, 16, 1, 0]
    assert attempt.activities[0].kind == "startup"
    assert attempt.activities[0].to_ms > max(attempt.started_ms) > 9_000


def test_late_pods_are_scheduled_later(chance):
    assert begin(chance, job(), PLACES, 1_000, late_ms=[0, 60_000]).scheduled_ms == [1_000, 61_000]


def test_finished_job_trains_with_checkpoints_until_its_end(chance):
    done = job(continues=False)
    attempt = begin(chance, done, PLACES, 0)
    finish(chance, done, attempt)
    assert without_gaps(attempt)
    assert {"steps", "checkpoint", "evaluate"} <= {activity.kind for activity in attempt.activities}
    assert (attempt.ended_ms, attempt.phase, attempt.outcome) == (done.until_ms, "Succeeded", "succeeded")


def test_cut_removes_later_activities_and_events(chance):
    attempt = begin(chance, job(), PLACES, 0)
    cut(attempt, attempt.started_ms[0])
    assert attempt.activities[-1].to_ms == attempt.started_ms[0]
    assert all(event["at_ms"] <= attempt.started_ms[0] for event in attempt.events)


def test_resumed_attempt_repeats_the_steps_after_the_last_checkpoint(chance):
    failed = job()
    first = begin(chance, failed, PLACES, 0)
    finish(chance, failed, first)
    end(first, 2 * MS_PER_HOUR, "Failed", "Error")
    second = resume(chance, failed, first.ended_ms + 60_000)
    assert first.outcome == "failed"
    assert first.lost_from_ms >= first.last_checkpoint_ms(first.ended_ms)
    assert (second.number, second.resumes) == (2, True)
    assert "restored" in {event["kind"] for event in second.events}


def test_notebook_in_use_has_short_pauses(chance):
    attempt = begin(chance, job(instrumented=False), PLACES, 0)
    tinker(chance, attempt, 4 * MS_PER_HOUR)
    pauses = [activity for activity in attempt.activities if activity.kind == "pause"]
    assert without_gaps(attempt)
    assert pauses
    assert max(activity.to_ms - activity.from_ms for activity in pauses) <= 45_000


def test_work_continues_the_attempt(chance):
    attempt = begin(chance, job(instrumented=False), PLACES, 0)
    work_on(attempt, "busy", MS_PER_HOUR)
    assert attempt.activities[-1][0::2] == ("busy", MS_PER_HOUR)
    assert without_gaps(attempt)
