"""`out_of_memory`: attempts ended because host or GPU memory was full.

Needs Kubernetes, for containers that the kernel killed: all unobserved time of an attempt that ended within the startup
limit is claimed. The SDK adds ranks that ended with an out-of-memory exception, how memory grew (from step windows, or
from GPU telemetry), and the steps that had to be repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.findings.workload_attempts import WorkloadAttempt, attempts, made_progress, started
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_HOUR

GREW = 1.05  # memory that grew by less is full, not growing


class Kill(NamedTuple):
    """A process that ran out of memory."""

    owner_uid: str
    at_ms: int
    of_host: bool
    pod_uid: str
    node_uid: str | None
    rank: int | None


class _Killed(NamedTuple):
    """An attempt, the first kill in it, and whether it made progress."""

    attempt: WorkloadAttempt
    kill: Kill
    kept: bool


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for consecutive attempts of a workload that ran out of the same memory."""
    worth = evidence.worth(*CLAIMS["out_of_memory"])
    of_owner: dict[str, list[Kill]] = defaultdict(list)
    for kill in kills(evidence) if worth else ():
        if kill.owner_uid in worth:
            of_owner[kill.owner_uid].append(kill)
    if not of_owner:
        return
    for owner, tries in attempts(evidence, list(of_owner)).items():
        for killed in _in_a_row(evidence, tries, of_owner[owner]):
            if killed[-1].kill.at_ms > evidence.window.from_ms and killed[0].kill.at_ms <= evidence.window.to_ms:
                proposal = _proposal(evidence, owner, killed)
                if proposal:
                    yield proposal


def kills(evidence: Evidence) -> list[Kill]:
    """Containers that the kernel killed, and ranks that ended with an out-of-memory exception."""
    rows = evidence.ask(
        """
        WITH kill AS (
            SELECT pod_uid, coalesce(ended_ms, time_ms) AS at_ms, true AS of_host, node_uid, rank
            FROM pod WHERE reason = 'OOMKilled'
            UNION ALL
            SELECT event.pod_uid, event.time_ms, true, event.node_uid, pod.rank
            FROM event JOIN pod USING (pod_uid) WHERE event.kind = 'container_restarted' AND event.reason = 'OOMKilled'
            UNION ALL
            SELECT the_run.pod_uid, event.time_ms, coalesce(event.reason = 'MemoryError', false),
                the_run.node_uid, event.rank
            FROM event JOIN the_run USING (run, attempt, rank)
            WHERE event.kind = 'exception'
                AND (event.reason LIKE '%OutOfMemory%' OR event.reason = 'MemoryError'
                    OR event.message ILIKE '%out of memory%')
        )
        SELECT coalesce(workload_uid, pod_uid), min(at_ms), of_host, pod_uid, any_value(node_uid), rank
        FROM kill JOIN holder_name USING (pod_uid)
        WHERE at_ms <= $1 GROUP BY coalesce(workload_uid, pod_uid), at_ms, of_host, pod_uid, rank ORDER BY 2, 6, 4
        """,
        evidence.window.to_ms,
    )
    return [Kill(*row) for row in rows]


def kill_of(attempt: WorkloadAttempt, found: Sequence[Kill]) -> Kill | None:
    """The first out-of-memory kill in an attempt."""
    return next((kill for kill in found if attempt.had(kill.pod_uid, kill.at_ms)), None)


def _in_a_row(evidence: Evidence, tries: Sequence[WorkloadAttempt], found: Sequence[Kill]) -> list[list[_Killed]]:
    """Consecutive attempts that were killed for the same reason."""
    rows: list[list[_Killed]] = []
    last_place = -1
    for place, attempt in enumerate(tries):
        kill = kill_of(attempt, found)
        if kill is None:
            continue
        killed = _Killed(attempt, kill, made_progress(evidence, attempt, tries[place + 1 :]))
        if rows and last_place == place - 1 and rows[-1][-1].kill.of_host == kill.of_host:
            rows[-1].append(killed)
        else:
            rows.append([killed])
        last_place = place
    return rows


