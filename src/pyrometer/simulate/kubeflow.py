"""Kubeflow workloads of a night: two pipeline runs, a sweep, and a TrainJob that only its controller reports on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pyrometer.model.records import Metric, PipelineRun, PipelineStep, Sweep, Trial
from pyrometer.model.units import MS_PER_HOUR as HOUR
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.simulate import ordinary_jobs
from pyrometer.simulate.draft import Draft
from pyrometer.simulate.jobs import Job, JobAttempt, PodPlacement

PIPELINE, SWEEP, CONTROLLER_JOB = "retrain-ranker", "lr-search", "gemma-sft"
TRIALS, PARALLEL_TRIALS = 10, 4
STOPPED_TRIALS, FAILED_TRIAL = (4, 7), 2  # numbers of trials
CLUSTER = "simulated"


def add_pipeline(draft: Draft, suffix: str, name: str, at_ms: int, *, retried: bool) -> None:
    """Adds a pipeline run: data preparation without a GPU, a PyTorchJob, an evaluation pod, and the remaining steps."""
    chance, night = draft.chance, draft.night
    run_id = f"{chance.getrandbits(128):032x}"
    workflow = f"{PIPELINE}-{suffix}"
    machines = draft.machines(2)
    steps: list[PipelineStep] = []

    def step(what: str, from_ms: int, to_ms: int, state: str = "succeeded", attempt: int = 1) -> int:
        running = PipelineStep(
            time_ms=from_ms, run_id=run_id, step=what, attempt=attempt, state="running", started_ms=from_ms
        )
        steps.extend([running, running._replace(time_ms=to_ms, state=state, ended_ms=to_ms)])
        return to_ms + chance.randint(4_000, 15_000)

    now_ms = step("prepare", at_ms, at_ms + chance.randint(6 * MINUTE, 12 * MINUTE))
    until_ms = now_ms + chance.randint(80 * MINUTE, 110 * MINUTE)
    train = _job(draft, f"{PIPELINE}-train-{suffix}", "PyTorchJob", now_ms, until_ms, pods=2, gpus=8)
    train.part = {"pipeline_run": run_id, "pipeline_step": "train"}
    attempt = ordinary_jobs.begin(
        chance, train, [PodPlacement(machine, tuple(range(8))) for machine in machines], now_ms
    )
    ordinary_jobs.finish(chance, train, attempt)
    now_ms = step("train", now_ms, until_ms)
    flow = _job(draft, workflow, "Workflow", now_ms, night.to_ms, pods=1, gpus=4, instrumented=False)
    flow.part = {"pipeline_run": run_id, "pipeline_step": "evaluate"}
    tries = [(7 * MINUTE, "Failed")] * retried + [(chance.randint(18 * MINUTE, 30 * MINUTE), "Succeeded")]
    for number, (length_ms, phase) in enumerate(tries, 1):
        attempt = ordinary_jobs.begin(
            chance, flow, [PodPlacement(machines[0], (0, 1, 2, 3))], now_ms, pulls_ms=[15_000]
        )
        until_ms = attempt.activities[-1].to_ms + length_ms
        ordinary_jobs.work_on(attempt, "busy", until_ms)
        ordinary_jobs.end(attempt, until_ms, phase, "Error" if phase == "Failed" else None)
        now_ms = step("evaluate", now_ms, until_ms, phase.lower(), number)
    skipped_ms = now_ms
    now_ms = step("register", now_ms, now_ms + chance.randint(30_000, 70_000))
    steps.append(
        PipelineStep(
            time_ms=skipped_ms,
            run_id=run_id,
            step="deploy-canary",
            attempt=1,
            state="skipped",
            started_ms=skipped_ms,
            ended_ms=skipped_ms,
        )
    )
    run = PipelineRun(
        time_ms=at_ms,
        cluster=CLUSTER,
        run_id=run_id,
        workflow_uid=flow.uid,
        namespace=flow.namespace,
        name=name,
        pipeline=PIPELINE,
        state="running",
        started_ms=at_ms,
    )
    _record(draft, [run, run._replace(time_ms=now_ms, state="succeeded", ended_ms=now_ms), *steps])


def add_sweep(draft: Draft, at_ms: int) -> None:
    """Adds trials of one GPU each, four at a time. Some are stopped early, one fails."""
    machine = draft.machine()
    uid = f"experiment-{SWEEP}"
    free_ms = [at_ms + 5_000] * PARALLEL_TRIALS
    records: list[Trial] = []
    for number in range(1, TRIALS + 1):
        gpu = min(range(PARALLEL_TRIALS), key=lambda one: free_ms[one])
        started, ended = _add_trial(draft, number, uid, PodPlacement(machine, (gpu,)), free_ms[gpu])
        records += [started, ended]
        free_ms[gpu] = ended.time_ms + draft.chance.randint(10_000, 40_000)
    sweep = Sweep(
        time_ms=at_ms,
        cluster=CLUSTER,
        sweep_uid=uid,
        namespace="team-speech",
        name=SWEEP,
        state="running",
        metric="validation-loss",
        goal="min",
        target=0.2,
        algorithm="bayesianoptimization",
        started_ms=at_ms,
    )
    best = min((trial.value, trial.name) for trial in records if trial.value is not None)[1]
    ended_ms = max(free_ms)
    finished = sweep._replace(time_ms=ended_ms, state="succeeded", best_trial=best, ended_ms=ended_ms)
    _record(draft, [sweep, finished, *records])


def _add_trial(draft: Draft, number: int, sweep_uid: str, place: PodPlacement, from_ms: int) -> tuple[Trial, Trial]:
    """Adds the job of a trial. Returns the records of the trial at its start and at its end."""
    chance = draft.chance
    rate = 10 ** chance.uniform(-4.5, -1.5)
    state = "failed" if number == FAILED_TRIAL else "early_stopped" if number in STOPPED_TRIALS else "succeeded"
    length = {"failed": 0.2, "early_stopped": 0.35, "succeeded": 1}[state]
    until_ms = from_ms + round(chance.uniform(42, 58) * MINUTE * length)
    name = f"{SWEEP}-{chance.getrandbits(32):08x}"
    excess = 0.12 if state == "early_stopped" else 0
    value = round(0.28 + 0.09 * (math.log10(rate) + 3.1) ** 2 + excess + chance.uniform(0, 0.02), 4)
    job = _job(draft, name, "Job", from_ms, until_ms, pods=1, gpus=1, experiment=SWEEP, team="speech")
    job.loss = (value, 5.0, 0.2)
    job.part = {"trial_uid": f"trial-{name}"}
    attempt = ordinary_jobs.begin(chance, job, [place], from_ms, pulls_ms=[6_000])
    ordinary_jobs.train_on(chance, job, attempt, until_ms)
    phase, reason = ("Failed", "Error") if state == "failed" else ("Succeeded", None)
    ordinary_jobs.end(attempt, until_ms, phase, reason)
    started = Trial(
        time_ms=from_ms,
        trial_uid=f"trial-{name}",
        sweep_uid=sweep_uid,
        namespace=job.namespace,
        name=name,
        state="running",
        parameters_json=json.dumps({"lr": f"{rate:.3g}"}),
        started_ms=from_ms,
    )
    ended = started._replace(time_ms=until_ms, state=state, ended_ms=until_ms)
    if state != "failed":
        metrics = {"validation-loss": {"min": value, "max": round(value * 3, 4), "latest": value}}
        ended = ended._replace(value=value, metrics_json=json.dumps(metrics))
    return started, ended


def add_controller_job(draft: Draft, at_ms: int) -> None:
    """Adds a TrainJob without the SDK. Kubeflow Trainer reports its progress, its remaining time and its loss."""
    chance, night = draft.chance, draft.night
    length_ms = night.to_ms - at_ms + 2 * HOUR  # it continues after the night
    job = _job(
        draft,
        CONTROLLER_JOB,
        "TrainJob",
        at_ms,
        night.to_ms,
        pods=1,
        gpus=8,
        instrumented=False,
        continues=True,
        experiment=CONTROLLER_JOB,
    )
    attempt = ordinary_jobs.begin(chance, job, [PodPlacement(draft.machine(), tuple(range(8)))], at_ms)
    ordinary_jobs.work_on(attempt, "busy", night.to_ms)
    draft.night.records += _trainer_status(job, attempt, length_ms, night.to_ms)


def _trainer_status(job: Job, attempt: JobAttempt, length_ms: int, until_ms: int) -> Iterator[Metric]:
    began_ms = attempt.activities[-1].from_ms
    for at_ms in range(began_ms + 5 * MINUTE, until_ms, 5 * MINUTE):
        done = (at_ms - began_ms) / length_ms
        values = {
            "progress": float(math.floor(100 * done)),
            "remaining_seconds": float((length_ms - (at_ms - began_ms)) // 1000),
            "loss": round(1.4 + 1.9 * (1 + 40 * done) ** -0.6, 4),
        }
        yield from (
            Metric(time_ms=at_ms, run=job.uid, attempt=1, rank=0, name=name, value=value)
            for name, value in values.items()
        )


def _job(
    draft: Draft,
    name: str,
    kind: str,
    at_ms: int,
    until_ms: int,
    *,
    pods: int,
    gpus: int,
    team: str = "search",
    experiment: str = PIPELINE,
    **more: Any,
) -> Job:
    if not more.get("instrumented", True):
        more["digest"] = ""
    return draft.new_job(
        name,
        pods=pods,
        gpus=gpus,
        at_ms=at_ms,
        kind=kind,
        until_ms=until_ms,
        team=team,
        namespace=f"team-{team}",
        queue=f"{team}-queue",
        experiment=experiment,
        user="hana",
        gang=pods > 1,
        **{"continues": False} | more,
    )


def _record(draft: Draft, records: list[Any]) -> None:
    """Adds the records up to the end of the night."""
    draft.night.records += [record for record in records if record.time_ms < draft.night.to_ms]
