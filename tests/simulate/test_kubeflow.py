"""Kubeflow workloads of a night: pipeline runs, a sweep, and a job with a controller that reports progress."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pyrometer.model.records import Metric, PipelineRun, PipelineStep, Sweep, Trial
from pyrometer.simulate.kubeflow import CONTROLLER_JOB, FAILED_TRIAL, STOPPED_TRIALS, SWEEP, TRIALS
from pyrometer.simulate.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def night():
    return SCENARIOS["kubeflow"].make(1)


def records(night, kind: type) -> list:
    return [record for record in night.records if isinstance(record, kind)]


def test_pipeline_runs_have_a_retried_and_a_skipped_step(night):
    assert {run.state for run in records(night, PipelineRun)} == {"running", "succeeded"}
    steps = records(night, PipelineStep)
    assert {step.attempt for step in steps if step.step == "evaluate"} == {1, 2}
    assert {step.state for step in steps} == {"running", "succeeded", "failed", "skipped"}


def test_sweep_has_stopped_and_failed_trials_and_a_best_one(night):
    ended = {trial.trial_uid: trial for trial in records(night, Trial) if trial.ended_ms is not None}
    states = [trial.state for trial in ended.values()]
    assert len(ended) == TRIALS
    assert states.count("early_stopped") == len(STOPPED_TRIALS)
    assert [number for number, state in enumerate(states, 1) if state == "failed"] == [FAILED_TRIAL]
    best = records(night, Sweep)[-1].best_trial
    assert best == min((trial for trial in ended.values() if trial.value is not None), key=lambda one: one.value).name


def test_trials_never_share_a_gpu(night):
    jobs = [job for job in night.jobs if job.experiment == SWEEP]
    held = sorted((job.attempts[0].places[0].gpus, job.attempts[0].scheduled_ms[0], job.until_ms) for job in jobs)
    for before, after in pairwise(held):
        assert before[0] != after[0] or before[2] <= after[1]


def test_controller_reports_progress_without_the_sdk(night):
    job = next(job for job in night.jobs if job.name == CONTROLLER_JOB)
    reported = [record for record in records(night, Metric) if record.run == job.uid]
    progress = [record.value for record in reported if record.name == "progress"]
    assert not job.instrumented
    assert progress == sorted(progress)
    assert {record.name for record in reported} == {"progress", "remaining_seconds", "loss"}


def test_no_record_is_later_than_the_night(night):
    assert max(record.time_ms for record in night.records) < night.to_ms
