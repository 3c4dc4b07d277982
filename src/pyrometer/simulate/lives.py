"""How ordinary jobs live: they start, train, save, evaluate, end; notebooks are used now and then; servers serve."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import MS_PER_SECOND as SECOND
from pyrometer.simulate.jobs import Attempt, Job, Place, Stretch


def begin(
    chance: Random,
    job: Job,
    places: list[Place],
    at_ms: int,
    *,
    pulls_ms: Sequence[int] | None = None,
    late_ms: Sequence[int] | None = None,
    resumes: bool = False,
) -> Attempt:
    """A new attempt: pods scheduled (`late_ms` after the first), images pulled, ranks found, model built."""
    number = len(job.attempts) + 1
    scheduled = [at_ms + (late_ms[pod] if late_ms else chance.randint(0, 900)) for pod in range(job.pods)]
    pulls = pulls_ms or [chance.randint(20 * SECOND, 120 * SECOND) for _ in range(job.pods)]
    started = [at + pull + chance.randint(2_000, 4_000) for at, pull in zip(scheduled, pulls, strict=True)]
    attempt = Attempt(number, places, scheduled, started, [], resumes=resumes)
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
    attempt.stretches.append(Stretch("startup", min(scheduled), ready_ms))
    job.attempts.append(attempt)
    return attempt


def train_on(chance: Random, job: Job, attempt: Attempt, until_ms: int) -> None:
    """Steps with a save now and then, and an evaluation every few saves."""
    now_ms = attempt.stretches[-1].to_ms
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
                attempt.stretches.append(Stretch(kind, now_ms, min(now_ms + length, until_ms)))
                now_ms += length
        saves += 1


def work_on(attempt: Attempt, kind: str, until_ms: int) -> None:
    """One thing until the end: `busy`, `serve`, `idle`."""
    attempt.stretches.append(Stretch(kind, attempt.stretches[-1].to_ms, until_ms))


def tinker(chance: Random, attempt: Attempt, until_ms: int) -> None:
    """A notebook in use: bursts of work with short pauses."""
    now_ms = attempt.stretches[-1].to_ms
    kind = "busy"
    while now_ms < until_ms:
        length = chance.randint(9 * MINUTE, 25 * MINUTE) if kind == "busy" else chance.randint(25 * SECOND, 45 * SECOND)
        attempt.stretches.append(Stretch(kind, now_ms, min(now_ms + length, until_ms)))
        now_ms += length
        kind = "pause" if kind == "busy" else "busy"


def cut(attempt: Attempt, at_ms: int) -> None:
    """Forgets what the attempt would have done after a time."""
    attempt.stretches = [s._replace(to_ms=min(s.to_ms, at_ms)) for s in attempt.stretches if s.from_ms < at_ms]
    attempt.events = [event for event in attempt.events if event["at_ms"] <= at_ms]


def end(attempt: Attempt, at_ms: int, phase: str, reason: str | None = None, outcome: str | None = None) -> None:
    """The attempt is over: its pods are gone a moment later."""
    cut(attempt, at_ms)
    attempt.ended_ms, attempt.phase, attempt.reason = at_ms, phase, reason
    attempt.outcome = outcome or {"Succeeded": "succeeded", "Failed": "failed"}[phase]


def finish(chance: Random, job: Job, attempt: Attempt) -> None:
    """Trains until the job is done, or the night is over."""
    train_on(chance, job, attempt, job.until_ms)
    if not job.goes_on:
        end(attempt, job.until_ms, "Succeeded")


def resume(chance: Random, job: Job, at_ms: int, *, places: list[Place] | None = None) -> Attempt:
    """A new attempt from the last checkpoint: what the one before did after that is lost."""
    before = job.attempts[-1]
    saved_ms = before.last_checkpoint_ms(before.ended_ms or at_ms) or before.first_step_ms
    steps = [s.from_ms for s in before.stretches if s.kind == "steps" and saved_ms and s.from_ms >= saved_ms]
    before.lost_from_ms = min(steps, default=saved_ms)  # an evaluation after the save is not done again
    attempt = begin(chance, job, places or before.places, at_ms, resumes=before.first_step_ms is not None)
    finish(chance, job, attempt)
    return attempt
