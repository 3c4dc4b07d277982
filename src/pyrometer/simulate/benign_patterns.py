"""Harmless behavior that resembles a fault, one function per pattern. Detectors must not report any of these patterns.

Users change batch sizes, restart on purpose, run long evaluations, write full checkpoints now and then, and pause in
front of a notebook. Data loaders start with cold caches.
"""

from __future__ import annotations

from collections.abc import Callable

from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import MS_PER_SECOND as SECOND
from pyrometer.simulate import ordinary_jobs
from pyrometer.simulate.draft import Draft, NoRoomError
from pyrometer.simulate.jobs import Activity, Effect, Job, JobAttempt

LONG_PULLS_MS = (4 * MINUTE, 9 * MINUTE)  # of every image, where the registry is far away


def _trains(job: Job) -> bool:
    return job.instrumented and job.ranks > 1 and job.attempts[-1].activities[-1].kind in ("steps", "checkpoint")


def another_batch(draft: Draft) -> None:
    """Changes the computation per step from some step on: another sequence length or batch size."""
    job = draft.victim(_trains)
    at_ms = draft.moment(job, room_ms=30 * MINUTE)
    size = draft.chance.choice((0.4, 0.6, 1.6, 2.5))
    job.attempts[-1].effects.append(Effect("work", at_ms, draft.night.to_ms, size))


def planned_restart(draft: Draft) -> None:
    """An elastic job saves, stops and continues at once, several times. No step is repeated."""
    job = draft.victim(lambda job: _trains(job) and job.continues)
    for _ in range(draft.chance.randint(1, 4)):
        attempt = job.attempts[-1]
        after_ms = max(draft.night.from_ms, attempt.activities[0].to_ms) + 8 * MINUTE
        saves = [s.to_ms for s in attempt.activities if s.kind == "checkpoint" and s.to_ms > after_ms]
        if len(saves) < 3:
            break
        saved_ms = draft.chance.choice(saves[:-2])
        ordinary_jobs.end(
            attempt, saved_ms + 1, "Succeeded", outcome="killed"
        )  # a moment later: the checkpoint is complete
        ordinary_jobs.resume(draft.chance, job, saved_ms + draft.chance.randint(15, 60) * SECOND)
        attempt.lost_from_ms = None


def long_evaluation(draft: Draft) -> None:
    """One evaluation on the whole test set."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    at_ms = draft.moment(job, room_ms=40 * MINUTE)
    _insert(attempt, Activity("evaluate", at_ms, at_ms + draft.chance.randint(8, 30) * MINUTE))


def full_saves(draft: Draft) -> None:
    """About every fourth checkpoint is a full one and takes several times as long."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    every, size = draft.chance.randint(3, 5), draft.chance.uniform(3, 6)
    saves = [s for s in attempt.activities if s.kind == "checkpoint" and s.from_ms > draft.night.from_ms]
    for save in reversed(saves[every - 1 :: every]):
        _insert(attempt, Activity("checkpoint", save.to_ms, save.to_ms + round((size - 1) * job.checkpoint_ms)))


def cold_loader(draft: Draft) -> None:
    """The first minutes after a start wait for data, because nothing is cached yet."""
    job = draft.victim(lambda job: _trains(job) and job.attempts[-1].activities[0].to_ms > draft.night.from_ms)
    for attempt in job.attempts:
        from_ms = attempt.first_step_ms or draft.night.to_ms
        length = draft.chance.randint(2 * MINUTE, 6 * MINUTE)
        attempt.effects.append(Effect("data", from_ms, from_ms + length, draft.chance.uniform(0.1, 0.5)))


def epochs(draft: Draft) -> None:
    """The data loader restarts after each pass through the data."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    every_ms = draft.chance.randint(25, 110) * MINUTE
    now_ms = max(draft.night.from_ms, attempt.first_step_ms or 0) + every_ms
    while now_ms < draft.night.to_ms:
        length = draft.chance.randint(20 * SECOND, 60 * SECOND)
        attempt.effects.append(Effect("data", now_ms, now_ms + length, 1.5))
        now_ms += every_ms


def thinking(draft: Draft) -> None:
    """The user of a notebook reads, thinks and takes breaks."""
    job = draft.victim(lambda job: job.kind == "Notebook")
    attempt = job.attempts[-1]
    now_ms, over_ms = draft.night.from_ms, attempt.activities[-1].to_ms
    ordinary_jobs.cut(attempt, now_ms)
    kind = "busy"
    while now_ms < over_ms:
        length = draft.chance.randint(3, 20) * MINUTE if kind == "busy" else draft.chance.randint(60, 600) * SECOND
        attempt.activities.append(Activity(kind, now_ms, min(now_ms + length, over_ms)))
        now_ms, kind = now_ms + length, "pause" if kind == "busy" else "busy"


def _insert(attempt: JobAttempt, more: Activity) -> None:
    """Inserts an activity at a time. Later ones are delayed, and the attempt ends when it would have."""
    over_ms, delay = attempt.activities[-1].to_ms, more.to_ms - more.from_ms
    before = [s._replace(to_ms=min(s.to_ms, more.from_ms)) for s in attempt.activities if s.from_ms < more.from_ms]
    after = [
        s._replace(from_ms=max(s.from_ms, more.from_ms) + delay, to_ms=s.to_ms + delay)
        for s in attempt.activities
        if s.to_ms > more.from_ms
    ]
    attempt.activities = [
        s._replace(to_ms=min(s.to_ms, over_ms)) for s in (*before, more, *after) if s.from_ms < min(s.to_ms, over_ms)
    ]


PATTERNS: tuple[Callable[[Draft], None], ...] = (
    another_batch,
    planned_restart,
    long_evaluation,
    full_saves,
    cold_loader,
    epochs,
    thinking,
)


def add_benign_patterns(draft: Draft, times: int) -> None:
    """Adds every pattern up to `times` times, while there are jobs for it."""
    for pattern in PATTERNS * times:
        try:
            pattern(draft)
        except NoRoomError:
            continue
