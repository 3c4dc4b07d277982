"""`lost_work`: a later attempt had to repeat steps.

Needs the SDK: only it reports from which step an attempt resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.findings.run_failures import ENDS, error_line
from pyrometer.model.human import duration
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE

MAX_GAP_MS = 500  # processes are checked once per second
FRESH_MS = 5 * MS_PER_MINUTE  # saving more often costs more than it saves


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each attempt whose last steps were lost."""
    owners = evidence.worth("lost_work")
    if not owners:
        return
    rows = evidence.ask(
        """
        SELECT coalesce(workload_uid, pod_uid), run, attempt, min(from_ms), max(to_ms),
            list_sort(list(DISTINCT pod_uid)), min(resumed.step), min(resumed.at_ms)
        FROM restated_before
        JOIN holder_name USING (pod_uid)
        JOIN (
            SELECT run, attempt - 1 AS attempt, min(resumed_step) AS step, min(started_ms) AS at_ms FROM the_run
            WHERE resumed_step IS NOT NULL GROUP BY run, attempt
        ) resumed USING (run, attempt)
        WHERE list_contains($3, coalesce(workload_uid, pod_uid)) AND state = 'lost_work'
            AND from_ms < $2 AND to_ms > $1 AND to_ms > from_ms
        GROUP BY ALL ORDER BY 4
        """,
        *evidence.window,
        sorted(owners),
    )
    for owner, run, attempt, from_ms, to_ms, pods, step, at_ms in rows:
        reached = evidence.ask(
            "SELECT max(first_step + steps) FROM step_window WHERE run = $1 AND attempt = $2 AND steps > 0",
            run,
            attempt,
        )[0][0]
        steps = f"{reached - step:,} steps" if reached else "steps"
        yield Proposal(
            cause="lost_work",
            owner_uid=owner,
            from_ms=from_ms,
            to_ms=to_ms,
            states=CLAIMS["lost_work"],
            scope=tuple(Scope(pod, from_ms, to_ms) for pod in pods),
            headline=f"lost {steps} since {evidence.time(from_ms)}: attempt {attempt + 1} had to repeat them",
            evidence=(
                f"attempt {attempt} reached step {reached:,}" if reached else f"attempt {attempt} ended",
                *_end(evidence, run, attempt),
                f"attempt {attempt + 1} resumed at {evidence.time(at_ms)} from step {step:,}",
            ),
            suggestion=_suggestion(to_ms - from_ms),
            confidence=0.95,
            detectable_ms=max(at_ms, to_ms),
        )


def _end(evidence: Evidence, run: str, attempt: int) -> Iterator[str]:
    """What ended an attempt, if one rank ended before the others."""
    errors = evidence.ask(
        "SELECT rank, reason, message FROM event WHERE run = $1 AND attempt = $2 AND list_contains($3, kind) "
        "ORDER BY time_ms LIMIT 1",
        run,
        attempt,
        list(ENDS),
    )
    for rank, reason, message in errors:
        yield f"rank {rank} ended with {error_line(reason, message)}"
        return
    ends = evidence.ask(
        "SELECT rank, ended_ms, outcome FROM the_run WHERE run = $1 AND attempt = $2 AND ended_ms IS NOT NULL "
        "ORDER BY ended_ms, rank LIMIT 2",
        run,
        attempt,
    )
    if len(ends) == 2 and ends[1][1] - ends[0][1] >= MAX_GAP_MS and ends[0][2] == "killed":
        yield f"rank {ends[0][0]} was killed at {evidence.time(ends[0][1])}, before the others ended"


def _suggestion(age_ms: int) -> str:
    if age_ms < FRESH_MS:
        return f"Find out why the attempt ended. Its last checkpoint was only {duration(age_ms)} old."
    return f"Save checkpoints more often: the last one was {duration(age_ms)} old."
