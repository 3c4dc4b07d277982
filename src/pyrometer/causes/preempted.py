"""`preempted`: work was lost and repeated because pods were evicted or a spot node was reclaimed.

Needs Kubernetes: its events, or the reason for which a pod ended. The next start is claimed, until its containers run.
With GPU telemetry the start lasts until a GPU is used. The SDK adds the lost steps and the age of the checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal
from pyrometer.findings.workload_attempts import WorkloadAttempt, attempts, started
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS

REASONS = ("Preempted", "Preempting", "PreemptionByScheduler", "Evicted")
MAX_MESSAGE_LENGTH = 80  # of a Kubernetes message, so that `why` fits on one screen


class Eviction(NamedTuple):
    """A pod that was evicted."""

    owner_uid: str
    at_ms: int
    pod_uid: str
    message: str | None


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each attempt that was evicted."""
    worth = evidence.worth(*CLAIMS["preempted"])
    of_owner: dict[str, list[Eviction]] = defaultdict(list)
    for eviction in evictions(evidence) if worth else ():
        if eviction.owner_uid in worth:
            of_owner[eviction.owner_uid].append(eviction)
    if not of_owner:
        return
    for owner, tries in attempts(evidence, list(of_owner)).items():
        for place, attempt in enumerate(tries):
            evicted = evictions_of(attempt, of_owner[owner])
            later = tries[place + 1] if place + 1 < len(tries) else None
            if evicted and (later or attempt.lost_from_ms):
                proposal = _proposal(evidence, attempt, evicted, later)
                if proposal.from_ms < proposal.to_ms and proposal.to_ms > evidence.window.from_ms:
                    yield proposal


def evictions(evidence: Evidence) -> list[Eviction]:
    """Pods that were evicted, or ended for that reason, in order of time."""
    rows = evidence.ask(
        """
        WITH reported AS (
            SELECT pod_uid, time_ms AS at_ms, message FROM event WHERE kind = 'preempted' AND pod_uid IS NOT NULL
            UNION ALL
            SELECT pod_uid, coalesce(ended_ms, time_ms), NULL FROM pod WHERE list_contains($2, reason)
        )
        SELECT coalesce(workload_uid, pod_uid), min(at_ms), pod_uid, any_value(message)
        FROM reported JOIN holder_name USING (pod_uid) WHERE at_ms <= $1
        GROUP BY coalesce(workload_uid, pod_uid), pod_uid ORDER BY 2, 3
        """,
        evidence.window.to_ms,
        list(REASONS),
    )
    return [Eviction(*row) for row in rows]


def evictions_of(attempt: WorkloadAttempt, found: Sequence[Eviction]) -> list[Eviction]:
    """The evicted pods of an attempt, first one first."""
    return [eviction for eviction in found if attempt.had(eviction.pod_uid, eviction.at_ms)]


def _proposal(
    evidence: Evidence, attempt: WorkloadAttempt, evicted: Sequence[Eviction], later: WorkloadAttempt | None
) -> Proposal:
    at_ms = evicted[0].at_ms
    begins_ms = at_ms if attempt.lost_from_ms is None else min(attempt.lost_from_ms, at_ms)
    started_ms = at_ms if later is None else started(evidence, later)
    lost_ms = (attempt.lost_to_ms or 0) - (attempt.lost_from_ms or 0)
    scope = attempt.scope(begins_ms, max(at_ms, attempt.lost_to_ms or 0))
    if later is not None:
        scope += later.scope(later.from_ms, started_ms)
    return Proposal(
        cause="preempted",
        owner_uid=attempt.owner_uid,
        from_ms=max(begins_ms, evidence.window.from_ms),
        to_ms=min(started_ms, evidence.window.to_ms),
        states=CLAIMS["preempted"],
        scope=tuple(scope),
        headline=f"was preempted at {evidence.time(at_ms)} and "
        + (f"lost {duration(lost_ms)} of work" if lost_ms else "had to start again"),
        evidence=tuple(_evidence(evidence, attempt, evicted, later, started_ms)),
        suggestion=(
            "Save a checkpoint on SIGTERM or more often, or give it a higher priority."
            if lost_ms
            else "Give it a higher priority if its restarts cost more than the work that replaces it."
        ),
        confidence=0.9,
        detectable_ms=None,  # the work is already lost and the restart takes its time, whenever it is detected
    )


def _evidence(
    evidence: Evidence,
    attempt: WorkloadAttempt,
    evicted: Sequence[Eviction],
    later: WorkloadAttempt | None,
    started_ms: int,
) -> Iterable[str]:
    reported = next((e.message for e in evicted if e.message), None)
    short = (
        reported
        if reported is None or len(reported) <= MAX_MESSAGE_LENGTH
        else f"{reported[: MAX_MESSAGE_LENGTH - 1]}…"
    )
    stated = f": {short}" if short else ""
    yield f"{len(evicted)} of its {counted(len(attempt.pods), 'pod')} were evicted{stated}"
    saved = evidence.ask(
        "SELECT max(time_ms) FROM event "
        "WHERE kind = 'checkpoint_saved' AND run = $1 AND attempt = $2 AND time_ms <= $3",
        attempt.run,
        attempt.number,
        evicted[0].at_ms,
    )[0][0]
    if saved is not None:
        yield f"its last checkpoint was {duration(evicted[0].at_ms - saved)} old"
    if later is not None:
        took = duration(started_ms - later.from_ms)
        yield f"its next attempt started at {evidence.time(later.from_ms)} and took {took} to start"