def _proposal(evidence: Evidence, owner: str, killed: Sequence[_Killed]) -> Proposal | None:
    first, kill = killed[0], killed[0].kill
    begins_ms = first.attempt.from_ms if not first.kept else first.attempt.lost_from_ms
    if begins_ms is None and len(killed) == 1:
        return None  # nothing was lost
    from_ms = max(min(begins_ms or kill.at_ms, kill.at_ms), evidence.window.from_ms)
    to_ms = killed[-1].kill.at_ms
    rank = _rank(evidence, killed[0])
    node = evidence.node(kill.node_uid)
    memory = "host memory" if kill.of_host else "GPU memory"
    times = "" if len(killed) == 1 else f"{len(killed)} times, "
    return Proposal(
        cause="out_of_memory",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["out_of_memory"],
        scope=tuple(scope for k in killed for scope in _wasted(evidence, k, from_ms)),
        headline=f"ran out of {memory} {times}{'last ' if times else ''}at {evidence.time(to_ms)}",
        evidence=tuple(_evidence(evidence, killed, rank, node)),
        suggestion=(
            "Raise its memory limit, or check data loader workers, pinned buffers and tensors kept between steps."
            if kill.of_host
            else "Reduce the batch size or sequence length, checkpoint activations, or find tensors kept between steps."
        ),
        culprit=({} if rank is None else {"rank": rank}) | ({} if node is None else {"node": node}) or None,
        confidence=0.95,
        # the first attempt that lost something: the same memory is as full in the next one
        detectable_ms=killed[0 if begins_ms is not None else 1].kill.at_ms,
    )


def _wasted(evidence: Evidence, killed: _Killed, from_ms: int) -> list[Scope]:
    """All time of an attempt without progress; else its start and the repeated steps."""
    attempt = killed.attempt
    begins_ms, over_ms = max(from_ms, attempt.from_ms), max(attempt.to_ms or 0, killed.kill.at_ms)
    if not killed.kept:
        return attempt.scope(begins_ms, over_ms)
    lost_ms = over_ms if attempt.lost_from_ms is None else max(begins_ms, attempt.lost_from_ms)
    started_ms = min(started(evidence, attempt), lost_ms)
    return [*attempt.scope(begins_ms, started_ms), *attempt.scope(lost_ms, over_ms)]


def _rank(evidence: Evidence, killed: _Killed) -> int | None:
    """The rank that ran out of memory: in a killed container with several, the one whose process was killed first."""
    if not killed.kill.of_host or killed.attempt.run is None:
        return killed.kill.rank
    ranks = evidence.ask(
        "SELECT rank FROM the_run WHERE run = $1 AND attempt = $2 AND pod_uid = $3 "
        "ORDER BY outcome IS DISTINCT FROM 'killed', ended_ms NULLS LAST, rank",
        killed.attempt.run,
        killed.attempt.number,
        killed.kill.pod_uid,
    )
    named = {rank for (rank,) in ranks}
    if killed.kill.rank in named or not named:
        return killed.kill.rank
    return int(ranks[0][0])


def _evidence(evidence: Evidence, killed: Sequence[_Killed], rank: int | None, node: str | None) -> Iterable[str]:
    kill = killed[0].kill
    where = f" on {node}" if node else ""
    who = f"rank {rank}{where}" if rank is not None else f"its pod{where}"
    yield f"{who} was OOM-killed" if kill.of_host else f"{who} ended with an out-of-memory error"
    if not kill.of_host and rank is not None:
        yield from _curve(evidence, killed[0], rank)
    if len(killed) > 1:
        lost = sum(not k.kept for k in killed)
        yield f"{lost} of {counted(len(killed), 'attempt')} made no progress"
    lost_ms = sum((k.attempt.lost_to_ms or 0) - (k.attempt.lost_from_ms or 0) for k in killed)
    if lost_ms:
        yield f"{duration(lost_ms)} of its steps had to be repeated"


def _curve(evidence: Evidence, killed: _Killed, rank: int) -> Iterable[str]:
    """How full GPU memory was in the hour before, from step windows or telemetry."""
    at_ms = killed.kill.at_ms
    from_ms = max(killed.attempt.from_ms, at_ms - MS_PER_HOUR)
    rows: list[tuple[Any, ...]] = evidence.ask(
        "SELECT arg_min(memory_peak_mib, time_ms), max(memory_peak_mib), min(time_ms), max(to_ms) FROM step_window "
        "WHERE run = $1 AND attempt = $2 AND rank = $3 AND memory_peak_mib > 0 AND time_ms BETWEEN $4 AND $5",
        killed.attempt.run,
        killed.attempt.number,
        rank,
        from_ms,
        at_ms,
    )
    if rows[0][0] is None:
        rows = evidence.ask(
            "SELECT arg_min(memory_used_mib, time_ms), max(memory_used_mib), min(time_ms), max(time_ms) "
            "FROM gpu_sample JOIN (SELECT node_uid, slot_index FROM the_run WHERE run = $1 AND attempt = $2 "
            "AND rank = $3) USING (node_uid, slot_index) WHERE memory_used_mib > 0 AND time_ms BETWEEN $4 AND $5",
            killed.attempt.run,
            killed.attempt.number,
            rank,
            from_ms,
            at_ms,
        )
    first, most, began_ms, ended_ms = rows[0]
    if first is None:
        return
    if most >= GREW * first:
        yield f"its memory grew from {first / 1024:.0f} to {most / 1024:.0f} GiB in {duration(ended_ms - began_ms)}"
    else:
        yield f"it used {most / 1024:.0f} GiB before"
