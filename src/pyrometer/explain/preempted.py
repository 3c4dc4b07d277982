"""`preempted`: work that was lost, and done over, because others got the GPUs or a spot node was taken back.

Needs Kubernetes: its events, or the reason that a pod ended for; there the next start is claimed, up to where its
containers run. With GPU telemetry that start lasts until a GPU is used; the SDK adds the steps that were lost and the
age of the checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyrometer.explain.attempts import Attempt, attempts, started
from pyrometer.explain.findings import Proposal
from pyrometer.explain.night import Night
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS

REASONS = ("Preempted", "Preempting", "PreemptionByScheduler", "Evicted")
LONGEST_MESSAGE = 80  # of what Kubernetes said: `why` keeps to one screen


class Eviction(NamedTuple):
    """A pod that had to go."""

    owner_uid: str
    at_ms: int
    pod_uid: str
    message: str | None


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each attempt that was ended to make room."""
    worth = night.worth(*CLAIMS["preempted"])
    of_owner: dict[str, list[Eviction]] = defaultdict(list)
    for eviction in evictions(night) if worth else ():
        if eviction.owner_uid in worth:
            of_owner[eviction.owner_uid].append(eviction)
    if not of_owner:
        return
    for owner, tries in attempts(night, list(of_owner)).items():
        for place, attempt in enumerate(tries):
            evicted = evicted_of(attempt, of_owner[owner])
            later = tries[place + 1] if place + 1 < len(tries) else None
            if evicted and (later or attempt.lost_from_ms):
                proposal = _proposal(night, attempt, evicted, later)
                if proposal.from_ms < proposal.to_ms and proposal.to_ms > night.window.from_ms:
                    yield proposal


def evictions(night: Night) -> list[Eviction]:
    """Pods that were told to go, or ended for that reason, in the order of time."""
    rows = night.ask(
        """
        WITH told AS (
            SELECT pod_uid, time_ms AS at_ms, message FROM event WHERE kind = 'preempted' AND pod_uid IS NOT NULL
            UNION ALL
            SELECT pod_uid, coalesce(ended_ms, time_ms), NULL FROM pod WHERE list_contains($2, reason)
        )
        SELECT coalesce(workload_uid, pod_uid), min(at_ms), pod_uid, any_value(message)
        FROM told JOIN holder_name USING (pod_uid) WHERE at_ms <= $1
        GROUP BY coalesce(workload_uid, pod_uid), pod_uid ORDER BY 2, 3
        """,
        night.window.to_ms,
        list(REASONS),
    )
    return [Eviction(*row) for row in rows]


def evicted_of(attempt: Attempt, found: Sequence[Eviction]) -> list[Eviction]:
    """The pods of an attempt that had to go, first one first."""
    return [eviction for eviction in found if attempt.had(eviction.pod_uid, eviction.at_ms)]


def _proposal(night: Night, attempt: Attempt, evicted: Sequence[Eviction], later: Attempt | None) -> Proposal:
    at_ms = evicted[0].at_ms
    begins_ms = at_ms if attempt.lost_from_ms is None else min(attempt.lost_from_ms, at_ms)
    started_ms = at_ms if later is None else started(night, later)
    lost_ms = (attempt.lost_to_ms or 0) - (attempt.lost_from_ms or 0)
    scope = attempt.scope(begins_ms, max(at_ms, attempt.lost_to_ms or 0))
    if later is not None:
        scope += later.scope(later.from_ms, started_ms)
    return Proposal(
        cause="preempted",
        owner_uid=attempt.owner_uid,
        from_ms=max(begins_ms, night.window.from_ms),
        to_ms=min(started_ms, night.window.to_ms),
        states=CLAIMS["preempted"],
        scope=tuple(scope),
        headline=f"was preempted at {night.time(at_ms)} and "
        + (f"lost {duration(lost_ms)} of work" if lost_ms else "had to start again"),
        evidence=tuple(_evidence(night, attempt, evicted, later, started_ms)),
        suggestion=(
            "Save a checkpoint when told to stop, or more often; or give it a priority that keeps its GPUs."
            if lost_ms
            else "Give it a priority that keeps its GPUs, if its restarts cost more than what they make room for."
        ),
        confidence=0.9,
        known_ms=None,  # what is lost is lost by then, and to start again takes its time, whoever knows of it
    )


def _evidence(
    night: Night, attempt: Attempt, evicted: Sequence[Eviction], later: Attempt | None, started_ms: int
) -> Iterable[str]:
    told = next((e.message for e in evicted if e.message), None)
    short = told if told is None or len(told) <= LONGEST_MESSAGE else f"{told[: LONGEST_MESSAGE - 1]}…"
    said = f": {short}" if short else ""
    yield f"{len(evicted)} of its {counted(len(attempt.pods), 'pod')} had to go{said}"
    saved = night.ask(
        "SELECT max(time_ms) FROM event "
        "WHERE kind = 'checkpoint_saved' AND run = $1 AND attempt = $2 AND time_ms <= $3",
        attempt.run, attempt.number, evicted[0].at_ms,
    )[0][0]  # fmt: skip
    if saved is not None:
        yield f"its last checkpoint was {duration(evicted[0].at_ms - saved)} old"
    if later is not None:
        took = duration(started_ms - later.from_ms)
        yield f"its next attempt began at {night.time(later.from_ms)} and took {took} to start"
