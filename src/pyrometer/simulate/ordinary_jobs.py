"""Healthy jobs: training with checkpoints and evaluations, notebooks in use, servers with load."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import MS_PER_SECOND as SECOND
from pyrometer.simulate.jobs import Activity, Job, JobAttempt, PodPlacement


def begin(
    chance: Random,
    job: Job,
    places: list[PodPlacement],
    at_ms: int,
    *,
    pulls_ms: Sequence[int] | None = None,
    late_ms: Sequence[int] | None = None,
    resumes: bool = False,
) -> JobAttempt:
    """Starts an attempt: schedules pods (`late_ms` after the first), pulls images, connects ranks, builds the model."""
    number = len(job.attempts) + 1
    scheduled = [at_ms + (late_ms[pod] if late_ms else chance.randint(0, 900)) for pod in range(job.pods)]
    pulls = pulls_ms or [chance.randint(20 * SECOND, 120 * SECOND) for _ in range(job.pods)]
    started = [at + pull + chance.randint(2_000, 4_000) for at, pull in zip(scheduled, pulls, strict=True)]
    attempt = JobAttempt(number, places, scheduled, started, [], resumes=resumes)
    meet_ms = chance.randint(9 * SECOND, 40 * SECOND) + 60 * job.ranks
    restore_ms = chance.randint(10 * SECOND, 60 * SECOND) if resumes else 0
    compile_ms = chance.randint(20 * SECOND, 90 * SECOND)
    ready_ms = max(started) + meet_ms + restore_ms + compile_ms
    for pod, pull in enumerate(pulls):
        attempt.events.append({"kind": "image_pulled", "pod": pod, "at_ms": scheduled[pod] + pull, "duration_ms": pull})
    if job.instrumented:
        for rank in range(job.ranks):
            own_ms = max(started) + meet_ms - started[rank // job.gpus]
            at_ms = max(started) + meet_ms
            attempt.events.append({"kind": "rendezvous", "rank": rank, "at_ms": at_ms, "duration_ms": own_ms})
        if resumes:
            attempt.events.append(
                {"kind": "restored", "rank": 0, "at_ms": at_ms + restore_ms, "duration_ms": restore_ms}
            )
        attempt.events.append({"kind": "compiled", "rank": 0, "at_ms": ready_ms - 500, "duration_ms": compile_ms})
    attempt.activities.append(Activity("startup", min(scheduled), ready_ms))
    job.attempts.append(attempt)
    return attempt


def train_on(chance: Random, job: Job, attempt: JobAttempt, until_ms: int) -> None:
    """Adds steps with regular checkpoints, and an evaluation after every fourth checkpoint."""
    now_ms = attempt.activities[-1].to_ms
    saves = 0
    while now_ms < until_ms:
        for kind, length in (
            ("steps", round(job.checkpoint_every_ms * chance.uniform(0.9, 1.1))),
            (
                "checkpoint",
                round(job.checkpoint_ms * chance.lognormvariate(0, 0.25) * (2.5 if chance.random() < 0.03 else 1)),
            ),
            ("evaluate", chance.randint(40 * SECOND, 150 * SECOND) if saves % 4 == 3 else 0),
        ):
            if length and now_ms < until_ms:
                attempt.activities.append(Activity(kind, now_ms, min(now_ms + length, until_ms)))
                now_ms += length
        saves += 1


def work_on(attempt: JobAttempt, kind: str, until_ms: int) -> None:
    """Adds one activity until a time: `busy`, `serve` or `idle`."""
    attempt.activities.append(Activity(kind, attempt.activities[-1].to_ms, until_ms))


def tinker(chance: Random, attempt: JobAttempt, until_ms: int) -> None:
    """Adds the activity of a notebook in use: bursts of work with short pauses."""
    now_ms = attempt.activities[-1].to_ms
    kind = "busy"
    while now_ms < until_ms:
        length = chance.randint(9 * MINUTE, 25 * MINUTE) if kind == "busy" else chance.randint(25 * SECOND, 45 * SECOND)
        attempt.activities.append(Activity(kind, now_ms, min(now_ms + length, until_ms)))
        now_ms += length
        kind = "pause" if kind == "busy" else "busy"


def cut(attempt: JobAttempt, at_ms: int) -> None:
    """Removes everything that the attempt would do after a time."""
    attempt.activities = [s._replace(to_ms=min(s.to_ms, at_ms)) for s in attempt.activities if s.from_ms < at_ms]
    attempt.events = [event for event in attempt.events if event["at_ms"] <= at_ms]


def end(attempt: JobAttempt, at_ms: int, phase: str, reason: str | None = None, outcome: str | None = None) -> None:
    """Ends the attempt and its pods."""
    cut(attempt, at_ms)
    attempt.ended_ms, attempt.phase, attempt.reason = at_ms, phase, reason
    attempt.outcome = outcome or {"Succeeded": "succeeded", "Failed": "failed"}[phase]


def finish(chance: Random, job: Job, attempt: JobAttempt) -> None:
    """Trains until the job finishes or the night ends."""
    train_on(chance, job, attempt, job.until_ms)
    if not job.continues:
        end(attempt, job.until_ms, "Succeeded")


def resume(chance: Random, job: Job, at_ms: int, *, places: list[PodPlacement] | None = None) -> JobAttempt:
    """Starts an attempt from the last checkpoint. Later steps of the previous attempt are lost."""
    before = job.attempts[-1]
    saved_ms = before.last_checkpoint_ms(before.ended_ms or at_ms) or before.first_step_ms
    steps = [s.from_ms for s in before.activities if s.kind == "steps" and saved_ms and s.from_ms >= saved_ms]
    before.lost_from_ms = min(steps, default=saved_ms)  # an evaluation after the checkpoint is not repeated
    attempt = begin(chance, job, places or before.places, at_ms, resumes=before.first_step_ms is not None)
    finish(chance, job, attempt)
    return attempt
