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
from pyrometer.simulate.faults import Draft
from pyrometer.simulate.jobs import Job, JobAttempt, PodPlacement

PIPELINE, SWEEP, CONTROLLER_JOB = "retrain-ranker", "lr-search", "gemma-sft"
TRIALS, AT_ONCE = 10, 4
STOPPED, FAILED = (4, 7), 2  # numbers of trials
CLUSTER = "simulated"


def add_pipeline(draft: Draft, suffix: str, name: str, at_ms: int, *, retried: bool) -> None:
    """Adds a pipeline run: data preparation without a GPU, a PyTorchJob, an evaluation pod, and the remaining steps."""
    chance, night = draft.chance, draft.night
    run_id = f"{chance.getrandbits(128):032x}"
    workflow = f"{PIPELINE}-{suffix}"
    machines = draft.machines(2)
    steps: list[PipelineStep] = []

    def step(what: str, from_ms: int, to_ms: int, state: str = "succeeded", attempt: int = 1) -> int:
        running = PipelineStep(from_ms, run_id, what, attempt, "running", from_ms)
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
    steps.append(PipelineStep(skipped_ms, run_id, "deploy-canary", 1, "skipped", skipped_ms, skipped_ms))
    run = PipelineRun(at_ms, CLUSTER, run_id, flow.uid, flow.namespace, name, PIPELINE, "running", started_ms=at_ms)
    _seen(draft, [run, run._replace(time_ms=now_ms, state="succeeded", ended_ms=now_ms), *steps])


def add_sweep(draft: Draft, at_ms: int) -> None:
    """Adds trials of one GPU each, four at a time. Some are stopped early, one fails."""
    chance = draft.chance
    machine = draft.machine()
    uid = f"experiment-{SWEEP}"
    free_ms = [at_ms + 5_000] * AT_ONCE
    values: dict[str, float] = {}
    written: list[Any] = []
    for number in range(1, TRIALS + 1):
        lane = min(range(AT_ONCE), key=lambda one: free_ms[one])
        from_ms = free_ms[lane]
        rate = 10 ** chance.uniform(-4.5, -1.5)
        stopped, failed = number in STOPPED, number == FAILED
        until_ms = from_ms + round(chance.uniform(42, 58) * MINUTE * (0.35 if stopped else 0.2 if failed else 1))
        name = f"{SWEEP}-{chance.getrandbits(32):08x}"
        value = round(
            0.28 + 0.09 * (math.log10(rate) + 3.1) ** 2 + (0.12 if stopped else 0) + chance.uniform(0, 0.02), 4
        )
        job = _job(draft, name, "Job", from_ms, until_ms, pods=1, gpus=1, experiment=SWEEP, team="speech")
        job.loss = (value, 5.0, 0.2)
        job.part = {"trial_uid": f"trial-{name}"}
        attempt = ordinary_jobs.begin(chance, job, [PodPlacement(machine, (lane,))], from_ms, pulls_ms=[6_000])
        ordinary_jobs.train_on(chance, job, attempt, until_ms)
        ordinary_jobs.end(attempt, until_ms, "Failed" if failed else "Succeeded", "Error" if failed else None)
        state = "failed" if failed else "early_stopped" if stopped else "succeeded"
        if not failed:
            values[name] = value
        trial = Trial(
            from_ms,
            f"trial-{name}",
            uid,
            job.namespace,
            name,
            "running",
            json.dumps({"lr": f"{rate:.3g}"}),
            started_ms=from_ms,
        )
        metrics = {"validation-loss": {"min": value, "max": round(value * 3, 4), "latest": value}}
        over = trial._replace(time_ms=until_ms, state=state, ended_ms=until_ms)
        if not failed:
            over = over._replace(value=value, metrics_json=json.dumps(metrics))
        written += [trial, over]
        free_ms[lane] = until_ms + chance.randint(10_000, 40_000)
    over_ms = max(free_ms)
    sweep = Sweep(
        at_ms,
        CLUSTER,
        uid,
        "team-speech",
        SWEEP,
        "running",
        "validation-loss",
        "min",
        0.2,
        "bayesianoptimization",
        started_ms=at_ms,
    )
    best = min(values, key=lambda name: values[name])
    _seen(
        draft, [sweep, sweep._replace(time_ms=over_ms, state="succeeded", best_trial=best, ended_ms=over_ms), *written]
    )


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
        yield from (Metric(at_ms, job.uid, 1, 0, name, value) for name, value in values.items())


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


def _seen(draft: Draft, records: list[Any]) -> None:
    """Adds the records up to the end of the night."""
    draft.night.records += [record for record in records if record.time_ms < draft.night.to_ms]
