"""`duplicate_run`: a run repeats another one, with the same configuration, data and seed.

Needs the SDK, and programs that report their configuration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS

FIRST_STEPS, MIN_STEPS = 20, 3  # that both have
MAX_LOSS_DIFFERENCE = (
    0.05  # relative: kernels that add in another order drift apart slowly, other settings do so at once
)


class _Run(NamedTuple):
    """A run that reported its configuration."""

    digest: str
    run: str
    owner_uid: str
    name: str
    started_ms: int
    ended_ms: int | None
    outcome: str | None
    restored: bool  # it began from a checkpoint and continues another run
    with_data: bool  # its digest covers its first batches


class _Losses(NamedTuple):
    """The first losses of two runs at the same steps."""

    steps: int
    most: float  # relative difference
    usually: float

    @property
    def text(self) -> str:
        if self.most == 0:
            return f"their first {counted(self.steps, 'loss')} are identical"
        return f"their first {counted(self.steps, 'loss')} differ by at most {100 * self.most:.2g}%"


_CONFIGURED = """
WITH reported AS (
    SELECT run, first(reason ORDER BY attempt, rank NULLS FIRST, time_ms) AS digest,
        coalesce(first(message ORDER BY attempt, rank NULLS FIRST, time_ms)
            LIKE '%, the first batches of %', true) AS with_data
    FROM event WHERE kind = 'configured' AND run IS NOT NULL AND reason != '' AND time_ms < $1 GROUP BY run
),
lived AS (
    SELECT the_run.run, first(coalesce(holder_name.workload_uid, pod_uid) ORDER BY attempt, rank) AS owner_uid,
        first(coalesce(holder_name.workload_name, holder_name.pod) ORDER BY attempt, rank) AS name,
        min(started_ms) AS started_ms,
        CASE WHEN bool_and(ended_ms IS NOT NULL) FILTER (attempt = last_attempt) THEN max(ended_ms) END AS ended_ms,
        -- one rank that did not succeed speaks for all: "failed" and "killed" stand before "succeeded"
        min(the_run.outcome) FILTER (attempt = last_attempt) AS outcome,
        coalesce(max(resumed_step) FILTER (attempt = first_attempt) > 0, false) AS restored
    FROM (
        SELECT *, max(attempt) OVER (PARTITION BY run) AS last_attempt,
            min(attempt) OVER (PARTITION BY run) AS first_attempt
        FROM the_run
    ) the_run
    JOIN holder_name USING (pod_uid)
    GROUP BY the_run.run
)
SELECT digest, run, owner_uid, name, started_ms, ended_ms, outcome, restored, with_data
FROM reported JOIN lived USING (run)
QUALIFY count(*) OVER (PARTITION BY digest) > 1
ORDER BY started_ms, run
"""


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each run that repeats an earlier one."""
    if not evidence.has("event"):  # no run reported its configuration
        return
    worth = evidence.reportable_runs("train")
    by_digest: dict[str, list[_Run]] = defaultdict(list)
    for row in evidence.ask(_CONFIGURED, evidence.window.to_ms):
        by_digest[row[0]].append(_Run(*row))
    for runs in by_digest.values():
        for number, later in enumerate(runs):
            if later.run not in worth:
                continue
            for earlier in (run for run in runs[:number] if _repeats(later, run)):
                alike = _losses(evidence, earlier, later)
                if later.with_data if alike is None else alike.usually <= MAX_LOSS_DIFFERENCE:
                    yield from _proposal(evidence, earlier, later, alike)
                    break


def _repeats(later: _Run, earlier: _Run) -> bool:
    """Whether a run repeats work that another run finished or is doing, and does not continue that work."""
    if later.owner_uid == earlier.owner_uid or later.restored:
        return False
    at_once = earlier.ended_ms is None or earlier.ended_ms > later.started_ms
    return at_once or earlier.outcome == "succeeded"


def _losses(evidence: Evidence, earlier: _Run, later: _Run) -> _Losses | None:
    """How the losses of the first steps compare. They show differences that the reported configuration does not."""
    if not evidence.has("metric"):
        return None
    evidence.store.expose(["metric"], earlier.started_ms, evidence.window.to_ms)
    ((steps, most, usually),) = evidence.ask(
        """
        WITH loss AS MATERIALIZED (
            SELECT run, name, step, first(value ORDER BY rank, time_ms) AS value FROM metric
            WHERE list_contains([$1, $2], run) AND lower(name) LIKE '%loss' AND step IS NOT NULL AND isfinite(value)
            GROUP BY run, name, step
        ),
        both_ AS (
            SELECT abs(one.value - other.value) / greatest(abs(one.value), abs(other.value), 1e-12) AS differ
            FROM loss one JOIN loss other USING (name, step) WHERE one.run = $1 AND other.run = $2
            ORDER BY step LIMIT $3
        )
        SELECT count(*), max(differ), median(differ) FROM both_
        """,
        earlier.run,
        later.run,
        FIRST_STEPS,
    )
    return _Losses(steps, most, usually) if steps >= MIN_STEPS else None


def _proposal(evidence: Evidence, earlier: _Run, later: _Run, alike: _Losses | None) -> Iterable[Proposal]:
    # After the earlier run failed, the later one is not a repetition.
    undone = earlier.ended_ms is not None and earlier.outcome != "succeeded"
    until_ms = (
        min(evidence.window.to_ms, earlier.ended_ms or evidence.window.to_ms) if undone else evidence.window.to_ms
    )
    rows = evidence.ask(
        "SELECT greatest(min(time_ms), $2), least(max(to_ms), $3), list_sort(list(DISTINCT pod_uid)) FROM step_window "
        "WHERE run = $1 AND steps > 0 AND pod_uid IS NOT NULL AND time_ms < $3 AND to_ms > $2",
        later.run,
        evidence.window.from_ms,
        until_ms,
    )
    from_ms, to_ms, pods = rows[0]
    if not pods:
        return
    yield Proposal(
        cause="duplicate_run",
        owner_uid=later.owner_uid,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["duplicate_run"],
        scope=tuple(Scope(pod, from_ms, to_ms) for pod in pods),
        headline=f"trained the same as {earlier.name} for {duration(to_ms - from_ms)}, from {evidence.time(from_ms)}",
        evidence=(
            f"runs {later.run} and {earlier.run} have the same configuration, dataset and seed",
            *([] if alike is None else [alike.text]),
            f"{earlier.name} started at {evidence.time(earlier.started_ms)} {_ending(evidence, earlier)}",
        ),
        suggestion=f"Stop it and use the result of {earlier.name}. An intended repeat needs another seed.",
        culprit={"run": earlier.run},
        confidence=0.8,
        detectable_ms=later.started_ms,  # it reports its configuration before its first step
    )


def _ending(evidence: Evidence, run: _Run) -> str:
    if run.ended_ms is None or run.ended_ms >= evidence.window.to_ms:
        return "and is still running"
    return f"and {run.outcome or 'ended'} at {evidence.time(run.ended_ms)}"
