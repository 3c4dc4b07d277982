"""`crash_loop`: attempt after attempt fails without progress.

Needs Kubernetes: pods or containers that failed one after the other. With Kubernetes alone, an attempt that ended
within the startup limit counts as one without progress, and all of its unobserved time is claimed. The SDK adds whether
a step was saved and which exception ended the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyrometer.causes.out_of_memory import Kill, kill_of, kills
from pyrometer.causes.preempted import Eviction, evictions, evictions_of
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal
from pyrometer.findings.run_failures import ENDS, error_line
from pyrometer.findings.workload_attempts import Part, WorkloadAttempt, attempts, made_progress
from pyrometer.model.human import duration, listed
from pyrometer.model.states import CLAIMS

MIN_CONSECUTIVE_FAILURES = 3  # two failures may be chance
MAX_MESSAGE_LENGTH = 80  # of an exception, so that `why` fits on one screen


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each series of attempts that failed without progress."""
    worth = evidence.worth(*CLAIMS["crash_loop"])
    suspects = [owner for owner in _suspects(evidence) if owner in worth] if worth else []
    if not suspects:
        return
    found = kills(evidence), evictions(evidence)
    gangs = {owner for (owner,) in evidence.ask("SELECT DISTINCT workload_uid FROM workload WHERE gang_pods > 1")}
    for owner, tries in attempts(evidence, suspects).items():
        begun = [attempt for attempt in tries if attempt.from_ms < evidence.window.to_ms]
        for of_same in [begun] if owner in gangs else _by_part(begun):
            for row in _rows(evidence, of_same, *found):
                if (
                    len(row) >= MIN_CONSECUTIVE_FAILURES
                    and (row[-1].to_ms or evidence.window.to_ms) > evidence.window.from_ms
                ):
                    yield _proposal(evidence, owner, row)


def _suspects(evidence: Evidence) -> list[str]:
    """The owners with claimable time in the time range and enough failures."""
    rows = evidence.ask(
        """
        WITH failure AS (
            SELECT DISTINCT pod_uid, 0 AS attempt FROM pod WHERE phase = 'Failed'
            UNION ALL SELECT DISTINCT pod_uid, attempt FROM the_run WHERE outcome = 'failed'
            UNION ALL SELECT DISTINCT pod_uid, time_ms FROM event
                WHERE kind = 'container_restarted' AND coalesce(reason != 'Completed', true)
        )
        SELECT coalesce(workload_uid, pod_uid) AS owner_uid
        FROM failure JOIN holder_name USING (pod_uid)
        WHERE coalesce(workload_uid, pod_uid) IN (
            SELECT coalesce(workload_uid, pod_uid) FROM burn JOIN holder_name USING (pod_uid)
            WHERE list_contains($2, state)
        )
        GROUP BY owner_uid HAVING count(*) >= $1 ORDER BY 1
        """,
        MIN_CONSECUTIVE_FAILURES,
        list(CLAIMS["crash_loop"]),
    )
    return [owner for (owner,) in rows]


def _by_part(tries: Sequence[WorkloadAttempt]) -> list[list[WorkloadAttempt]]:
    """Attempts grouped by the part of the job that they work on: its steps and indexes fail independently."""
    if not all(attempt.parts for attempt in tries):
        return [list(tries)]
    groups: list[tuple[set[Part], list[WorkloadAttempt]]] = []
    for attempt in tries:
        same = next((group for group in groups if group[0] & attempt.parts), None)
        if same is None:
            groups.append((set(attempt.parts), [attempt]))
        else:
            same[0].update(attempt.parts)
            same[1].append(attempt)
    return [group for _, group in groups]


def _rows(
    evidence: Evidence, tries: Sequence[WorkloadAttempt], killed: Sequence[Kill], evicted: Sequence[Eviction]
) -> list[list[WorkloadAttempt]]:
    """Consecutive attempts that failed without progress. Out-of-memory kills and evictions have their own causes."""
    rows: list[list[WorkloadAttempt]] = [[]]
    for place, attempt in enumerate(tries):
        crashed = attempt.failed and kill_of(attempt, killed) is None and not evictions_of(attempt, evicted)
        if crashed and not made_progress(evidence, attempt, tries[place + 1 :]):
            rows[-1].append(attempt)
        elif rows[-1]:
            rows.append([])
    return rows


def _proposal(evidence: Evidence, owner: str, row: Sequence[WorkloadAttempt]) -> Proposal:
    ends = [attempt.to_ms or evidence.window.to_ms for attempt in row]
    from_ms, to_ms = max(row[0].from_ms, evidence.window.from_ms), min(ends[-1], evidence.window.to_ms)
    return Proposal(
        cause="crash_loop",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["crash_loop"],
        scope=tuple(
            s for attempt, end_ms in zip(row, ends, strict=True) for s in attempt.scope(attempt.from_ms, end_ms)
        ),
        headline=f"crashed {len(row)} times in a row, from {evidence.time(from_ms)} to {evidence.time(to_ms)}",
        evidence=tuple(_evidence(evidence, row, ends)),
        suggestion="Stop it and check the log of its last attempt. A retry limit would have saved the rest.",
        confidence=0.95 if all(attempt.run for attempt in row) else 0.8,
        detectable_ms=ends[MIN_CONSECUTIVE_FAILURES - 1],
    )


def _evidence(evidence: Evidence, row: Sequence[WorkloadAttempt], ends: Sequence[int]) -> Iterable[str]:
    lives = sorted(end_ms - attempt.from_ms for attempt, end_ms in zip(row, ends, strict=True))
    stepped = [attempt for attempt in row if attempt.first_step_ms is not None]
    if stepped:
        yield f"no attempt got past the step it started from; each lasted about {duration(lives[len(lives) // 2])}"
    elif any(attempt.run for attempt in row):
        yield f"each attempt lasted about {duration(lives[len(lives) // 2])}, and none completed a step"
    else:
        yield f"each attempt lasted about {duration(lives[len(lives) // 2])}, the longest {duration(lives[-1])}"
    stated = evidence.ask(
        "SELECT reason, any_value(message), count(DISTINCT attempt) FROM event WHERE list_contains($3, kind) "
        "AND list_contains($1, run) AND list_contains($2, attempt) AND reason IS NOT NULL "
        "GROUP BY reason ORDER BY 3 DESC, 1 LIMIT 1",
        [attempt.run or "" for attempt in row],
        [attempt.number for attempt in row],
        list(ENDS),
    )
    if stated:
        reason, message, times = stated[0]
        text = error_line(reason, message) or reason
        short = text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[: MAX_MESSAGE_LENGTH - 1]}…"
        yield f"{'all' if times == len(lives) else f'{times} of them'} ended with {short}"
    else:
        reasons = sorted({reason for attempt in row for reason in attempt.reasons})
        if reasons:
            yield f"its pods ended with {listed(reasons)}"
